use super::*;
use crate::progress::{Fault, Progress};

fn read(bytes: &[u8]) -> Progress<Header> {
    HeaderReader::new().read(bytes)
}

pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().expect(text)
}

/// Reads `bytes` at once, cut at every place and byte by byte, which has to make no difference.
fn read_in_parts(bytes: &[u8]) -> Progress<Header> {
    let whole = read(bytes);
    for cut in 0..bytes.len() {
        let mut reader = HeaderReader::new();
        let first = reader.read(&bytes[..cut]);
        if matches!(first, Progress::More) {
            assert_eq!(reader.read(bytes), whole, "cut at {cut}");
        } else {
            assert_eq!(first, whole, "cut at {cut}");
        }
    }
    let mut reader = HeaderReader::new();
    let slow = (0..=bytes.len())
        .map(|length| reader.read(&bytes[..length]))
        .find(|progress| !matches!(progress, Progress::More));
    assert_eq!(slow.unwrap_or(Progress::More), whole);
    whole
}

pub(super) fn complete(bytes: &[u8]) -> Header {
    match read_in_parts(bytes) {
        Progress::Complete(header) => header,
        other => panic!("{other:?}: {}", bytes.escape_ascii()),
    }
}

fn fault(bytes: &[u8]) -> Fault {
    match read_in_parts(bytes) {
        Progress::Broken(fault) => fault,
        other => panic!("{other:?}: {}", bytes.escape_ascii()),
    }
}

#[test]
fn lines() {
    for (line, endpoints) in [
        (
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n",
            Some(("192.168.0.1:56324", "192.168.0.11:443")),
        ),
        (
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n",
            Some(("255.255.255.255:65535", "255.255.255.255:65535")),
        ),
        (
            "PROXY TCP6 2001:DB8:0:0:0:0:0:1 ::1 0 1\r\n",
            Some(("[2001:db8::1]:0", "[::1]:1")),
        ),
        (
            "PROXY TCP6 ::ffff:192.0.2.1 ::ffff:c000:202 1 2\r\n",
            Some(("192.0.2.1:1", "192.0.2.2:2")),
        ),
        ("PROXY UNKNOWN\r\n", None),
        ("PROXY UNKNOWN \r\n", None),
        (
            "PROXY UNKNOWN ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff \
             ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff 65535 65535\r\n",
            None,
        ),
    ] {
        let mut bytes = line.as_bytes().to_vec();
        let expected = endpoints.map(|(source, destination)| Endpoints {
            source: address(source),
            destination: address(destination),
        });
        bytes.extend(b"GET / HTTP/1.1\r\n");
        let header = complete(&bytes);
        assert_eq!(header.length_bytes(), line.len(), "{line}");
        assert_eq!(header.endpoints, expected, "{line}");
        assert!(header.tlvs().iter().next().is_none());
    }
}

#[test]
fn broken_lines() {
    for line in [
        "PROXY\r\n",
        "PROXY \r\n",
        "PROXY  TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
        "PROXY TCP4\t192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.01 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.256 192.0.2.2 1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 00 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 -1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 0x1 2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2  2\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 65536 2\r\n",
        "PROXY TCP4 ::1 ::1 1 2\r\n",
        "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY TCP6 2001:db8::1 192.0.2.2 1 2\r\n",
        "PROXY TCP6 fe80::1%eth0 2001:db8::2 1 2\r\n",
        "PROXY TCP6 [2001:db8::1] 2001:db8::2 1 2\r\n",
        "PROXY TCP6 2001:db8::1::2 2001:db8::2 1 2\r\n",
        "PROXY TCP5 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY tcp4 192.0.2.1 192.0.2.2 1 2\r\n",
        "PROXY UNKNOWNS\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\r\n",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\rGET",
        "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\0\r\n",
        "PROXY UNKNOWN\n",
        "PROXY UNKNOWN a\rb\r\n",
        "proxy UNKNOWN\r\n",
        " PROXY UNKNOWN\r\n",
        "GET / HTTP/1.1\r\n",
        "\u{16}\u{3}\u{1}",
        "\r\nPROXY UNKNOWN\r\n",
    ] {
        fault(line.as_bytes());
    }
}

