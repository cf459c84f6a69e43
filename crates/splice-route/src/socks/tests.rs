use super::*;

/// Takes the client's bytes at once, cut at every place and byte by byte, which has to make no difference.
/// Answers with all replies, and with the last step.
fn negotiate(bytes: &[u8]) -> (Vec<u8>, Step, Negotiation) {
    let feed = |cuts: &[usize]| {
        let mut negotiation = Negotiation::new();
        let mut replies = Vec::new();
        let mut last = Step::More;
        for cut in cuts {
            last = loop {
                match negotiation.step(&bytes[..*cut]) {
                    Step::Reply(reply) => replies.extend(reply),
                    other => break other,
                }
            };
            if last != Step::More {
                break;
            }
        }
        (replies, last, negotiation)
    };
    let whole = feed(&[bytes.len()]);
    for cut in 0..bytes.len() {
        let cut = feed(&[cut, bytes.len()]);
        assert_eq!((&cut.0, &cut.1), (&whole.0, &whole.1));
    }
    let slow = feed(&(0..=bytes.len()).collect::<Vec<_>>());
    assert_eq!((&slow.0, &slow.1), (&whole.0, &whole.1));
    whole
}

#[test]
fn requests() {
    for (case, bytes, destination) in [
        (
            "4",
            &b"\x04\x01\x01\xbb\xc0\x00\x02\x01\0"[..],
            "192.0.2.1:443",
        ),
        (
            "4 with a user",
            b"\x04\x01\0\x50\xc0\x00\x02\x01me\0",
            "192.0.2.1:80",
        ),
        ("4 for 0.0.0.0", b"\x04\x01\0\x50\0\0\0\0me\0", "0.0.0.0:80"),
        (
            "4a",
            b"\x04\x01\0\x50\0\0\0\x01\0Example.org\0",
            "example.org:80",
        ),
        (
            "4a with a user",
            b"\x04\x01\0\x50\0\0\0\xffme\0a.example\0",
            "a.example:80",
        ),
        (
            "4a with an address",
            b"\x04\x01\0\x50\0\0\0\xff\x00::1\0",
            "[::1]:80",
        ),
        (
            "5",
            b"\x05\x01\0\x05\x01\0\x01\xc0\x00\x02\x01\x01\xbb",
            "192.0.2.1:443",
        ),
        (
            "5 with methods",
            b"\x05\x03\x02\x01\0\x05\x01\0\x03\x01a\0\x50",
            "a:80",
        ),
        (
            "5 with IPv6",
            b"\x05\x01\0\x05\x01\0\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x01\0\x50",
            "[2001:db8::1]:80",
        ),
        (
            "5 with a name",
            b"\x05\x01\0\x05\x01\0\x03\x0bexample.ORG\0\x50",
            "example.org:80",
        ),
    ] {
        // Clients may send on without waiting.
        for pipelined in [&b""[..], b"GET / HTTP/1.1\r\n", b"\0\0\0"] {
            let sent = [bytes, pipelined].concat();
            let (replies, last, _) = negotiate(&sent);
            let Step::Connect {
                destination: asked,
                length_bytes,
            } = last
            else {
                panic!("{case}: {last:?}");
            };
            assert_eq!(asked.to_string(), destination, "{case}");
            assert_eq!(length_bytes, bytes.len(), "{case}");
            let expected = if bytes[0] == 5 { &b"\x05\0"[..] } else { b"" };
            assert_eq!(replies, expected, "{case}");
        }
        for short in 0..bytes.len() {
            assert_eq!(negotiate(&bytes[..short]).1, Step::More, "{case} {short}");
        }
    }
}

