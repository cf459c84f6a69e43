use super::*;

const LIMIT_BYTES: usize = 64 << 10;

/// What a reader says, with offsets replaced by what they stand for: method, host, path.
type Summary = Progress<(String, Option<String>, String)>;

fn summary(progress: Progress<&RequestHead>, bytes: &[u8]) -> Summary {
    let text = |bytes: &[u8]| String::from_utf8(bytes.into()).unwrap();
    progress.map(|head| {
        let host = head.host().map(String::from);
        (text(head.method(bytes)), host, text(head.path(bytes)))
    })
}

fn read(bytes: &[u8]) -> Summary {
    summary(RequestHeadReader::new(LIMIT_BYTES).read(bytes), bytes)
}

/// Reads a message whole, in two parts cut anywhere, and byte by byte.
fn read_in_every_way(bytes: &[u8]) -> Summary {
    let whole = read(bytes);
    let mut byte_by_byte = RequestHeadReader::new(LIMIT_BYTES);
    for cut in 0..=bytes.len() {
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        let early = summary(reader.read(&bytes[..cut]), bytes);
        assert!(
            early == Progress::More || early == whole,
            "{early:?} {whole:?}"
        );
        assert_eq!(summary(reader.read(bytes), bytes), whole, "cut at {cut}");
        let so_far = summary(byte_by_byte.read(&bytes[..cut]), bytes);
        assert_eq!(so_far, early, "up to {cut}");
    }
    whole
}

fn head(method: &str, host: &str, path: &str) -> Summary {
    let host = (!host.is_empty()).then(|| host.into());
    Progress::Complete((method.into(), host, path.into()))
}

#[test]
fn requests() {
    for (bytes, expected) in [
        (
            "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n",
            head("GET", "example.org", "/"),
        ),
        (
            "GET /a?b HTTP/1.1\r\nHOST:EXAMPLE.org.:8080 \r\n\r\n",
            head("GET", "example.org", "/a"),
        ),
        (
            "GET /a#b?c HTTP/1.1\r\nAccept: */*\r\nhost: [::1]:80\r\n\r\n",
            head("GET", "[::1]", "/a"),
        ),
        (
            "POST /%2e/../a HTTP/1.1\r\nHost: a\r\nA:\r\n\r\nbody\n\n",
            head("POST", "a", "/%2e/../a"),
        ),
        ("GET / HTTP/1.0\r\n\r\n", head("GET", "", "/")),
        ("GET / HTTP/1.0\r\nHost: a\r\n\r\n", head("GET", "a", "/")),
        (
            "PROPFIND / HTTP/1.1\r\nHost: a\r\nX: \u{e4}\t\r\n\r\n",
            head("PROPFIND", "a", "/"),
        ),
        (
            "GET /\u{e4} HTTP/1.1\r\nHost: a\r\n\r\n",
            head("GET", "a", "/\u{e4}"),
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
            head("OPTIONS", "a", ""),
        ),
        (
            "GET http://a/b?c HTTP/1.1\r\nHost: a\r\n\r\n",
            head("GET", "a", "/b"),
        ),
        (
            "GET HTTP://A:80/b HTTP/1.1\r\nHost: a.\r\n\r\n",
            head("GET", "a", "/b"),
        ),
        (
            "GET http://a HTTP/1.1\r\nHost: a:80\r\n\r\n",
            head("GET", "a", ""),
        ),
        (
            "GET https://a:443?x HTTP/1.1\r\nHost: a\r\n\r\n",
            head("GET", "a", ""),
        ),
        (
            "GET http://a:81/ HTTP/1.1\r\nHost: a:81\r\n\r\n",
            head("GET", "a", "/"),
        ),
        (
            "GET foo://a:81/ HTTP/1.1\r\nHost: a:81\r\n\r\n",
            head("GET", "a", "/"),
        ),
        ("GET http://a/ HTTP/1.0\r\n\r\n", head("GET", "a", "/")),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
            head("CONNECT", "a", ""),
        ),
        (
            "CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n",
            head("CONNECT", "a", ""),
        ),
        (
            "BITS_POST / HTTP/1.1\r\nHost: a\r\n\r\n",
            head("BITS_POST", "a", "/"),
        ),
        ("x-2 / HTTP/1.1\r\nHost: a\r\n\r\n", head("x-2", "a", "/")),
        ("0 / HTTP/1.1\r\nHost: a\r\n\r\n", head("0", "a", "/")),
        ("1GET / HTTP/1.1\r\nHost: a\r\n\r\n", head("1GET", "a", "/")),
        ("a.b / HTTP/1.1\r\nHost: a\r\n\r\n", head("a.b", "a", "/")),
        ("$GET / HTTP/1.1\r\nHost: a\r\n\r\n", head("$GET", "a", "/")),
        (
            "!#$%&'*+-.^_`|~ / HTTP/1.1\r\nHost: a\r\n\r\n",
            head("!#$%&'*+-.^_`|~", "a", "/"),
        ),
    ] {
        assert_eq!(read_in_every_way(bytes.as_bytes()), expected, "{bytes:?}");
    }
}

