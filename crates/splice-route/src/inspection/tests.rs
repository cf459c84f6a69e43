use std::sync::{Arc, RwLock};

use super::*;
use crate::POSTGRES_SSL_REQUEST;
use crate::conditions::{Prefixes, ServerName};

pub(super) const LIMIT_BYTES: usize = 64 << 10;
pub(super) const TLS_START: &[u8] = b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03";
pub(super) const HTTP: &[u8] = b"GET /api/a HTTP/1.1\r\nHost: WWW.example.org:80\r\n\r\n";
const GSSENC_REQUEST: &[u8] = b"\0\0\0\x08\x04\xd2\x16\x30";
pub(super) const STARTUP: &[u8] = b"\0\0\0\x10\0\x03\0\0user\0a\0\0";

pub(super) fn arrival() -> Arrival {
    Arrival {
        client: Some("10.0.0.1:50000".parse().unwrap()),
        local: Some("192.0.2.1:443".parse().unwrap()),
    }
}

fn any() -> Conditions {
    Conditions::default()
}

pub(super) fn silent() -> Conditions {
    Conditions {
        silent: true,
        ..any()
    }
}

pub(super) fn clients(prefix: &str) -> Conditions {
    Conditions {
        clients: Some(Prefixes {
            fixed: vec![prefix.parse().unwrap()],
            files: Vec::new(),
        }),
        ..any()
    }
}

pub(super) fn protocol(protocol: Protocol) -> Conditions {
    Conditions {
        protocol: Some(protocol),
        ..any()
    }
}

pub(super) fn host(pattern: &str) -> Conditions {
    Conditions {
        http_hosts: Some(vec![pattern.parse().unwrap()]),
        ..any()
    }
}

pub(super) fn path(prefix: &str) -> Conditions {
    Conditions {
        http_paths: Some(vec![prefix.into()]),
        ..any()
    }
}

pub(super) fn method(method: &str) -> Conditions {
    Conditions {
        http_methods: Some(vec![method.into()]),
        ..any()
    }
}

pub(super) fn starts_with(pattern: &[u8]) -> Conditions {
    Conditions {
        starts_with: Some(vec![pattern.into()]),
        ..any()
    }
}

pub(super) fn sni(pattern: &str) -> Conditions {
    Conditions {
        sni: Some(vec![ServerName::Matching(pattern.parse().unwrap())]),
        ..any()
    }
}

pub(super) fn postgres_for(name: &str) -> Conditions {
    Conditions {
        protocol: Some(Protocol::Postgres),
        ..sni(name)
    }
}

pub(super) fn decide(routes: &[Conditions], bytes: &[u8], waiting: Waiting) -> Decision {
    Inspection::new(LIMIT_BYTES).decide(routes, &arrival(), bytes, waiting)
}

/// Decides with all bytes at once, with two reads cut anywhere, and byte by byte.
pub(super) fn decide_in_every_way(
    routes: &[Conditions],
    bytes: &[u8],
    waiting: Waiting,
) -> Decision {
    let whole = decide(routes, bytes, waiting);
    let mut byte_by_byte = Inspection::new(LIMIT_BYTES);
    let mut last = Decision::More;
    for cut in 0..bytes.len() {
        let mut inspection = Inspection::new(LIMIT_BYTES);
        let ask = |inspection: &mut Inspection, bytes, waiting| {
            inspection.decide(routes, &arrival(), bytes, waiting)
        };
        let early = ask(&mut inspection, &bytes[..cut], Waiting::ForMore);
        if early == Decision::More {
            assert_eq!(ask(&mut inspection, bytes, waiting), whole, "cut at {cut}");
        } else {
            assert_eq!(early, whole, "cut at {cut}");
        }
        if last == Decision::More {
            last = ask(&mut byte_by_byte, &bytes[..cut], Waiting::ForMore);
            assert_eq!(last, early, "up to {cut}");
        }
    }
    whole
}

