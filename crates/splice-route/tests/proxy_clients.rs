//! Real clients of SOCKS and CONNECT get what they ask for, however their bytes are cut.

use std::path::Path;

use splice_route::socks::{Negotiation, Step};
use splice_route::{Destination, Progress, connect};

fn sent_by(name: &str) -> Vec<u8> {
    let file =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/proxy_clients/{name}.bin"));
    std::fs::read(file).expect(name)
}

/// All that the client is told before the proxy connects, its destination, and the bytes of the request.
fn socks(bytes: &[u8], cut: usize) -> (Vec<u8>, Destination, usize) {
    let mut negotiation = Negotiation::new();
    let mut replies = Vec::new();
    for come in [&bytes[..cut], bytes] {
        loop {
            match negotiation.step(come) {
                Step::More => break,
                Step::Reply(reply) => replies.extend(reply),
                Step::Connect {
                    destination,
                    length_bytes,
                } => return (replies, destination, length_bytes),
                Step::Refuse(_, fault) => panic!("{fault}"),
            }
        }
    }
    panic!("the request is not complete");
}

#[test]
fn socks_clients() {
    for (name, asked) in [
        ("curl-socks4", "192.0.2.1:80"),
        ("curl-socks4a", "example.org:80"),
        ("socat-socks4a", "example.org:443"),
        ("curl-socks5", "192.0.2.1:80"),
        ("curl-socks5-ipv6", "[2001:db8::1]:8080"),
        ("curl-socks5h", "example.org:80"),
        ("go-socks5", "example.org:443"),
    ] {
        let bytes = sent_by(name);
        let told = if bytes[0] == 5 { &b"\x05\0"[..] } else { b"" };
        for cut in 0..=bytes.len() {
            let (replies, destination, length_bytes) = socks(&bytes, cut);
            assert_eq!(replies, told, "{name} cut at {cut}");
            assert_eq!(destination.to_string(), asked, "{name} cut at {cut}");
            assert_eq!(length_bytes, bytes.len(), "{name} cut at {cut}");
        }
    }
}

#[test]
fn connect_clients() {
    for (name, asked) in [
        ("curl-connect", "example.org:443"),
        ("curl-connect-ipv6", "[2001:db8::1]:8443"),
        ("go-connect", "example.org:443"),
        ("python-connect", "example.org:443"),
        ("socat-connect", "example.org:443"),
        ("wget-connect", "example.org:443"),
    ] {
        let bytes = sent_by(name);
        for cut in 0..=bytes.len() {
            let mut reader = connect::RequestReader::new(4096);
            let progress = match reader.read(&bytes[..cut]) {
                Progress::More => reader.read(&bytes),
                early => early,
            };
            let Progress::Complete(request) = progress else {
                panic!("{name} cut at {cut}: {progress:?}");
            };
            assert_eq!(request.destination.to_string(), asked, "{name}");
            assert_eq!(request.length_bytes, bytes.len(), "{name}");
        }
    }
}