/// RFC 9112 and RFC 9110 allow it, few clients do it.
#[test]
fn unusual_requests() {
    let lines = "\r\n".repeat(MOST_EMPTY_LINES);
    let fields = "a: b\r\n".repeat(2000);
    for (text, expected) in [
        (
            "\r\nGET /a HTTP/1.1\r\nHost: a\r\n\r\nrest".into(),
            head("GET", "a", "/a"),
        ),
        (
            format!("{lines}CONNECT a:1 HTTP/1.0\r\n\r\n"),
            head("CONNECT", "a", ""),
        ),
        (
            "GET / HTTP/1.2\r\nHost: a\r\n\r\n".into(),
            head("GET", "a", "/"),
        ),
        (
            "GET / HTTP/1.9\r\nHost: a\r\n\r\n".into(),
            head("GET", "a", "/"),
        ),
        // The target has no authority.
        (
            "GET / HTTP/1.1\r\nHost:\r\n\r\n".into(),
            head("GET", "", "/"),
        ),
        (
            "OPTIONS * HTTP/1.1\r\nHost: \t \r\n\r\n".into(),
            head("OPTIONS", "", ""),
        ),
        (
            "GET / HTTP/1.0\r\nHost:\r\n\r\n".into(),
            head("GET", "", "/"),
        ),
        (
            format!("GET / HTTP/1.1\r\n{fields}Host: a\r\n{fields}\r\n"),
            head("GET", "a", "/"),
        ),
        (
            "GET / HTTP/1.1\r\nHost: a!$&'()*+;=~.example\r\n\r\n".into(),
            head("GET", "a!$&'()*+;=~.example", "/"),
        ),
        (
            "GET http://m%C3%A4rz.example/ HTTP/1.1\r\nHost: M%c3%a4rz.example:80\r\n\r\n".into(),
            head("GET", "m%c3%a4rz.example", "/"),
        ),
    ] {
        let text: String = text;
        let bytes = text.as_bytes();
        assert_eq!(read(bytes), expected, "{text:?}");
        if bytes.len() < 1000 {
            assert_eq!(read_in_every_way(bytes), expected, "{text:?}");
        }
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        let Progress::Complete(head) = reader.read(bytes) else {
            panic!("{text:?}");
        };
        assert_eq!(head.length_bytes(), text.trim_end_matches("rest").len());
    }
}