#[test]
fn conditions_without_bytes_decide_at_once() {
    let local = |port| Conditions {
        local_ports: Some(vec![port]),
        ..any()
    };
    let local_address = |prefix: &str| Conditions {
        local_addresses: Some(vec![prefix.parse().unwrap()]),
        ..any()
    };
    let cases: [(&[Conditions], Decision); 9] = [
        (&[any()], Decision::Route(0)),
        (&[], Decision::NoRoute),
        (&[clients("10.0.0.0/8"), any()], Decision::Route(0)),
        (&[clients("11.0.0.0/8"), any()], Decision::Route(1)),
        (&[clients("11.0.0.0/8")], Decision::NoRoute),
        (&[local(80), local(443)], Decision::Route(1)),
        (&[local_address("192.0.2.0/24")], Decision::Route(0)),
        (&[local_address("2001:db8::/32")], Decision::NoRoute),
        (&[host("a"), any()], Decision::More),
    ];
    for (routes, expected) in cases {
        assert_eq!(
            decide(routes, b"", Waiting::ForMore),
            expected,
            "{routes:?}"
        );
    }
    let unix = Arrival {
        client: None,
        local: None,
    };
    let mut inspection = Inspection::new(LIMIT_BYTES);
    let routes = [clients("0.0.0.0/0"), clients("::/0"), local(443), any()];
    let decision = inspection.decide(&routes, &unix, b"", Waiting::ForMore);
    assert_eq!(decision, Decision::Route(3));
}

#[test]
fn a_route_that_its_client_rules_out_does_not_wait_for_bytes() {
    let elsewhere = Conditions {
        clients: clients("11.0.0.0/8").clients,
        ..host("a")
    };
    let routes = [elsewhere, any()];
    assert_eq!(decide(&routes, b"", Waiting::ForMore), Decision::Route(1));
    // Not even broken bytes matter to it.
    let broken = b"GET / HTTP/1.1\n";
    assert_eq!(
        decide_in_every_way(&routes[..1], broken, Waiting::ForMore),
        Decision::NoRoute
    );
}

#[test]
fn a_list_of_prefixes_that_changes_is_for_later_clients() {
    let file = Arc::new(RwLock::new(Vec::new()));
    let listed = |conditions| Conditions {
        clients: Some(Prefixes {
            fixed: Vec::new(),
            files: vec![("list".into(), file.clone())],
        }),
        ..conditions
    };
    let here = || vec!["10.0.0.0/8".parse().unwrap()];
    let routes = [listed(any()), host("www.example.org")];
    let mut inspection = Inspection::new(LIMIT_BYTES);
    let mut ask = |bytes| inspection.decide(&routes, &arrival(), bytes, Waiting::ForMore);
    assert_eq!(ask(b""), Decision::More);
    *file.write().unwrap() = here();
    assert_eq!(ask(&HTTP[..9]), Decision::More);
    assert_eq!(ask(HTTP), Decision::Route(1));
    assert_eq!(decide(&routes, b"", Waiting::ForMore), Decision::Route(0));

    let routes = [listed(host("www.example.org")), any()];
    let mut inspection = Inspection::new(LIMIT_BYTES);
    let mut ask = |bytes| inspection.decide(&routes, &arrival(), bytes, Waiting::ForMore);
    assert_eq!(ask(&HTTP[..9]), Decision::More);
    file.write().unwrap().clear();
    assert_eq!(ask(HTTP), Decision::Route(0));
    assert_eq!(decide(&routes, HTTP, Waiting::ForMore), Decision::Route(1));

    // What is known of one route says nothing about the next.
    let routes = [host("other"), clients("11.0.0.0/8"), any()];
    assert_eq!(decide(&routes, HTTP, Waiting::ForMore), Decision::Route(2));
}

#[test]
fn a_silent_client_is_told_by_the_time() {
    use Waiting::{Ended, ForMore, TimedOut};
    let silent_here = Conditions {
        silent: true,
        ..clients("10.0.0.0/8")
    };
    let silent_http = Conditions {
        silent: true,
        ..host("a")
    };
    let cases: [(&[Conditions], &[u8], Waiting, Decision); 14] = [
        (&[silent()], b"", ForMore, Decision::More),
        (&[silent(), any()], b"", ForMore, Decision::More),
        (&[silent()], b"", TimedOut, Decision::Route(0)),
        (&[silent()], b"", Ended, Decision::Route(0)),
        (&[silent_here], b"", TimedOut, Decision::Route(0)),
        (&[silent(), any()], b"x", ForMore, Decision::Route(1)),
        (&[silent(), any()], b"x", TimedOut, Decision::Route(1)),
        (&[silent()], b"x", TimedOut, Decision::NoRoute),
        (&[host("a"), silent()], b"", ForMore, Decision::More),
        (&[host("a"), silent()], b"", TimedOut, Decision::Route(1)),
        (
            &[host("a"), silent()],
            b"GET",
            TimedOut,
            Decision::Reset(TOO_LATE),
        ),
        (&[host("a"), any()], b"", TimedOut, Decision::Route(1)),
        (
            &[silent_http.clone(), any()],
            b"",
            TimedOut,
            Decision::Route(1),
        ),
        (&[silent_http, any()], HTTP, ForMore, Decision::Route(1)),
    ];
    for (routes, bytes, waiting, expected) in cases {
        let decision = decide_in_every_way(routes, bytes, waiting);
        assert_eq!(decision, expected, "{routes:?} {waiting:?}");
    }
}

