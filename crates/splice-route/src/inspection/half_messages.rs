//! Messages that end too early, and those that are not what a route asks for.

use super::tests::*;
use super::tls_tests::HELLO;
use super::*;
use crate::POSTGRES_SSL_REQUEST;

fn any() -> Conditions {
    Conditions::default()
}

#[test]
fn half_a_message_never_falls_through() {
    let cases: [(Conditions, &[u8]); 9] = [
        (host("a"), b"GET / HTTP/1.1\r\nHost: b\r\n"),
        (protocol(Protocol::Http1), b"G"),
        (protocol(Protocol::Http2), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"),
        (protocol(Protocol::Ssh), b"SSH-2.0"),
        (protocol(Protocol::Rdp), b"\x03\0"),
        (protocol(Protocol::Socks), b"\x05"),
        (protocol(Protocol::Connect), b"CONNECT"),
        (protocol(Protocol::Postgres), &POSTGRES_SSL_REQUEST[..7]),
        (starts_with(b"abc"), b"ab"),
    ];
    for (conditions, bytes) in cases {
        let routes = [conditions, any(), silent()];
        for (waiting, expected) in [
            (Waiting::ForMore, Decision::More),
            (Waiting::TimedOut, Decision::Reset(TOO_LATE)),
            (Waiting::Ended, Decision::Reset(INCOMPLETE)),
        ] {
            let decision = decide_in_every_way(&routes, bytes, waiting);
            assert_eq!(decision, expected, "{routes:?}");
        }
    }
}

#[test]
fn what_is_no_request_takes_a_later_route_at_once() {
    let get = Conditions {
        http_methods: Some(vec!["GET".into()]),
        ..host("a")
    };
    for conditions in [host("a"), protocol(Protocol::Http1), path("/"), get] {
        let routes = [conditions, silent(), any()];
        for bytes in [
            &b"0 hello\r\n"[..],
            b"CNXN\0\0\0\x01\0\0\x10\0",
            b"CNXN....\0",
            b"*1\r\n$4\r\nPING\r\n",
            b"{\"jsonrpc\":",
            b"\r\n{",
            b"HELLO world\r\n",
            b"\x10\x0c\0\x04MQTT",
            STARTUP,
        ] {
            let decision = decide_in_every_way(&routes, bytes, Waiting::ForMore);
            assert_eq!(decision, Decision::Route(2), "{}", bytes.escape_ascii());
        }
    }
}

/// Any token may become a method. One that has not by the deadline is another protocol's.
#[test]
fn a_word_that_may_become_a_method_takes_a_later_route_at_the_deadline() {
    use Waiting::{Ended, ForMore, TimedOut};
    for bytes in [
        &b"HELLO"[..],
        b"HELLO world",
        b"W",
        b"quit",
        b"quit\r",
        b"GETX",
        b"\r\nHELLO ",
        b"CNXN",
        b"CNXN....",
        b"0",
        b"0 hello",
        b"a.b",
    ] {
        let shown = bytes.escape_ascii();
        let routes = [host("a"), sni("a"), silent(), method("GET"), any()];
        let decide = |routes: &[_], waiting| decide_in_every_way(routes, bytes, waiting);
        assert_eq!(decide(&routes, ForMore), Decision::More, "{shown}");
        for waiting in [TimedOut, Ended] {
            assert_eq!(decide(&routes, waiting), Decision::Route(4), "{shown}");
            // A route in between that its bytes are enough for.
            let routes = [host("a"), starts_with(&bytes[..1]), any()];
            assert_eq!(decide(&routes, waiting), Decision::Route(1), "{shown}");
            // One that they are not enough for still ends the connection.
            let longer = [bytes, b"more"].concat();
            let routes = [host("a"), starts_with(&longer), any()];
            let decision = decide(&routes, waiting);
            assert!(matches!(decision, Decision::Reset(_)), "{shown}");
        }
        // Without such a route the client is told the same as before.
        let routes = [host("a"), silent()];
        for (waiting, fault) in [(TimedOut, TOO_LATE), (Ended, INCOMPLETE)] {
            assert_eq!(decide(&routes, waiting), Decision::Reset(fault), "{shown}");
        }
    }
    // What is half a request for sure.
    for bytes in [
        &b"GE"[..],
        b"\r\nGE",
        b"GET hello",
        b"FOO /",
        b"0 /",
        b"FOO http://a",
        b"PROPF",
        b"PROPFIND",
        b"PROPFIND h",
        b"REPORT ",
        b"GET\r",
        b"PROPFIND\x0c",
        b"PRI * HTTP/2.0\r\n",
        b"HELLO world HTTP/1.1\r\n",
        &HTTP[..HTTP.len() - 1],
    ] {
        for (waiting, fault) in [(TimedOut, TOO_LATE), (Ended, INCOMPLETE)] {
            let decision = decide_in_every_way(&[host("a"), any()], bytes, waiting);
            assert_eq!(decision, Decision::Reset(fault), "{}", bytes.escape_ascii());
        }
    }
    for end in [1, 5, 100, HELLO.len() - 1] {
        let routes = [host("a"), sni("a"), any()];
        let decision = decide_in_every_way(&routes, &HELLO[..end], TimedOut);
        assert_eq!(decision, Decision::Reset(TOO_LATE), "{end}");
    }
    // A stream of text without end is decided when it fills the limit.
    let text = [b"HELLO ", &[b'x'; 100][..]].concat();
    let decide = |bytes: &[u8]| {
        let routes = [host("a"), any()];
        Inspection::new(64).decide(&routes, &arrival(), bytes, ForMore)
    };
    assert_eq!(decide(&text[..63]), Decision::More);
    assert_eq!(decide(&text[..64]), Decision::Route(1));
    assert_eq!(decide(&text), Decision::Route(1));
}

/// A request may begin with them, so a client could choose a later route by a pause behind them.
#[test]
fn blank_bytes_alone_are_half_a_request() {
    use Waiting::{Ended, ForMore, TimedOut};
    let routes = [host("a"), path("/"), protocol(Protocol::Connect)];
    let http2 = protocol(Protocol::Http2);
    for bytes in [
        &b"\r"[..],
        b"\n",
        b"\r\n",
        b"\n\n",
        b"\r\n\r\n\r",
        b" ",
        b"\x0b",
    ] {
        let shown = bytes.escape_ascii();
        for conditions in &routes {
            let routes = [http2.clone(), conditions.clone(), silent(), any()];
            for (waiting, expected) in [
                (ForMore, Decision::More),
                (TimedOut, Decision::Reset(TOO_LATE)),
                (Ended, Decision::Reset(INCOMPLETE)),
            ] {
                let decision = decide_in_every_way(&routes, bytes, waiting);
                assert_eq!(decision, expected, "{shown} {conditions:?}");
            }
        }
        // Without a condition that they may meet they are any other bytes.
        let decision = decide_in_every_way(&[http2.clone(), any()], bytes, ForMore);
        assert_eq!(decision, Decision::Route(1), "{shown}");
    }
    // Too many of them do not wait for the end of the time, and are no message of another protocol.
    let lines = b"\r\n".repeat(32);
    for limit_bytes in [16, 17, 64, LIMIT_BYTES] {
        for waiting in [ForMore, TimedOut, Ended] {
            let routes = [host("a"), any()];
            let decision =
                Inspection::new(limit_bytes).decide(&routes, &arrival(), &lines, waiting);
            assert!(matches!(decision, Decision::Reset(_)), "{decision:?}");
        }
    }
    // A client of CONNECT is told so.
    let routes = [protocol(Protocol::Connect), any()];
    let decision = decide_in_every_way(&routes, &lines, ForMore);
    assert_eq!(decision, Decision::Route(0));
}

/// A method that nobody has heard of is no way past a route.
#[test]
fn a_request_with_an_unusual_method_is_a_request() {
    for method in ["1GET", "a.b", "$GET", "0", "*", "CNXN...."] {
        let routes = [host("a"), any()];
        let decide = |host: &str| {
            let bytes = format!("{method} / HTTP/1.1\r\nHost: {host}\r\n\r\n");
            decide_in_every_way(&routes, bytes.as_bytes(), Waiting::ForMore)
        };
        assert_eq!(decide("a"), Decision::Route(0), "{method}");
        assert_eq!(decide("b"), Decision::Route(1), "{method}");
        let decision = decide("a\r\nHost: b");
        assert!(matches!(decision, Decision::Reset(_)), "{method}");
    }
}

#[test]
fn a_broken_message_never_falls_through() {
    let two_hosts = b"GET / HTTP/1.1\r\nHost: b\r\nHost: a\r\n\r\n";
    let decision = decide_in_every_way(&[host("a"), any()], two_hosts, Waiting::ForMore);
    assert!(matches!(decision, Decision::Reset(_)), "{decision:?}");
    // Only a condition on the message makes it one.
    for routes in [
        &[any()][..],
        &[protocol(Protocol::Ssh), any()],
        &[starts_with(b"GET "), host("a")],
    ] {
        let decision = decide_in_every_way(routes, two_hosts, Waiting::ForMore);
        assert!(matches!(decision, Decision::Route(_)), "{routes:?}");
    }
}
