//! Conditions on a TLS hello, and PostgreSQL in front of one.

use super::tests::*;
use super::*;
use crate::POSTGRES_SSL_REQUEST;
use crate::conditions::{ServerName, TlsVersion};

/// For www.example.org, with ALPN h2 and http/1.1.
pub(super) const HELLO: &[u8] = include_bytes!("../../tests/clients/curl-tls.bin");
/// A request for TLS and a hello for db.example.org.
const PSQL: &[u8] = include_bytes!("../../tests/clients/psql-tls.bin");
/// For db.example.org, with ALPN postgresql.
pub(super) const DIRECT: &[u8] = include_bytes!("../../tests/clients/openssl-postgresql.bin");

fn alpn(name: &str) -> Conditions {
    Conditions {
        alpn: Some(vec![b"spdy/1".to_vec(), name.into()]),
        ..Conditions::default()
    }
}

fn version(version: TlsVersion) -> Conditions {
    Conditions {
        tls_versions: Some(vec![version]),
        ..Conditions::default()
    }
}

fn without_sni() -> Conditions {
    Conditions {
        sni: Some(vec![ServerName::None]),
        ..Conditions::default()
    }
}

#[test]
fn tls_conditions() {
    let both = |name, protocol| Conditions {
        alpn: alpn(protocol).alpn,
        ..sni(name)
    };
    for (conditions, holds) in [
        (sni("www.example.org"), true),
        (sni("*.Example.ORG"), true),
        (sni("example.org"), false),
        (without_sni(), false),
        (alpn("h2"), true),
        (alpn("H2"), false),
        (version(TlsVersion::Tls13), true),
        (version(TlsVersion::Tls12), false),
        (both("*.example.org", "http/1.1"), true),
        (both("*.example.org", "h3"), false),
        (both("example.org", "h2"), false),
        (protocol(Protocol::Tls), true),
        (protocol(Protocol::Http1), false),
        (protocol(Protocol::Postgres), false),
        (postgres_for("www.example.org"), false),
        (host("www.example.org"), false),
    ] {
        let routes = [conditions, Conditions::default()];
        let decision = decide_in_every_way(&routes, HELLO, Waiting::ForMore);
        let expected = Decision::Route(usize::from(!holds));
        assert_eq!(decision, expected, "{:?}", routes[0]);
    }
    let mut inspection = Inspection::new(LIMIT_BYTES);
    let routes = [protocol(Protocol::Tls)];
    inspection.decide(&routes, &arrival(), HELLO, Waiting::ForMore);
    assert_eq!(inspection.server_name(), Some("www.example.org"));
    assert!(inspection.hello().is_some_and(|hello| hello.offers(b"h2")));
}

#[test]
fn other_bytes_are_no_hello() {
    let routes = [sni("a"), without_sni(), Conditions::default()];
    for bytes in [HTTP, STARTUP, b"SSH-2.0-", b"\x15\x03\x01"] {
        let decision = decide_in_every_way(&routes, bytes, Waiting::ForMore);
        assert_eq!(decision, Decision::Route(2));
    }
}

#[test]
fn half_a_hello_is_neither_silence_nor_a_hello_without_a_name() {
    let routes = [sni("a"), without_sni(), silent(), Conditions::default()];
    for end in 1..HELLO.len() {
        for (waiting, fault) in [(Waiting::TimedOut, TOO_LATE), (Waiting::Ended, INCOMPLETE)] {
            for (count, expected) in [(4, Decision::Route(3)), (3, Decision::Reset(fault))] {
                let mut inspection = Inspection::new(LIMIT_BYTES);
                let bytes = &HELLO[..end];
                let mut ask =
                    |waiting| inspection.decide(&routes[..count], &arrival(), bytes, waiting);
                assert_eq!(ask(Waiting::ForMore), Decision::More);
                assert_eq!(ask(waiting), expected);
            }
        }
    }
}

#[test]
fn a_broken_hello_never_falls_through() {
    let routes = [sni("a"), without_sni(), Conditions::default()];
    // The length of the session id, which shifts everything behind it.
    let mut spoiled = HELLO.to_vec();
    spoiled[43] = 31;
    let decision = decide_in_every_way(&routes, &spoiled, Waiting::ForMore);
    assert!(matches!(decision, Decision::Reset(_)), "{decision:?}");
    // A limit that is too short for it.
    let mut inspection = Inspection::new(256);
    let decision = inspection.decide(&routes, &arrival(), HELLO, Waiting::ForMore);
    assert!(matches!(decision, Decision::Reset(_)), "{decision:?}");
}