#[test]
fn a_line_has_at_most_107_bytes() {
    let mut line = b"PROXY UNKNOWN ".to_vec();
    line.resize(105, b'x');
    line.extend(b"\r\n");
    assert_eq!(complete(&line).length_bytes(), 107);
    line.insert(20, b'x');
    let fault = fault(&line);
    assert!(fault.0.contains("107 bytes"), "{fault}");
    assert_eq!(read(&line[..106]), Progress::More);
}

/// A header of version 2 with these bytes behind its length.
pub(super) fn version2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).expect("a short header");
    let mut bytes = b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a".to_vec();
    bytes.extend([command, family]);
    bytes.extend(length.to_be_bytes());
    bytes.extend(rest);
    bytes
}

pub(super) const IPV4: &[u8] = b"\xc0\x00\x02\x01\xc6\x33\x64\x02\xdb\xfc\x01\xbb";

pub(super) fn with(addresses: &[u8], fields: &[u8]) -> Vec<u8> {
    [addresses, fields].concat()
}

#[test]
fn binary_headers() {
    let v6 = b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\
               \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x00\x07\xff\xff";
    let mapped = b"\0\0\0\0\0\0\0\0\0\0\xff\xff\xc0\x00\x02\x01\
                   \x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x02\x00\x07\xff\xff";
    let field = b"\x05\x00\x02id";
    for (command, family, rest, endpoints, fields) in [
        (
            0x21,
            0x11,
            IPV4.to_vec(),
            Some(("192.0.2.1:56316", "198.51.100.2:443")),
            0,
        ),
        (
            0x21,
            0x11,
            with(IPV4, field),
            Some(("192.0.2.1:56316", "198.51.100.2:443")),
            1,
        ),
        (
            0x21,
            0x21,
            with(v6, field),
            Some(("[2001:db8::1]:7", "[2001:db8::2]:65535")),
            1,
        ),
        (
            0x21,
            0x21,
            mapped.to_vec(),
            Some(("192.0.2.1:7", "[2001:db8::2]:65535")),
            0,
        ),
        (0x21, 0x31, with(&[b'a'; 216], field), None, 1),
        (0x21, 0x00, vec![], None, 0),
        (0x21, 0x00, field.to_vec(), None, 1),
        // Datagrams: the fields count, the addresses do not.
        (0x21, 0x12, IPV4.to_vec(), None, 0),
        (0x21, 0x12, with(IPV4, field), None, 1),
        (0x21, 0x22, with(v6, field), None, 1),
        (0x21, 0x32, with(&[b'a'; 216], field), None, 1),
        // No family: what is no list of fields may be addresses, which are ignored.
        (0x21, 0x00, IPV4.to_vec(), None, 0),
        (0x21, 0x00, vec![1], None, 0),
        (
            0x21,
            0x00,
            b"\x03\0\0\x05\xc6\x33\x64\x01\0\x01\0\x02".to_vec(),
            None,
            0,
        ),
        (0x21, 0x00, vec![0; 12], None, 0),
        (0x21, 0x00, vec![0; 36], None, 0),
        (0x21, 0x00, vec![0; 216], None, 0),
        (0x21, 0x00, b"\x03\0\x01\0".to_vec(), None, 0),
        (
            0x21,
            0x00,
            b"\x03\0\x04\0\0\0\0\x03\0\x04\0\0\0\0".to_vec(),
            None,
            0,
        ),
        (0x21, 0x00, with(&[5, 0, 129], &[b'x'; 129]), None, 0),
        (0x21, 0x00, with(field, b"\0\0\0"), None, 0),
        // Nobody else writes a field of type 0, but behind addresses that are known it is one.
        (
            0x21,
            0x11,
            with(IPV4, b"\0\0\0"),
            Some(("192.0.2.1:56316", "198.51.100.2:443")),
            1,
        ),
        // LOCAL: all that comes behind is ignored.
        (0x20, 0x00, vec![], None, 0),
        (0x20, 0x00, field.to_vec(), None, 0),
        (0x20, 0x11, IPV4.to_vec(), None, 0),
        (0x20, 0x11, vec![1], None, 0),
        (0x20, 0x12, vec![3, 0, 9], None, 0),
        (0x20, 0xff, vec![1, 2, 3], None, 0),
    ] {
        let mut bytes = version2(command, family, &rest);
        let length = bytes.len();
        bytes.extend(b"\x16\x03\x01");
        let header = complete(&bytes);
        let case = format!("{command:x} {family:x} {rest:?}");
        assert_eq!(header.length_bytes(), length, "{case}");
        assert_eq!(
            header.endpoints.map(|both| (both.source, both.destination)),
            endpoints.map(|(source, destination)| (address(source), address(destination))),
            "{case}"
        );
        assert_eq!(header.tlvs().iter().count(), fields, "{case}");
    }
}