#[test]
fn http_conditions() {
    let both = Conditions {
        http_paths: Some(vec!["/x".into(), "/api/".into()]),
        ..host("*.example.org")
    };
    let other_path = Conditions {
        http_paths: Some(vec!["/x".into()]),
        ..host("*.example.org")
    };
    for (conditions, holds) in [
        (host("www.example.org"), true),
        (host("*.EXAMPLE.org"), true),
        (host("example.org"), false),
        (path("/"), true),
        (path("/api"), true),
        // As path_beg of HAProxy: bytes, not segments, and in one case only.
        (path("/ap"), true),
        (path("/API"), false),
        (path("/api/a/"), false),
        (method("GET"), true),
        (method("get"), false),
        (method("GE"), false),
        (both, true),
        (other_path, false),
        (protocol(Protocol::Http1), true),
        (protocol(Protocol::Http2), false),
        (protocol(Protocol::Connect), false),
        (starts_with(b"GET /a"), true),
        (starts_with(b"get /a"), false),
        (protocol(Protocol::Postgres), false),
    ] {
        let routes = [conditions, any()];
        let decision = decide_in_every_way(&routes, HTTP, Waiting::ForMore);
        let expected = Decision::Route(usize::from(!holds));
        assert_eq!(decision, expected, "{:?}", routes[0]);
    }
    let mut inspection = Inspection::new(LIMIT_BYTES);
    inspection.decide(&[path("/")], &arrival(), HTTP, Waiting::ForMore);
    assert_eq!(inspection.http_host(), Some("www.example.org"));
    // A name that is percent-encoded is not converted.
    let encoded = b"GET / HTTP/1.1\r\nHost: m%C3%A4rz.example\r\n\r\n";
    let routes = [host("xn--mrz-qla.example"), host("*.example")];
    assert_eq!(
        decide_in_every_way(&routes, encoded, Waiting::ForMore),
        Decision::Route(1)
    );
    // HTTP/1.0 may have no host.
    let without = b"GET / HTTP/1.0\r\n\r\n";
    let routes = [host("a"), path("/")];
    assert_eq!(
        decide_in_every_way(&routes, without, Waiting::Ended),
        Decision::Route(1)
    );
}