/// Sends `bytes` one by one, and returns what the inspection has answered other than `More`.
fn talk(inspection: &mut Inspection, routes: &[Conditions], bytes: &[u8]) -> Vec<Decision> {
    (0..=bytes.len())
        .map(|end| inspection.decide(routes, &arrival(), &bytes[..end], Waiting::ForMore))
        .filter(|decision| *decision != Decision::More)
        .collect()
}

#[test]
fn postgres_takes_its_route_by_the_hello_behind_its_request() {
    let plain_tls = sni("db.example.org");
    let by_name = [
        plain_tls,
        postgres_for("other.example.org"),
        postgres_for("db.example.org"),
    ];
    let by_default = [
        postgres_for("other.example.org"),
        protocol(Protocol::Postgres),
    ];
    let elsewhere = [postgres_for("other.example.org"), Conditions::default()];
    let gssapi = [b"\0\0\0\x08\x04\xd2\x16\x30", PSQL].concat();
    for (routes, route) in [(&by_name[..], 2), (&by_default, 1), (&elsewhere, 1)] {
        for (bytes, replies, hello_at) in [
            (PSQL, vec![Decision::Reply(b"S")], 8),
            (
                &gssapi,
                vec![Decision::Reply(b"N"), Decision::Reply(b"S")],
                16,
            ),
        ] {
            let mut inspection = Inspection::new(LIMIT_BYTES);
            let decisions = talk(&mut inspection, routes, bytes);
            assert_eq!(decisions, [replies, vec![Decision::Route(route)]].concat());
            assert_eq!(inspection.server_name(), Some("db.example.org"));
            assert_eq!(inspection.bytes_for_proxy(), hello_at);
            assert!(inspection.is_postgres_tls());
        }
    }
}

#[test]
fn what_follows_an_agreed_request_for_tls_has_to_be_a_hello() {
    let routes = [postgres_for("other.example.org"), Conditions::default()];
    for (then, waiting, expected) in [
        (&b"\0"[..], Waiting::ForMore, Decision::Reset(NO_HELLO)),
        (STARTUP, Waiting::ForMore, Decision::Reset(NO_HELLO)),
        (
            &POSTGRES_SSL_REQUEST,
            Waiting::ForMore,
            Decision::Reset(NO_HELLO),
        ),
        (b"", Waiting::ForMore, Decision::More),
        // Its server is asked for TLS, too, and gets the rest of the hello.
        (b"", Waiting::TimedOut, Decision::Route(1)),
        (b"\x16", Waiting::TimedOut, Decision::Route(1)),
        (&HELLO[..100], Waiting::Ended, Decision::Route(1)),
    ] {
        let mut inspection = Inspection::new(LIMIT_BYTES);
        let decisions = talk(&mut inspection, &routes, &POSTGRES_SSL_REQUEST);
        assert_eq!(decisions, [Decision::Reply(b"S")]);
        let bytes = [&POSTGRES_SSL_REQUEST, then].concat();
        assert_eq!(
            inspection.decide(&routes, &arrival(), &bytes, waiting),
            expected
        );
    }
}

#[test]
fn a_route_that_its_client_rules_out_does_not_answer_postgres() {
    let elsewhere = Conditions {
        clients: clients("11.0.0.0/8").clients,
        ..postgres_for("db.example.org")
    };
    let routes = [elsewhere, protocol(Protocol::Postgres)];
    let mut inspection = Inspection::new(LIMIT_BYTES);
    let ssl = &POSTGRES_SSL_REQUEST;
    let decision = inspection.decide(&routes, &arrival(), ssl, Waiting::ForMore);
    assert_eq!(decision, Decision::Route(1));
    assert!(!inspection.is_postgres_tls());
}

#[test]
fn postgres_may_begin_with_its_hello() {
    for (conditions, holds) in [
        (protocol(Protocol::Postgres), true),
        (postgres_for("db.example.org"), true),
        (postgres_for("other.example.org"), false),
        (sni("db.example.org"), true),
    ] {
        let routes = [conditions, Conditions::default()];
        let decision = decide_in_every_way(&routes, DIRECT, Waiting::ForMore);
        assert_eq!(decision, Decision::Route(usize::from(!holds)));
        let mut inspection = Inspection::new(LIMIT_BYTES);
        inspection.decide(&routes, &arrival(), DIRECT, Waiting::ForMore);
        assert_eq!(inspection.bytes_for_proxy(), 0);
        assert!(!inspection.is_postgres_tls());
    }
}
