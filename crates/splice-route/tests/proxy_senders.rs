//! The PROXY headers of real senders are accepted, however they are cut.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use splice_route::Progress;
use splice_route::proxy_protocol::{Header, HeaderReader, OutTlvs, header_v2};

fn read(name: &str) -> (Header, Vec<u8>) {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/proxy_senders/{name}.bin"));
    let bytes = std::fs::read(file).expect(name);
    let mut whole = None;
    for cut in 0..=bytes.len() {
        let mut reader = HeaderReader::new();
        let header = match reader.read(&bytes[..cut]) {
            Progress::More => reader.read(&bytes),
            early => early,
        };
        let Progress::Complete(header) = header else {
            panic!("{name} cut at {cut}: {header:?}");
        };
        assert_eq!(
            whole.get_or_insert_with(|| header.clone()),
            &header,
            "{name}"
        );
    }
    let header = whole.expect("a header");
    let rest = bytes[header.length_bytes()..].to_vec();
    (header, rest)
}

#[test]
fn senders_are_understood() {
    for (name, clients, destination) in [
        ("haproxy-v1-ipv4", "127.0.0.1", "127.0.0.1:22001"),
        ("haproxy-v1-ipv6", "::1", "[::1]:22002"),
        ("haproxy-v1-mapped", "127.0.0.1", "127.0.0.1:22003"),
        ("haproxy-v1-mixed", "127.0.0.1", "[2001:db8::5]:22012"),
        ("haproxy-v2-ipv4", "127.0.0.1", "127.0.0.1:22004"),
        ("haproxy-v2-ipv6", "::1", "[::1]:22005"),
        ("haproxy-v2-mapped", "127.0.0.1", "127.0.0.1:22006"),
        ("haproxy-v2-options", "127.0.0.1", "127.0.0.1:22007"),
        ("haproxy-v2-crc32c", "127.0.0.1", "127.0.0.1:22008"),
        ("haproxy-v2-mixed", "127.0.0.1", "[2001:db8::5]:22011"),
        ("haproxy-v2-chain", "192.0.2.1", "198.51.100.2:2"),
        ("nginx-v1-ipv4", "127.0.0.1", "127.0.0.1:23001"),
        ("nginx-v1-ipv6", "::1", "[::1]:23002"),
        ("nginx-v1-mapped", "127.0.0.1", "127.0.0.1:23003"),
    ] {
        let (header, rest) = read(name);
        assert_eq!(rest, b"hello\n", "{name}");
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let endpoints = header.endpoints(Some(here), |_| Some(false)).expect(name);
        let endpoints = endpoints.expect(name);
        assert_eq!(endpoints.source.ip().to_string(), clients, "{name}");
        assert_eq!(endpoints.destination.to_string(), destination, "{name}");
    }
}

#[test]
fn senders_without_a_client_are_understood() {
    for (name, expected) in [
        ("haproxy-v1-unix", &b"hello\n"[..]),
        ("haproxy-v2-unix", b"hello\n"),
        ("haproxy-v2-check", b""),
        ("haproxy-v2-check-crc32c", b""),
        ("nginx-v1-unix", b"hello\n"),
    ] {
        let (header, rest) = read(name);
        assert_eq!(rest, expected, "{name}");
        assert_eq!(header.endpoints(None, |_| Some(false)), Ok(None), "{name}");
    }
    assert!(read("haproxy-v1-check").1.is_empty());
    assert!(read("curl-v1").1.starts_with(b"GET / HTTP/1.1\r\n"));
}

#[test]
fn fields_are_kept() {
    let (header, _) = read("haproxy-v2-options");
    let kinds: Vec<_> = header.tlvs().iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [0x03, 0x01, 0x02, 0x05, 0x20]);
    assert_eq!(header.tlvs().get(0x01), Some(&b"h2"[..]));
    assert_eq!(header.tlvs().get(0x02), Some(&b"www.example.org"[..]));
}

#[test]
fn fields_are_passed_on() {
    let (header, _) = read("haproxy-v2-options");
    let tlvs = OutTlvs {
        authority: Some(b"own.example"),
        unique_id: Some(b"own"),
        received: Some(header.tlvs()),
        ..OutTlvs::default()
    };
    let some = Some("192.0.2.1:1".parse().expect("an address"));
    let written = header_v2(some, some, &tlvs).expect("a short header");
    let Progress::Complete(passed_on) = HeaderReader::new().read(&written) else {
        panic!("{}", written.escape_ascii());
    };
    let kinds: Vec<_> = passed_on.tlvs().iter().map(|(kind, _)| kind).collect();
    assert_eq!(kinds, [0x05, 0x01, 0x02, 0x20, 0x03]);
    for kind in [0x05, 0x01, 0x02, 0x20] {
        let [came, went] = [&header, &passed_on].map(|header| header.tlvs().get(kind));
        assert_eq!(went, came, "{kind}");
    }
}