#[test]
fn broken_binary_headers() {
    for (case, bytes) in [
        ("version 1", version2(0x11, 0x11, IPV4)),
        ("version 3", version2(0x31, 0x11, IPV4)),
        ("a command that is not assigned", version2(0x22, 0x11, IPV4)),
        (
            "an unassigned transport over IPv4",
            version2(0x21, 0x13, IPV4),
        ),
        (
            "a family that is not assigned",
            version2(0x21, 0x41, &[0; 36]),
        ),
        ("no family, but a transport", version2(0x21, 0x01, IPV4)),
        ("a family, but no transport", version2(0x21, 0x10, IPV4)),
        ("too short for IPv4", version2(0x21, 0x11, &IPV4[1..])),
        ("too short for IPv6", version2(0x21, 0x21, &[1; 35])),
        ("too short for UNIX", version2(0x21, 0x31, &[1; 215])),
        (
            "too short for UDP over IPv4",
            version2(0x21, 0x12, &IPV4[1..]),
        ),
        (
            "too short for UDP over IPv6",
            version2(0x21, 0x22, &[1; 35]),
        ),
        (
            "too short for UNIX datagrams",
            version2(0x21, 0x32, &[1; 215]),
        ),
        (
            "a field behind datagram addresses that is cut",
            version2(0x21, 0x12, &with(IPV4, b"\x05\0\x02i")),
        ),
        (
            "a wrong checksum without addresses",
            version2(0x21, 0x00, b"\x03\0\x04\0\0\0\0"),
        ),
        (
            "a wrong checksum behind zero bytes",
            version2(0x21, 0x00, b"\0\0\0\x03\0\x04\0\0\0\0"),
        ),
        (
            "a field without length",
            version2(0x21, 0x11, &with(IPV4, b"\x05\0")),
        ),
        (
            "a field that is cut",
            version2(0x21, 0x11, &with(IPV4, b"\x05\0\x02i")),
        ),
        (
            "a short checksum",
            version2(0x21, 0x11, &with(IPV4, b"\x03\0\x03\0\0\0")),
        ),
        (
            "a wrong checksum",
            version2(0x21, 0x11, &with(IPV4, b"\x03\0\x04\0\0\0\0")),
        ),
        (
            "a wrong checksum",
            version2(0x20, 0x00, b"\x03\0\x04\0\0\0\0"),
        ),
        ("4097 bytes", version2(0x21, 0x00, &[0; 4081])),
        ("65551 bytes", version2(0x20, 0x00, &[0; 65535])),
        ("another signature", b"\r\n\r\n\0\r\nQUIT\r".to_vec()),
    ] {
        let bytes = with(&bytes, b"hello");
        assert!(
            matches!(read_in_parts(&bytes), Progress::Broken(_)),
            "{case}"
        );
    }
    let long_id = with(&[5, 0, 129], &[b'x'; 129]);
    fault(&version2(0x21, 0x11, &with(IPV4, &long_id)));
}

#[test]
fn a_header_is_refused_as_soon_as_it_is_wrong() {
    for (bytes, at) in [
        (b"PROXY TCP4 1\nx".to_vec(), 13),
        (b"GET ".to_vec(), 1),
        (b"PROXYX".to_vec(), 6),
        (version2(0x11, 0x11, IPV4), 13),
        (version2(0x21, 0x13, IPV4), 14),
        (version2(0x21, 0x11, &IPV4[1..]), 16),
        (version2(0x20, 0x00, &[0; 4081]), 16),
    ] {
        let case = bytes.escape_ascii().to_string();
        assert_eq!(read(&bytes[..at - 1]), Progress::More, "{case}");
        assert!(matches!(read(&bytes[..at]), Progress::Broken(_)), "{case}");
    }
}