#[test]
fn requests_that_servers_read_in_different_ways_are_broken() {
    let request = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n\r\n");
    let get = |fields: &str| request("GET / HTTP/1.1", fields);
    for (text, fault) in [
        (get("Host: a\r\nHost: a"), TWO_HOSTS),
        (get("Host: a\r\nhOST: b"), TWO_HOSTS),
        (request("GET / HTTP/1.0", "Host: a\r\nHost: b"), TWO_HOSTS),
        (request("GET http://b/ HTTP/1.1", "Host: a"), OTHER_HOST),
        (request("GET http://a:81/ HTTP/1.1", "Host: a"), OTHER_HOST),
        (request("GET http://a/ HTTP/1.1", "Host: a:81"), OTHER_HOST),
        (request("GET https://a/ HTTP/1.1", "Host: a:80"), OTHER_HOST),
        (request("GET foo://a/ HTTP/1.1", "Host: a:80"), OTHER_HOST),
        (request("CONNECT a:443 HTTP/1.1", "Host: b:443"), OTHER_HOST),
        (request("CONNECT a:443 HTTP/1.1", "Host: a:444"), OTHER_HOST),
        (get("Accept: x"), NO_HOST),
        (request("GET http://a/ HTTP/1.1", "Accept: x"), NO_HOST),
        (get("Host:\r\nHost: a"), TWO_HOSTS),
        (get("Host:\r\nHost:"), TWO_HOSTS),
        (request("GET http://a/ HTTP/1.1", "Host:"), OTHER_HOST),
        (request("GET http://a/ HTTP/1.0", "Host:"), OTHER_HOST),
        (request("CONNECT a:443 HTTP/1.1", "Host:"), OTHER_HOST),
        (get("Host: :80"), HOST),
        (get("Host: ."), HOST),
        (get("Host: a..b"), HOST),
        (get("Host: a,b\r\nHost: a"), TWO_HOSTS),
        (get("Host: a%2c"), HOST),
        (get("Host: a%2f"), HOST),
        (get("Host: a%00"), HOST),
        (get("Host: a%"), HOST),
        (get("Host: a%c3"), HOST),
        (request("GET http://a%2f/ HTTP/1.1", "Host: a"), TARGET),
        (request("GET http://a,b/ HTTP/1.1", "Host: a"), OTHER_HOST),
        (get("Host: a b"), HOST),
        (get("Host: a, b"), HOST),
        (get("Host: a@b"), HOST),
        (get("Host: a/b"), HOST),
        (get("Host: a:b"), HOST),
        (get("Host: a:65536"), HOST),
        (get("Host: [v1.a]"), HOST),
        (get("Host: [fe80::1%eth0]"), HOST),
        (get("Host: m\u{e4}rz.example"), HOST),
        (get("Host: a\u{e4}"), HOST),
        (request("GET / HTTP/1.0", "Host: a b"), HOST),
        (get("Host: a\nHost: b"), BARE_LF),
        (get("Host: a\n"), BARE_LF),
        ("GET / HTTP/1.1\nHost: a\n\n".into(), BARE_LF),
        ("get / http/1.1\nHost: a\n\n".into(), BARE_LF),
        ("FOO / HTTP/1.1\n".into(), BARE_LF),
        (get("Host: a\rHost: b"), BARE_CR),
        (get("Host: a\r\r\n"), BARE_CR),
        ("GET / HTTP/1.1\rHost: a\r\n".into(), BARE_CR),
        ("GET / HTTP/1.1\r\r\n".into(), BARE_CR),
        (get("Host: a\r\n b"), FOLDED),
        (get("Host: a\r\n\tb: c"), FOLDED),
        (get(" Host: a"), FOLDED),
        (get("Host: a\0"), CONTROL_BYTE),
        (get("Host: a\x7f"), CONTROL_BYTE),
        (get("X: \x1b[2J\r\nHost: a"), CONTROL_BYTE),
        (request("GET /\0 HTTP/1.1", "Host: a"), CONTROL_BYTE),
        (request("FOO / HTTP/1.1\0", "Host: a"), CONTROL_BYTE),
        (get("Host : a"), FIELD),
        (get("Host\t: a"), FIELD),
        (get(": a\r\nHost: a"), FIELD),
        (get("Host: a\r\nHost"), FIELD),
        (get("Host: a\r\nX(Y): b"), FIELD),
        (get("H\u{f6}st: a"), FIELD),
        (get(&"Host: a\r\n".repeat(129)), TWO_HOSTS),
        (request("GET  / HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("GET / HTTP/1.1 ", "Host: a"), REQUEST_LINE),
        (request("GET / /b HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("GET /\t HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("GET\t / HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("GET\t/ HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("1GET  / HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("a.b / HTTP/1.1", "Host: a\r\nHost: b"), TWO_HOSTS),
        (request("FOO /\tHTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("GET\r/ HTTP/1.1", "Host: a"), BARE_CR),
        (request("FOO\r/\rHTTP/1.1", "Host: a"), BARE_CR),
        (request("GET / HTTP/1.1\x0b", "Host: a"), REQUEST_LINE),
        (request("GET\t/\0 HTTP/1.1", "Host: a"), CONTROL_BYTE),
        (request("GET HTTP/1.1", "Host: a"), REQUEST_LINE),
        (request("GET / http/1.1", "Host: a"), VERSION),
        (request("GET / HTTP/1.2", "Accept: x"), NO_HOST),
        (request("GET / HTTP/1.", "Host: a"), VERSION),
        (request("GET / HTTP/1.x", "Host: a"), VERSION),
        (request("GET / HTTP/0.9", "Host: a"), VERSION),
        (request("GET / HTTP/2.0", "Host: a"), VERSION),
        (request("GET /", "Host: a"), VERSION),
        (request("\r\nGET http://a/b", "Host: a"), VERSION),
        (request("GET \t/a ", "Host: a"), VERSION),
        ("GET /\nHost: a\n\n".into(), VERSION),
        (request("PRI * HTTP/2.0", "Host: a"), VERSION),
        (request("PRI * HTTP/2.0", "\r\nTM"), VERSION),
        (request("\r\nPRI * HTTP/2.0", "\r\nSM"), VERSION),
        (request("GET / HTTP/1.10", "Host: a"), VERSION),
        (request("GET example.org HTTP/1.1", "Host: a"), TARGET),
        (request("GET * HTTP/1.1", "Host: a"), TARGET),
        (request("GET a@b://c HTTP/1.1", "Host: c"), TARGET),
        (request("GET http://u@a/ HTTP/1.1", "Host: a"), TARGET),
        (request("GET http:/// HTTP/1.1", "Host: a"), TARGET),
        (request("GET file:///x HTTP/1.1", "Host: a"), TARGET),
        (request("GET file:///x HTTP/1.1", "Host:"), TARGET),
        (request("GET http://[v1.a]/ HTTP/1.1", "Host: a"), TARGET),
        (request("GET http://a:b/ HTTP/1.1", "Host: a"), TARGET),
        (request("CONNECT a HTTP/1.1", "Host: a"), TARGET),
        (request("CONNECT /a:1 HTTP/1.1", "Host: a"), TARGET),
        (format!("\n{}", get("Host: a")), EMPTY_LINES),
        (format!("\n\n{}", get("Host: a")), EMPTY_LINES),
        (format!("\r{}", get("Host: a")), EMPTY_LINES),
        (format!("\r\n\n{}", get("Host: a")), EMPTY_LINES),
        (format!("\n\r\n{}", get("Host: a")), EMPTY_LINES),
        (format!("\r\r\n\n{}", get("Host: a")), EMPTY_LINES),
        (
            "\r\n".repeat(MOST_EMPTY_LINES + 1) + &get("Host: a"),
            EMPTY_LINES,
        ),
    ] {
        let expected = Progress::Broken(fault);
        assert_eq!(read_in_every_way(text.as_bytes()), expected, "{text:?}");
    }
    let not_text = b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n";
    assert_eq!(read_in_every_way(not_text), Progress::Broken(TARGET));
}

/// Lenient servers split a request line at any of these bytes, and skip them before it. Then they read the Host
/// of a request that took a route for other protocols.
#[test]
fn whitespace_that_is_no_space_makes_no_other_protocol() {
    for byte in [
        b'\t', 0x0b, 0x0c, b'\r', 0x1c, 0x1d, 0x1e, 0x1f, b' ', 0x85, 0xa0,
    ] {
        for method in ["GET", "PROPFIND", "FOO", "0"] {
            for [before, first, second, behind] in [
                ["", "?", " ", ""],
                ["", " ", "?", ""],
                ["", "?", "?", ""],
                ["", " ?", " ", ""],
                ["", " ", " ", "?"],
                ["?", " ", " ", ""],
                ["\r\n?", " ", " ", ""],
                ["?\r\n", " ", " ", ""],
                ["?", "?", "?", "?"],
            ] {
                let text =
                    format!("{before}{method}{first}/{second}HTTP/1.1{behind}\r\nHost: a\r\n\r\n");
                let place = |it| if it == b'?' { byte } else { it };
                let bytes: Vec<_> = text.bytes().map(place).collect();
                let answer = read_in_every_way(&bytes);
                let shown = bytes.escape_ascii();
                match bytes == format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes() {
                    true => assert_eq!(answer, head(method, "a", "/"), "{shown}"),
                    false => assert!(matches!(answer, Progress::Broken(_)), "{shown}: {answer:?}"),
                }
            }
        }
    }
    // Whitespace of Unicode before the version.
    for space in ["\u{85}", "\u{a0}", "\u{2028}", "\u{3000}"] {
        let text = format!("FOO /{space}HTTP/1.1\r\nHost: a\r\n\r\n");
        let answer = read_in_every_way(text.as_bytes());
        assert_eq!(answer, Progress::Broken(REQUEST_LINE), "{text:?}");
    }
}

/// A request of HTTP/0.9 for a server that does not split its target there, or for one that does.
#[test]
fn no_byte_behind_the_target_makes_another_protocol_of_get() {
    let lines = (0..=u8::MAX)
        .filter(|byte| *byte != b'\n')
        .flat_map(|byte| {
            let one = |before: &[u8], behind: &[u8]| [before, &[byte], behind].concat();
            [
                one(b"GET http://a.example/", b"x"),
                one(b"GET http://a.example/", b""),
                one(b"GET /", b"x"),
                one(b"GET /", b" x"),
                one(b"GET / ", b"x"),
                one(b"GET\t/", b"x"),
            ]
        });
    let more = [
        "GET http://a.example/\u{e0}",
        "GET /\u{e0}/\u{e5}",
        "GET /\u{2028}x",
        "GET\u{a0}/x",
        "GET /a b",
        "GET /a b c",
        "GET http://a.example/ x",
    ];
    let more = more.map(|line| line.as_bytes().to_vec());
    for line in lines.chain(more).chain([b"GET\xa0/\xa0x".to_vec()]) {
        if line.starts_with("GET\u{a0}".as_bytes()) {
            // The first byte of the two is no whitespace, and no part of a method.
            assert_eq!(read(&line), Progress::Other);
            continue;
        }
        for end in ["\r\n", "\n", "\r\nHost: b.example\r\n\r\n"] {
            let bytes = [&line, end.as_bytes()].concat();
            let answer = read_in_every_way(&bytes);
            let shown = bytes.escape_ascii();
            assert!(matches!(answer, Progress::Broken(_)), "{shown}: {answer:?}");
        }
    }
}

/// Whatever follows, and whatever they are made of.
#[test]
fn more_blank_bytes_than_eight_empty_lines_have_are_broken() {
    for blank in [&b"\r\n"[..], b"\n", b"\r", b" ", b" \t\x0b\x0c\n"] {
        let blank = blank.repeat(100);
        assert_eq!(read(&blank[..MOST_BLANK_BYTES]), Progress::More);
        let too_many = &blank[..=MOST_BLANK_BYTES];
        assert_eq!(read_in_every_way(too_many), Progress::Broken(EMPTY_LINES));
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        assert_eq!(reader.read(&blank), Progress::Broken(EMPTY_LINES));
        assert!(reader.looks <= MOST_BLANK_BYTES + 1, "{}", reader.looks);
    }
    let blank = b"\r\n".repeat(4);
    let mut reader = RequestHeadReader::new(blank.len());
    assert_eq!(reader.read(&blank), Progress::Broken(TOO_LONG));
}

#[test]
fn other_protocols_are_no_http() {
    for bytes in [
        &b"\x16"[..],
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"SSH-2-OpenSSH_9\r\n",
        b"SSH-2-OpenSSH_9 Debian-2\r\n",
        HTTP2_PREFACE,
        b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
        b"EHLO example.org\r\n",
        b"NICK a\n",
        b"OPTIONS rtsp://a/b RTSP/1.0\r\n",
        b"GET key\r\n",
        b"GET key /a\r\n",
        b"PUT /a\r\n",
        b"HTTP/",
        b" HTTP/",
        b"\r\nquit\r\n",
        b" {",
        b"\n  \"",
        b"\x1f\x8b",
        b"\0",
        b"A B\0",
        b"{",
        b"CNXN\0",
        b"CNXN....\0",
        // Tokens are judged with their line.
        b"0\r\n",
        b"*1\r\n",
        b"CONNECT\r\n",
        b"quit\n",
        // git
        b"0033git-upload-pack /project.git\0",
        b"0 hello\n",
        b"\r\n0 hello\r\n",
        b"a.b /\r\n",
        // No tokens.
        b"a(",
        b"a@",
        b"a/",
        b"a:",
        b"a\"",
        b"a\x80",
    ] {
        let shown = bytes.escape_ascii();
        assert_eq!(read_in_every_way(bytes), Progress::Other, "{shown}");
        // Without its last byte each of them could still be HTTP: the answer comes early.
        assert_eq!(read(&bytes[..bytes.len() - 1]), Progress::More, "{shown}");
    }
}

#[test]
fn a_head_is_as_long_as_the_limit_at_most() {
    let start = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    for (length, expected) in [
        (LIMIT_BYTES - 1, head("GET", "a", "/")),
        (LIMIT_BYTES, head("GET", "a", "/")),
        (LIMIT_BYTES + 1, Progress::Broken(TOO_LONG)),
    ] {
        let filler = "x".repeat(length - start.len() - 4);
        let text = format!("{start}{filler}\r\n\r\n");
        assert_eq!(text.len(), length);
        assert_eq!(read(text.as_bytes()), expected);
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        let halves = [length / 2, length - 1, length].map(|end| {
            let bytes = &text.as_bytes()[..end];
            summary(reader.read(bytes), bytes)
        });
        assert_eq!(halves[2], expected);
    }
    let endless = vec![b'x'; LIMIT_BYTES];
    let line = [b"GET /", &endless[..]].concat();
    assert_eq!(read(&line), Progress::Broken(TOO_LONG));
    assert_eq!(read(&endless), Progress::Other);
    assert_eq!(read(&endless[1..]), Progress::More);
    // What is no request for sure is none at the limit.
    for text in [&b"A b"[..], b"A b c", b"\r\nA b"] {
        let line = [text, &endless].concat();
        assert_eq!(read(&line), Progress::Other);
    }
    for text in [&b"GET b"[..], b"A /", b"A http://", b"A b HTTP/"] {
        let line = [text, &endless].concat();
        assert_eq!(read(&line), Progress::Broken(TOO_LONG));
    }
    assert_eq!(
        RequestHeadReader::new(2).read(b"GET /"),
        Progress::Broken(TOO_LONG)
    );
    // Servers take methods that nobody has heard of.
    let method = "A-METHOD-".repeat(100);
    let text = format!("{method} / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(read(text.as_bytes()), head(&method, "a", "/"));
}

#[test]
fn a_head_that_comes_byte_by_byte_costs_linear_time() {
    let start = "GET / HTTP/1.1\r\nHost: a\r\n";
    let fields = "X: y\r\n".repeat(100);
    let long = "x".repeat(LIMIT_BYTES - start.len() - fields.len() - 7);
    let text = format!("{start}{fields}Z: {long}\r\n\r\n");
    let mut reader = RequestHeadReader::new(LIMIT_BYTES);
    for end in 0..text.len() {
        assert_eq!(reader.read(&text.as_bytes()[..end]), Progress::More);
    }
    let complete = reader.read(text.as_bytes());
    assert!(matches!(complete, Progress::Complete(_)), "{complete:?}");
    // And httparse looks at each byte once more, at the end.
    assert_eq!(reader.looks, text.len());
}

#[test]
fn half_a_request_is_told_from_what_may_become_one() {
    for (bytes, is_request) in [
        (&b"G"[..], true),
        (b"GET", true),
        (b"GET ", true),
        (b"GET\t", true),
        (b"GET hello", true),
        (b"\r\nG", true),
        (b"CONNECT a", true),
        (b"FOO /", true),
        (b"FOO http://", true),
        (b"FOO a HTTP/", true),
        (b"FOO / HTTP/1.1\r\n", true),
        (b"GET / HTTP/1.1\r\nHost: a\r\n", true),
        // Blank bytes alone are half of one.
        (b"\r\n", true),
        (b"\r", true),
        (b"\n\n", true),
        (b"\r\n\r\n", true),
        (b" ", true),
        (b"\r\nFOO", false),
        (b" FOO", false),
        (b"PROPF", true),
        (b"PROPFIND", true),
        (b"VERSION-", true),
        (b"REPORT a", true),
        (b"REPORT\x0ca", true),
        (b"GET\r", true),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r", true),
        (b"FOO", false),
        (b"FOO\r", false),
        (b"FOO\x0b", false),
        (b"FOO\x0b/", true),
        (b"FOO \t /", true),
        (b"FOO a /", false),
        (b"FOO a\x0cHTTP/", true),
        (b"0", false),
        (b"a.b", false),
        (b"CNXN....", false),
        (b"0 hello", false),
        (b"0 /", true),
        (b"FOO\t/", true),
        (b"FOO\thttp://", true),
        (b"FOO\ta", false),
        (b"GETS", false),
        (b"get", false),
        (b"HELLO", false),
        (b"FOO ", false),
        (b"FOO a", false),
        (b"FOO a b c", false),
        (b"FOO http:/", false),
    ] {
        let shown = bytes.escape_ascii();
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        assert_eq!(reader.read(bytes), Progress::More, "{shown}");
        assert_eq!(reader.is_request(bytes), is_request, "{shown}");
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        for end in 1..=bytes.len() {
            assert_eq!(reader.read(&bytes[..end]), Progress::More, "{shown}");
        }
        assert_eq!(reader.is_request(bytes), is_request, "{shown}");
    }
}

/// Nobody sends half of one by chance.
#[test]
fn the_beginning_of_a_registered_method_is_half_a_request() {
    for method in [
        "ACL",
        "BASELINE-CONTROL",
        "BIND",
        "CHECKIN",
        "CHECKOUT",
        "CONNECT",
        "COPY",
        "DELETE",
        "GET",
        "HEAD",
        "LABEL",
        "LINK",
        "LOCK",
        "MERGE",
        "MKACTIVITY",
        "MKCALENDAR",
        "MKCOL",
        "MKREDIRECTREF",
        "MKWORKSPACE",
        "MOVE",
        "OPTIONS",
        "ORDERPATCH",
        "PATCH",
        "POST",
        "PRI",
        "PROPFIND",
        "PROPPATCH",
        "PUT",
        "QUERY",
        "REBIND",
        "REPORT",
        "SEARCH",
        "TRACE",
        "UNBIND",
        "UNCHECKOUT",
        "UNLINK",
        "UNLOCK",
        "UPDATE",
        "UPDATEREDIRECTREF",
        "VERSION-CONTROL",
    ] {
        let line = format!("{method} a");
        for end in 1..=line.len() {
            let bytes = &line.as_bytes()[..end];
            let mut reader = RequestHeadReader::new(LIMIT_BYTES);
            assert_eq!(reader.read(bytes), Progress::More);
            assert!(reader.is_request(bytes), "{}", &line[..end]);
        }
        let other = format!("{method}X");
        let mut reader = RequestHeadReader::new(LIMIT_BYTES);
        assert_eq!(reader.read(other.as_bytes()), Progress::More);
        assert!(!reader.is_request(other.as_bytes()), "{other}");
    }
}