#[test]
fn each_protocol_is_told_from_the_others() {
    let protocols = [
        (Protocol::Http1, HTTP),
        (Protocol::Http2, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        (Protocol::Ssh, b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n"),
        (Protocol::Rdp, b"\x03\0\0\x0b\x06\xe0\0\0\0\0\0"),
        (Protocol::Socks, b"\x05\x01\0"),
        (Protocol::Postgres, STARTUP),
    ];
    let routes: Vec<_> = protocols.iter().map(|it| protocol(it.0)).collect();
    for (index, (name, bytes)) in protocols.iter().enumerate() {
        for mut routes in [routes.clone(), routes.iter().rev().cloned().collect()] {
            routes.push(any());
            let decision = decide_in_every_way(&routes, bytes, Waiting::ForMore);
            let Decision::Route(route) = decision else {
                panic!("{name:?}: {decision:?}");
            };
            assert_eq!(routes[route], protocol(protocols[index].0));
        }
    }
    let connect = b"CONNECT a:443 HTTP/1.1\r\nHost: a\r\n\r\n";
    let routes = [protocol(Protocol::Connect), protocol(Protocol::Http1)];
    assert_eq!(
        decide_in_every_way(&routes, connect, Waiting::ForMore),
        Decision::Route(0)
    );
}

#[test]
fn too_many_bytes_without_a_decision_end_the_connection() {
    let pattern = [b'x'; 32];
    let routes = [starts_with(&pattern), any()];
    let decide =
        |bytes: &[u8]| Inspection::new(16).decide(&routes, &arrival(), bytes, Waiting::ForMore);
    assert_eq!(decide(&pattern[..15]), Decision::More);
    // Whether they come before the decision or with it.
    assert_eq!(decide(&pattern[..16]), Decision::Reset(TOO_LONG));
    assert_eq!(decide(&pattern), Decision::Reset(TOO_LONG));
}

#[test]
fn postgres_without_a_condition_on_the_hello_is_left_alone() {
    let cancel = b"\0\0\0\x10\x04\xd2\x16\x2e\0\0\0\x01\0\0\0\x02";
    let pipelined = [&POSTGRES_SSL_REQUEST, TLS_START].concat();
    for bytes in [
        &POSTGRES_SSL_REQUEST,
        GSSENC_REQUEST,
        STARTUP,
        cancel,
        &pipelined,
    ] {
        let routes = [protocol(Protocol::Postgres), any()];
        let mut inspection = Inspection::new(LIMIT_BYTES);
        let decision = inspection.decide(&routes, &arrival(), bytes, Waiting::ForMore);
        assert_eq!(decision, Decision::Route(0));
        assert_eq!(inspection.bytes_for_proxy(), 0);
        assert!(!inspection.is_postgres_tls());
        assert_eq!(
            decide_in_every_way(&routes, bytes, Waiting::ForMore),
            Decision::Route(0)
        );
    }
}

#[test]
fn postgres_without_tls_has_no_server_name() {
    let routes = [postgres_for("a"), protocol(Protocol::Postgres)];
    assert_eq!(
        decide_in_every_way(&routes, STARTUP, Waiting::ForMore),
        Decision::Route(1)
    );
}

#[test]
fn what_is_pipelined_behind_a_request_for_encryption_is_refused() {
    let routes = [postgres_for("a"), any()];
    for request in [&POSTGRES_SSL_REQUEST[..], GSSENC_REQUEST] {
        for behind in [&b"\0"[..], TLS_START, STARTUP] {
            let bytes = [request, behind].concat();
            let decision = decide(&routes, &bytes, Waiting::ForMore);
            assert_eq!(decision, Decision::Reset(PIPELINED));
        }
        // Nobody answers it any more but the server.
        for waiting in [Waiting::Ended, Waiting::TimedOut] {
            assert_eq!(decide(&routes, request, waiting), Decision::Route(1));
        }
    }
    let mut inspection = Inspection::new(LIMIT_BYTES);
    let mut ask = |bytes: &[u8]| inspection.decide(&routes, &arrival(), bytes, Waiting::ForMore);
    assert_eq!(ask(GSSENC_REQUEST), Decision::Reply(b"N"));
    let pipelined = [GSSENC_REQUEST, &POSTGRES_SSL_REQUEST, b"\x16"].concat();
    assert_eq!(ask(&pipelined), Decision::Reset(PIPELINED));
}

#[test]
fn gssapi_is_refused_once() {
    let routes = [postgres_for("a"), protocol(Protocol::Postgres)];
    for (then, expected, bytes_for_proxy) in [
        (&POSTGRES_SSL_REQUEST[..], Decision::Reply(b"S"), 16),
        (STARTUP, Decision::Route(1), 8),
        (GSSENC_REQUEST, Decision::Reset(GSSAPI_TWICE), 8),
        (TLS_START, Decision::Reset(NOT_POSTGRES), 8),
        (b"\0\0\0", Decision::More, 8),
    ] {
        let mut inspection = Inspection::new(LIMIT_BYTES);
        let mut ask =
            |bytes: &[u8]| inspection.decide(&routes, &arrival(), bytes, Waiting::ForMore);
        assert_eq!(ask(&GSSENC_REQUEST[..7]), Decision::More);
        assert_eq!(ask(GSSENC_REQUEST), Decision::Reply(b"N"));
        assert_eq!(ask(GSSENC_REQUEST), Decision::More);
        assert_eq!(ask(&[GSSENC_REQUEST, then].concat()), expected);
        assert_eq!(inspection.bytes_for_proxy(), bytes_for_proxy);
        assert_eq!(inspection.is_postgres_tls(), bytes_for_proxy == 16);
    }
}

#[test]
fn an_inspection_is_small() {
    // 10 000 clients may wait.
    assert!(
        size_of::<Inspection>() <= 256,
        "{}",
        size_of::<Inspection>()
    );
}
