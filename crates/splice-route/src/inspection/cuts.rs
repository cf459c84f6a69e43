//! The decision depends on the bytes, not on how they were cut.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::tests::*;
use super::tls_tests::{DIRECT, HELLO};
use super::*;

/// Pieces of messages, right and wrong, that strategies put together.
const PIECES: [&[u8]; 42] = [
    b"GET / HTTP/1.1",
    b"get /x HTTP/1.0",
    b"FOO http://a/ HTTP/1.1",
    b"1GET / HTTP/1.1",
    b"a.b",
    b"CONNECT\t",
    b"CONNECT\r",
    b"PROPFIND",
    b"\x0b/\x0cHTTP/1.1",
    b"\r\n\r\n\r\n\r\n\r\n\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1",
    b"PRI * HTTP/2.0\r\n\r\n",
    b"SM\r\n\r\n",
    b"\r\n",
    b"\r\n\r\n",
    b"\n",
    b"\r",
    b"Host: a",
    b"Host: b:80\r\n",
    b"hOST : a\r\n",
    b" folded",
    b"X: \t\xff",
    b"Host:\r\n",
    b"GET / HTTP/1.2",
    b"HELLO",
    b"CNXN....",
    b"0 hello",
    b"SSH-2.0-",
    b"SSH-1.",
    b"\x03\0\0\x0b\x06\xe0",
    b"\0\0\0\0\0",
    b"\x05\x01\0",
    b"\x04\x01",
    b"\0\0\0\x08\x04\xd2\x16",
    b"\x2f",
    b"\x30",
    b"\0\0\0\x10\0\x03\0\0user",
    TLS_START,
    b"\x16",
    b"\0",
    b"x",
    b" ",
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        9 => select(&PIECES[..]).prop_map(<[u8]>::to_vec),
        1 => any::<Vec<u8>>(),
    ];
    prop_oneof![
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat()),
        messages(),
    ]
}

/// Whole messages with one byte changed, left out or added.
fn messages() -> impl Strategy<Value = Vec<u8>> {
    let whole = select(vec![
        HELLO.to_vec(),
        DIRECT.to_vec(),
        HTTP.to_vec(),
        STARTUP.to_vec(),
        b"GET http://a/x HTTP/1.1\r\nHost: a:80\r\nX: y\r\n\r\nmore".to_vec(),
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0".to_vec(),
    ]);
    let change = (any::<prop::sample::Index>(), 0..4, any::<u8>());
    (whole, change).prop_map(|(mut bytes, (index, what, byte))| {
        let at = index.index(bytes.len());
        match what {
            0 => bytes[at] = byte,
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, byte),
            _ => {}
        }
        bytes
    })
}

fn routes() -> impl Strategy<Value = Vec<Conditions>> {
    let with = |conditions: Conditions, pattern: &[u8]| Conditions {
        starts_with: Some(vec![pattern.to_vec()]),
        ..conditions
    };
    let all = vec![
        protocol(Protocol::Tls),
        protocol(Protocol::Http1),
        protocol(Protocol::Http2),
        protocol(Protocol::Postgres),
        protocol(Protocol::Ssh),
        protocol(Protocol::Rdp),
        protocol(Protocol::Socks),
        protocol(Protocol::Connect),
        sni("a"),
        sni("*.example.org"),
        postgres_for("db.example.org"),
        host("a"),
        host("*.example.org"),
        method("GET"),
        path("/x"),
        starts_with(b"GET "),
        starts_with(b"x"),
        with(host("b"), b"GET / HTTP/1.1\r\n"),
        clients("11.0.0.0/8"),
        silent(),
        Conditions::default(),
    ];
    subsequence(all, 1..8).prop_shuffle()
}

/// More where `PROPTEST_CASES` asks for more, as `make soak` does.
fn at_least(cases: u32) -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig {
        cases: asked.cases.max(cases),
        ..asked
    }
}

proptest! {
    #![proptest_config(at_least(2000))]

    #[test]
    fn cuts_do_not_matter(
        routes in routes(),
        bytes in bytes(),
        waiting in select(vec![Waiting::ForMore, Waiting::TimedOut, Waiting::Ended]),
    ) {
        // Except for a request that the proxy answers, behind which nothing may be pipelined.
        if !bytes.starts_with(b"\0\0\0\x08\x04\xd2\x16") {
            decide_in_every_way(&routes, &bytes, waiting);
        }
    }

    #[test]
    fn half_a_request_takes_the_route_without_conditions(
        end in 0..HTTP.len(),
        empty_lines in 0..=8_usize,
        waiting in select(vec![Waiting::TimedOut, Waiting::Ended]),
    ) {
        let bytes = [&b"\r\n".repeat(empty_lines), &HTTP[..end]].concat();
        // Silence is no half of anything.
        prop_assume!(!bytes.is_empty());
        for conditions in [host("a"), method("PUT"), path("/x"), protocol(Protocol::Http1)] {
            let decision = decide_in_every_way(&[conditions, Conditions::default()], &bytes, waiting);
            prop_assert_eq!(decision, Decision::Route(1));
        }
    }

    #[test]
    fn nothing_makes_the_proxy_agree_to_tls_twice(chunks in prop::collection::vec(bytes(), 1..6)) {
        let routes = [postgres_for("a"), protocol(Protocol::Postgres), Conditions::default()];
        let mut inspection = Inspection::new(LIMIT_BYTES);
        let mut sent = Vec::new();
        let mut replies = Vec::new();
        for chunk in chunks {
            sent.extend(chunk);
            match inspection.decide(&routes, &arrival(), &sent, Waiting::ForMore) {
                Decision::Reply(reply) => replies.extend(reply),
                Decision::More => {}
                Decision::Route(_) | Decision::NoRoute | Decision::Reset(_) => break,
            }
            prop_assert!(inspection.bytes_for_proxy() <= sent.len());
        }
        prop_assert!([&b""[..], b"N", b"S", b"NS"].contains(&&*replies));
    }
}
