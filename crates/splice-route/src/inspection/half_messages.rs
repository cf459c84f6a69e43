//! Messages that end too early, and those that are not what a route asks for.

use super::tests::*;
use super::tls_tests::HELLO;
use super::*;
use crate::POSTGRES_SSL_REQUEST;
use crate::conditions::TlsVersion;

fn any() -> Conditions {
    Conditions::default()
}

/// Whatever the bytes could have become. A route that needs none is taken, in order, and one whose condition on the
/// connection does not hold is passed over.
#[test]
fn half_a_message_takes_a_route_that_needs_no_bytes_at_the_deadline() {
    let here = |port| Conditions {
        local_ports: Some(vec![port]),
        ..any()
    };
    let with = |conditions: Conditions| Conditions {
        clients: clients("10.0.0.0/8").clients,
        ..conditions
    };
    let hello = &HELLO[..HELLO.len() - 1];
    let newest = Conditions {
        tls_versions: Some(vec![TlsVersion::Tls13]),
        ..any()
    };
    let h2 = Conditions {
        alpn: Some(vec![b"h2".to_vec()]),
        ..any()
    };
    let cases: [(Conditions, &[u8]); 19] = [
        (host("a"), b"GET / HTTP/1.1\r\nHost: b\r\n"),
        (host("a"), b"GET key"),
        (path("/"), b"GET"),
        (method("GET"), b"GE"),
        (protocol(Protocol::Http1), b"G"),
        (protocol(Protocol::Http2), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"),
        (protocol(Protocol::Ssh), b"SSH-2.0"),
        (protocol(Protocol::Rdp), b"\x03\0"),
        (protocol(Protocol::Socks), b"\x05"),
        (protocol(Protocol::Connect), b"CONNECT"),
        (protocol(Protocol::Postgres), &POSTGRES_SSL_REQUEST[..7]),
        (protocol(Protocol::Tls), &hello[..1]),
        (protocol(Protocol::Tls), hello),
        (sni("www.example.org"), hello),
        (newest, hello),
        (h2, hello),
        (postgres_for("a"), hello),
        (starts_with(b"abc"), b"ab"),
        (with(starts_with(b"abc")), b"ab"),
    ];
    for (conditions, bytes) in cases {
        for (last, taken) in [
            (&[any(), silent()][..], 1),
            (&[silent(), here(80), here(443), any()], 3),
            (&[clients("11.0.0.0/8"), clients("10.0.0.0/8"), any()], 2),
        ] {
            let routes = [std::slice::from_ref(&conditions), last].concat();
            for (waiting, expected) in [
                (Waiting::ForMore, Decision::More),
                (Waiting::TimedOut, Decision::Route(taken)),
                (Waiting::Ended, Decision::Route(taken)),
            ] {
                let decision = decide_in_every_way(&routes, bytes, waiting);
                assert_eq!(decision, expected, "{routes:?}");
            }
        }
        // Without such a route the connection ends.
        let routes = [conditions, silent(), here(80), clients("11.0.0.0/8")];
        for (waiting, fault) in [(Waiting::TimedOut, TOO_LATE), (Waiting::Ended, INCOMPLETE)] {
            let decision = decide_in_every_way(&routes, bytes, waiting);
            assert_eq!(decision, Decision::Reset(fault), "{routes:?}");
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

/// A method that is registered or not, with what may be a target behind it, or nothing.
#[test]
fn a_word_that_may_become_a_request_takes_a_later_route_at_the_deadline() {
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
        b"GE",
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
        let shown = bytes.escape_ascii();
        let routes = [host("a"), sni("a"), silent(), method("GET"), any()];
        let decide = |routes: &[_], waiting| decide_in_every_way(routes, bytes, waiting);
        assert_eq!(decide(&routes, ForMore), Decision::More, "{shown}");
        for waiting in [TimedOut, Ended] {
            assert_eq!(decide(&routes, waiting), Decision::Route(4), "{shown}");
            // A route in between that its bytes are enough for.
            let routes = [host("a"), starts_with(&bytes[..1]), any()];
            assert_eq!(decide(&routes, waiting), Decision::Route(1), "{shown}");
            // One that they are not enough for is passed over.
            let longer = [bytes, b"more"].concat();
            let routes = [host("a"), starts_with(&longer), any()];
            assert_eq!(decide(&routes, waiting), Decision::Route(2), "{shown}");
        }
        let routes = [host("a"), silent()];
        for (waiting, fault) in [(TimedOut, TOO_LATE), (Ended, INCOMPLETE)] {
            assert_eq!(decide(&routes, waiting), Decision::Reset(fault), "{shown}");
        }
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

/// A request may begin with them, so they wait for the deadline.
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
                (TimedOut, Decision::Route(3)),
                (Ended, Decision::Route(3)),
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
