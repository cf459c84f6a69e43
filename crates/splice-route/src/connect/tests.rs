use super::*;

const LIMIT_BYTES: usize = 1024;

/// Reads `bytes` at once, cut at every place and byte by byte, which has to make no difference.
fn read(bytes: &[u8]) -> Progress<Request> {
    let feed = |cuts: &[usize]| {
        let mut reader = RequestReader::new(LIMIT_BYTES);
        let mut steps = cuts.iter().map(|cut| reader.read(&bytes[..*cut]));
        steps
            .find(|progress| *progress != Progress::More)
            .unwrap_or(Progress::More)
    };
    let whole = feed(&[bytes.len()]);
    for cut in 0..bytes.len() {
        assert_eq!(feed(&[cut, bytes.len()]), whole, "cut at {cut}");
    }
    assert_eq!(feed(&(0..=bytes.len()).collect::<Vec<_>>()), whole);
    whole
}

#[test]
fn requests() {
    for (head, destination) in [
        (
            "CONNECT Example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
            "example.org:443",
        ),
        (
            "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
            "example.org:443",
        ),
        (
            "CONNECT 192.0.2.1:80 HTTP/1.1\r\nHost: 192.0.2.1:80\r\n\r\n",
            "192.0.2.1:80",
        ),
        (
            "CONNECT [2001:db8::1]:80 HTTP/1.1\r\nHost: [2001:DB8::1]:80\r\n\r\n",
            "[2001:db8::1]:80",
        ),
        (
            "CONNECT [::ffff:127.0.0.1]:80 HTTP/1.0\r\n\r\n",
            "[::ffff:127.0.0.1]:80",
        ),
        (
            "CONNECT example.org:443 HTTP/1.0\r\nContent-Length: 0\r\n\r\n",
            "example.org:443",
        ),
        (
            "\r\nCONNECT example.org:443 HTTP/1.2\r\nHost: example.org\r\n\r\n",
            "example.org:443",
        ),
        (
            "CONNECT example.org:0 HTTP/1.0\r\nProxy-Connection: a\r\n\r\n",
            "example.org:0",
        ),
    ] {
        for pipelined in ["", "\u{16}\u{3}\u{1}", "GET / HTTP/1.1\r\n\r\n", "\r\n"] {
            let progress = read(format!("{head}{pipelined}").as_bytes());
            let Progress::Complete(request) = progress else {
                panic!("{head}: {progress:?}");
            };
            assert_eq!(request.destination.to_string(), destination);
            assert_eq!(request.length_bytes, head.len(), "{head}");
        }
    }
}

#[test]
fn broken_requests() {
    let long_label = "a".repeat(64);
    for head in [
        "CONNECT example.org HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "CONNECT example.org: HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "CONNECT :443 HTTP/1.1\r\nHost: :443\r\n\r\n",
        "CONNECT example.org:65536 HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "CONNECT example.org:+443 HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "CONNECT ::1:443 HTTP/1.1\r\nHost: [::1]:443\r\n\r\n",
        "CONNECT http://example.org:443/ HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
        "CONNECT /path HTTP/1.1\r\nHost: example.org\r\n\r\n",
        "CONNECT user@example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
        "CONNECT  example.org:443 HTTP/1.1\r\nHost: example.org:443\r\n\r\n",
        "CONNECT example.org:443 HTTP/1.1\r\n\r\n",
        "CONNECT example.org:443 HTTP/1.1\r\nHost: example.net:443\r\n\r\n",
        "CONNECT example.org:443 HTTP/1.1\r\nHost: example.org:80\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nHost: a:443\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 1\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 00\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 0, 1\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length:\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 0\r\nContent-Length: 1\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\ntransfer-encoding: chunked\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nX: a\r\n b\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\nX: a\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nX: a\rb\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nX : a\r\n\r\n",
        "CONNECT a:443 HTTP/2.0\r\nHost: a:443\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost:\r\n\r\n",
        "CONNECT a!b:443 HTTP/1.1\r\nHost: a!b:443\r\n\r\n",
        "CONNECT %c3%a4:443 HTTP/1.1\r\nHost: %c3%a4:443\r\n\r\n",
        "\nCONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "CONNECT\ta:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "CONNECT\ra:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "CONNECT\x0ba:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        " CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        &"\r\n".repeat(9),
        "CONNECT a\0:443 HTTP/1.1\r\n\r\n",
        &format!("CONNECT {long_label}:443 HTTP/1.0\r\n\r\n"),
        &format!(
            "CONNECT a:443 HTTP/1.0\r\nX: {}\r\n\r\n",
            "a".repeat(LIMIT_BYTES)
        ),
    ] {
        let progress = read(head.as_bytes());
        assert!(
            matches!(progress, Progress::Broken(_)),
            "{head}: {progress:?}"
        );
    }
}

#[test]
fn other_requests_and_protocols() {
    for bytes in [
        &b"GET http://example.org/ HTTP/1.1\r\nHost: example.org\r\n\r\n"[..],
        b"connect example.org:443 HTTP/1.0\r\nA: b\r\n\r\n",
        b"\x05\x01\0",
        b"\x16\x03\x01",
    ] {
        let progress = read(bytes);
        let refused = matches!(progress, Progress::Other | Progress::Broken(_));
        assert!(refused, "{}: {progress:?}", bytes.escape_ascii());
    }
}

#[test]
fn answers() {
    assert_eq!(CONNECTED, b"HTTP/1.1 200 Connection established\r\n\r\n");
    let status = |answer: &[u8]| String::from_utf8_lossy(&answer[9..12]).into_owned();
    for (failure, expected) in [
        (Failure::NotAllowed, "403"),
        (Failure::NetworkUnreachable, "502"),
        (Failure::HostUnreachable, "502"),
        (Failure::ConnectionRefused, "502"),
        (Failure::TimedOut, "504"),
        (Failure::Other, "502"),
    ] {
        let answer = failed(failure);
        assert_eq!(status(answer), expected);
        assert!(answer.ends_with(b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"));
    }
    assert_eq!(status(BAD_REQUEST), "400");
}