#[test]
fn refusals() {
    let no4 = &b"\0\x5b\0\0\0\0\0\0"[..];
    let long = [&b"\x04\x01\0\x50\xc0\0\x02\x01"[..], &[b'a'; 256]].concat();
    let long_name = [&b"\x04\x01\0\x50\0\0\0\x01\0"[..], &[b'a'; 256]].concat();
    let general = &b"\x05\x01\0\x01\0\0\0\0\0\0"[..];
    let command = &b"\x05\x07\0\x01\0\0\0\0\0\0"[..];
    let family = &b"\x05\x08\0\x01\0\0\0\0\0\0"[..];
    for (case, bytes, reply) in [
        ("HTTP", &b"GET / HTTP/1.1\r\n"[..], &b""[..]),
        ("version 0", b"\0", b""),
        ("BIND of 4", b"\x04\x02\0\x50\xc0\0\x02\x01\0", no4),
        ("command 0 of 4", b"\x04\0\0\x50\xc0\0\x02\x01\0", no4),
        ("a user without end", &long, no4),
        ("a name without end", &long_name, no4),
        ("an empty name in 4a", b"\x04\x01\0\x50\0\0\0\x01\0\0", no4),
        (
            "a control byte in 4a",
            b"\x04\x01\0\x50\0\0\0\x01\0a\nb\0",
            no4,
        ),
        ("no method", b"\x05\0", b"\x05\xff"),
        ("a password alone", b"\x05\x01\x02", b"\x05\xff"),
        ("GSSAPI and a password", b"\x05\x02\x01\x02", b"\x05\xff"),
        (
            "BIND",
            b"\x05\x01\0\x05\x02\0\x01\xc0\0\x02\x01\0\x50",
            command,
        ),
        (
            "UDP ASSOCIATE",
            b"\x05\x01\0\x05\x03\0\x01\0\0\0\0\0\0",
            command,
        ),
        ("command 0", b"\x05\x01\0\x05\0\0\x01\0\0\0\0\0\0", command),
        (
            "another version",
            b"\x05\x01\0\x04\x01\0\x01\0\0\0\0\0\0",
            general,
        ),
        (
            "a reserved byte",
            b"\x05\x01\0\x05\x01\x01\x01\0\0\0\0\0\0",
            general,
        ),
        ("type 2", b"\x05\x01\0\x05\x01\0\x02\0\0\0\0\0\0", family),
        (
            "an empty name",
            b"\x05\x01\0\x05\x01\0\x03\0\0\x50",
            general,
        ),
        (
            "a zero in a name",
            b"\x05\x01\0\x05\x01\0\x03\x03a\0b\0\x50",
            general,
        ),
        (
            "a name with port",
            b"\x05\x01\0\x05\x01\0\x03\x04a:80\0\x50",
            general,
        ),
        (
            "a name that is no text",
            b"\x05\x01\0\x05\x01\0\x03\x01\xff\0\x50",
            general,
        ),
    ] {
        let (_, last, _) = negotiate(bytes);
        let Step::Refuse(sent, _) = last else {
            panic!("{case}: {last:?}");
        };
        assert_eq!(sent, reply, "{case}");
    }
}

#[test]
fn answers() {
    let (_, _, four) = negotiate(b"\x04\x01\x01\xbb\xc0\x00\x02\x01\0");
    let (_, _, five) = negotiate(b"\x05\x01\0\x05\x01\0\x01\xc0\x00\x02\x01\x01\xbb");
    let v4 = "192.0.2.9:4660".parse().expect("an address");
    let mapped = "[::ffff:192.0.2.9]:4660".parse().expect("an address");
    let v6 = "[2001:db8::9]:4660".parse().expect("an address");
    for (negotiation, bound, expected) in [
        (&four, v4, &b"\0\x5a\x12\x34\xc0\0\x02\x09"[..]),
        (&four, v6, b"\0\x5a\0\0\0\0\0\0"),
        (&five, v4, b"\x05\0\0\x01\xc0\0\x02\x09\x12\x34"),
        (&five, mapped, b"\x05\0\0\x01\xc0\0\x02\x09\x12\x34"),
        (
            &five,
            v6,
            b"\x05\0\0\x04\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\x09\x12\x34",
        ),
    ] {
        assert_eq!(negotiation.connected(bound), expected, "{bound}");
    }
    for (failure, code) in [
        (Failure::Other, 1),
        (Failure::NotAllowed, 2),
        (Failure::NetworkUnreachable, 3),
        (Failure::HostUnreachable, 4),
        (Failure::ConnectionRefused, 5),
        (Failure::TimedOut, 6),
    ] {
        assert_eq!(five.failed(failure), [5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(four.failed(failure), [0, 0x5b, 0, 0, 0, 0, 0, 0]);
    }
}