#[test]
fn only_senders_on_this_host_claim_its_addresses() {
    let far = Some("192.0.2.99");
    let here = Some("127.0.0.1");
    let own = Some("198.51.100.7");
    let socket = None;
    for (sender, source, destination, accepted) in [
        (far, "192.0.2.1", "198.51.100.2", true),
        (far, "192.0.2.1", "198.51.100.7", true),
        (far, "2001:db8::1", "2001:db8::2", true),
        (far, "127.0.0.1", "198.51.100.2", false),
        (far, "127.9.9.9", "198.51.100.2", false),
        (far, "192.0.2.1", "127.0.0.1", false),
        (far, "::1", "2001:db8::2", false),
        (far, "::ffff:127.0.0.1", "2001:db8::2", false),
        (far, "198.51.100.7", "198.51.100.2", false),
        (far, "::ffff:198.51.100.7", "2001:db8::2", false),
        (here, "127.0.0.1", "127.0.0.1", true),
        (Some("::ffff:127.0.0.1"), "::1", "::1", true),
        (here, "198.51.100.7", "198.51.100.7", true),
        (own, "127.0.0.1", "198.51.100.7", true),
        (socket, "198.51.100.7", "127.0.0.1", true),
        (here, "0.0.0.0", "198.51.100.2", false),
        (far, "0.1.2.3", "198.51.100.2", false),
        // A sender that does not know where its client has connected to.
        (far, "192.0.2.1", "0.0.0.0", true),
        (far, "192.0.2.1", "0.1.2.3", true),
        (far, "2001:db8::1", "::", true),
        (far, "2001:db8::1", "::ffff:0.0.0.0", true),
        (far, "0.0.0.0", "0.0.0.0", false),
        (far, "::", "2001:db8::2", false),
        (here, "224.0.0.1", "198.51.100.2", false),
        (far, "192.0.2.1", "239.1.1.1", false),
        (far, "255.255.255.255", "198.51.100.2", false),
        (far, "ff02::1", "2001:db8::2", false),
        (far, "::ffff:224.0.0.1", "2001:db8::2", false),
    ] {
        let family = if source.contains(':') { "TCP6" } else { "TCP4" };
        let line = format!("PROXY {family} {source} {destination} 1 2\r\n");
        let header = complete(line.as_bytes());
        let sender = sender.map(|sender| sender.parse().expect(sender));
        let is_own = |ip: std::net::IpAddr| Some(ip.to_string() == "198.51.100.7");
        let endpoints = header.endpoints(sender, is_own);
        assert_eq!(
            endpoints.is_ok(),
            accepted,
            "{sender:?} {line} {endpoints:?}"
        );
    }
}

