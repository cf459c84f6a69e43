use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::destination::Host;

const LIMIT_BYTES: usize = 1024;

/// What a client gets that sends `bytes` in parts which end at `cuts`: the replies, and the last step.
fn talk(mut handshake: Handshake, bytes: &[u8], cuts: &[usize]) -> (Vec<u8>, Step) {
    let mut replies = Vec::new();
    for &end in cuts.iter().chain([&bytes.len()]) {
        loop {
            match handshake.read(&bytes[..end]) {
                Step::More => break,
                Step::Reply(reply) => replies.extend(reply),
                last => return (replies, last),
            }
        }
    }
    (replies, Step::More)
}

/// The answer to `bytes`, which has to be the same however they are cut.
fn answer(new: fn() -> Handshake, bytes: &[u8]) -> (Vec<u8>, Step) {
    let whole = talk(new(), bytes, &[]);
    let shown = bytes.escape_ascii();
    for cut in 0..bytes.len() {
        assert_eq!(talk(new(), bytes, &[cut]), whole, "cut at {cut}: {shown}");
    }
    let every: Vec<usize> = (0..bytes.len()).collect();
    assert_eq!(talk(new(), bytes, &every), whole, "{shown}");
    whole
}

fn connect() -> Handshake {
    Handshake::connect(LIMIT_BYTES)
}

fn request(host: &str, port: u16, length_bytes: usize) -> Step {
    let host = Host::parse(host.as_bytes()).expect(host);
    Step::Request {
        destination: Destination { host, port },
        length_bytes,
    }
}

const SOCKS5: &[u8] = b"\x05\x01\0\x05\x01\0\x03\x0bexample.org\x01\xbb";
const SOCKS4A: &[u8] = b"\x04\x01\x01\xbb\0\0\0\x01\0example.org\0";
const CONNECT: &[u8] = b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n";

#[test]
fn each_protocol_asks_for_a_destination_and_keeps_what_is_behind() {
    for (new, bytes, replies) in [
        (
            Handshake::socks as fn() -> Handshake,
            SOCKS5,
            &b"\x05\0"[..],
        ),
        (Handshake::socks, SOCKS4A, b""),
        (connect, CONNECT, b""),
    ] {
        let with_data = [bytes, b"\x16\x03\x01"].concat();
        let expected = request("example.org", 443, bytes.len());
        assert_eq!(answer(new, &with_data), (replies.to_vec(), expected));
    }
}

#[test]
fn what_cannot_be_read_is_refused() {
    let bad_request = connect::BAD_REQUEST;
    for (new, bytes, reply) in [
        (
            Handshake::socks as fn() -> Handshake,
            &b"\x05\x01\x02"[..],
            &b"\x05\xff"[..],
        ),
        (
            Handshake::socks,
            b"\x04\x02\0\x50\x0a\0\0\x01\0",
            b"\0\x5b\0\0\0\0\0\0",
        ),
        (Handshake::socks, CONNECT, b""),
        (connect, SOCKS5, bad_request),
        (connect, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", bad_request),
        (
            connect,
            b"CONNECT a:1 HTTP/1.1\r\nHost: b:1\r\n\r\n",
            bad_request,
        ),
        (connect, b"CONNECT a:1 HTTP/1.1\nHost: a:1\n\n", bad_request),
    ] {
        let (replies, last) = answer(new, bytes);
        assert!(replies.is_empty());
        let Step::Refuse { reply: sent, .. } = last else {
            panic!("{}: {last:?}", bytes.escape_ascii());
        };
        assert_eq!(sent, reply, "{}", bytes.escape_ascii());
    }
}

#[test]
fn answers() {
    let handshakes = [SOCKS5, SOCKS4A, CONNECT].map(|bytes| {
        let mut handshake = if bytes == CONNECT {
            connect()
        } else {
            Handshake::socks()
        };
        while !matches!(handshake.read(bytes), Step::Request { .. }) {}
        handshake
    });
    let granted = |bound: Option<&str>| {
        let bound = bound.map(|it| it.parse().expect(it));
        handshakes.each_ref().map(|it| it.granted(bound))
    };
    assert_eq!(
        granted(None),
        [
            &b"\x05\0\0\x01\0\0\0\0\0\0"[..],
            b"\0\x5a\0\0\0\0\0\0",
            connect::CONNECTED
        ]
    );
    assert_eq!(
        granted(Some("10.0.0.1:80")),
        [
            &b"\x05\0\0\x01\x0a\0\0\x01\0\x50"[..],
            b"\0\x5a\0\x50\x0a\0\0\x01",
            connect::CONNECTED
        ]
    );
    for (failure, code, status) in [
        (Failure::Other, 1, "502"),
        (Failure::NotAllowed, 2, "403"),
        (Failure::NetworkUnreachable, 3, "502"),
        (Failure::HostUnreachable, 4, "502"),
        (Failure::ConnectionRefused, 5, "502"),
        (Failure::TimedOut, 6, "504"),
    ] {
        let [v5, v4, http] = handshakes.each_ref().map(|it| it.refused(failure));
        assert_eq!(v5, [5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(v4, b"\0\x5b\0\0\0\0\0\0");
        assert!(http.starts_with(format!("HTTP/1.1 {status} ").as_bytes()));
        let mut fields = [httparse::EMPTY_HEADER; 4];
        let parsed = httparse::Response::new(&mut fields).parse(&http);
        assert_eq!(parsed, Ok(httparse::Status::Complete(http.len())));
    }
}

proptest! {
    #[test]
    fn hostile_bytes_are_read_in_one_way(
        start in prop::sample::select(vec![
            &b""[..], b"\x04\x01\0\x50\0\0\0\x01", b"\x05\x01\0\x05\x01\0", b"\x05\x01\0\x05\x01\0\x03\x04",
            b"CONNECT ", b"CONNECT a:1 HTTP/1.1\r\n",
        ]),
        rest in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(&b"\0\x01\r\n: ab.1[]"[..])],
            0..60,
        ),
    ) {
        let bytes = [start, &rest].concat();
        for new in [Handshake::socks, connect] {
            let (_, last) = answer(new, &bytes);
            if let Step::Request { length_bytes, .. } = last {
                // What is behind the request does not change it.
                prop_assert_eq!(answer(new, &bytes[..length_bytes]).1, last);
            }
        }
    }

    #[test]
    fn both_protocols_ask_for_the_same_address(address: IpAddr, port: u16) {
        let kind_and_address = match address {
            IpAddr::V4(ip) => [&[1][..], &ip.octets()].concat(),
            IpAddr::V6(ip) => [&[4][..], &ip.octets()].concat(),
        };
        let socks = [b"\x05\x01\0\x05\x01\0", &kind_and_address[..], &port.to_be_bytes()].concat();
        let head = format!("CONNECT {} HTTP/1.0\r\n\r\n", SocketAddr::new(address, port));
        let expected = |length_bytes| request(&address.to_string(), port, length_bytes);
        prop_assert_eq!(answer(Handshake::socks, &socks).1, expected(socks.len()));
        prop_assert_eq!(answer(connect, head.as_bytes()).1, expected(head.len()));
    }
}