#[test]
fn what_may_be_an_address_of_this_host_is_no_client() {
    let header = complete(b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\r\n");
    for (sender, accepted) in [
        (Some("203.0.113.9"), false),
        (Some("127.0.0.1"), true),
        (None, true),
    ] {
        let sender = sender.map(|sender| sender.parse().expect(sender));
        let endpoints = header.endpoints(sender, |_| None);
        assert_eq!(endpoints.is_ok(), accepted, "{sender:?} {endpoints:?}");
    }
}

#[test]
fn a_sender_on_this_host_costs_no_question_about_its_client() {
    let header = complete(b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\r\n");
    for sender in [Some("127.0.0.1"), Some("198.51.100.7"), None] {
        let sender: Option<std::net::IpAddr> = sender.map(|sender| sender.parse().expect(sender));
        let is_own = |ip| {
            assert_eq!(Some(ip), sender);
            Some(true)
        };
        assert!(header.endpoints(sender, is_own).is_ok());
    }
}

#[test]
fn written_headers_are_read() {
    let received = complete(&version2(
        0x21,
        0x11,
        &with(
            IPV4,
            b"\x04\0\x01\0\x05\0\x03old\xe0\0\x02ab\x20\0\x05\0\0\0\0\0",
        ),
    ));
    let tlvs = OutTlvs {
        authority: Some(b"example.org"),
        alpn: Some(b"h2"),
        unique_id: Some(b"new"),
        received: Some(received.tlvs()),
        checksum: true,
    };
    for (source, destination, line) in [
        (
            "192.0.2.1:1",
            "192.0.2.2:65535",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65535\r\n",
        ),
        (
            "[2001:db8::1]:1",
            "[2001:db8::2]:2",
            "PROXY TCP6 2001:db8::1 2001:db8::2 1 2\r\n",
        ),
        (
            "192.0.2.1:1",
            "[2001:db8::2]:2",
            "PROXY TCP6 ::ffff:c000:201 2001:db8::2 1 2\r\n",
        ),
        (
            "[::ffff:192.0.2.1]:1",
            "[::ffff:192.0.2.2]:2",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\r\n",
        ),
    ] {
        let (source, destination) = (address(source), address(destination));
        let expected = Some(Endpoints::new(source, destination));
        let written = header_v1(Some(source), Some(destination));
        assert_eq!(written, line.as_bytes());
        assert_eq!(complete(&written).endpoints, expected);

        let written = header_v2(Some(source), Some(destination), &tlvs).expect("a short header");
        let header = complete(&written);
        assert_eq!(header.length_bytes(), written.len());
        assert_eq!(header.endpoints, expected);
        let fields: Vec<_> = header.tlvs().iter().map(|(kind, _)| kind).collect();
        assert_eq!(fields, [1, 2, 5, 0xe0, 0x20, 3]);
        // It names the connection in the logs of the proxies before.
        assert_eq!(header.tlvs().get(5), Some(&b"old"[..]));
        assert_eq!(header.tlvs().get(2), Some(&b"example.org"[..]));

        // A flipped bit behind the length is noticed wherever it is, but where it hides the checksum.
        let checksum_at = written.len() - 7;
        for at in (16..written.len()).filter(|at| *at != checksum_at) {
            let mut flipped = written.clone();
            flipped[at] ^= 1;
            assert!(matches!(read(&flipped), Progress::Broken(_)), "{at}");
        }
    }
}

#[test]
fn unknown_clients_are_written() {
    let some = Some(address("192.0.2.1:1"));
    let nothing = OutTlvs::default();
    for (source, destination) in [(None, None), (some, None), (None, some)] {
        assert_eq!(header_v1(source, destination), b"PROXY UNKNOWN\r\n");
        let written = header_v2(source, destination, &nothing).expect("a short header");
        assert_eq!(written, version2(0x20, 0x00, b""));
    }
    // HAProxy 2.6 resets PROXY without a family, whether there are fields or not.
    let received = complete(&version2(0x21, 0x00, b"\xe0\0\x01v"));
    for (tlvs, fields) in [
        (
            OutTlvs {
                unique_id: Some(b"id"),
                ..nothing
            },
            &b"\x05\0\x02id"[..],
        ),
        (
            OutTlvs {
                received: Some(received.tlvs()),
                ..nothing
            },
            b"\xe0\0\x01v",
        ),
    ] {
        let written = header_v2(None, None, &tlvs).expect("a short header");
        assert_eq!(written, version2(0x20, 0x00, fields));
        complete(&written);
    }
    let checksum = OutTlvs {
        checksum: true,
        ..nothing
    };
    let written = header_v2(None, None, &checksum).expect("a short header");
    assert_eq!(written[12], 0x20);
    complete(&written);
    let written = header_v2(some, some, &nothing).expect("a short header");
    let addresses = b"\xc0\x00\x02\x01\xc0\x00\x02\x01\0\x01\0\x01";
    assert_eq!(written, version2(0x21, 0x11, addresses));
}

#[test]
fn fields_that_are_too_long_are_not_written() {
    let some = Some(address("192.0.2.1:1"));
    let id = [0; 129];
    let long_id = OutTlvs {
        unique_id: Some(&id),
        ..OutTlvs::default()
    };
    assert!(header_v2(some, some, &long_id).is_err());
    for (length, written) in [(4096 - 16 - 12 - 3, true), (4096, false), (1 << 16, false)] {
        let name = vec![b'a'; length];
        let long_name = OutTlvs {
            authority: Some(&name),
            ..OutTlvs::default()
        };
        let header = header_v2(some, some, &long_name);
        assert_eq!(header.is_ok(), written, "{length}");
    }
}
