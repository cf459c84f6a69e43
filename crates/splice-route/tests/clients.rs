//! What real clients send takes the route that it should, however it is cut.

use std::path::Path;

use splice_route::{Arrival, Conditions, Decision, Inspection, Protocol, Waiting};

const LIMIT_BYTES: usize = 64 << 10;

fn protocol(protocol: Protocol) -> Conditions {
    Conditions {
        protocol: Some(protocol),
        ..Conditions::default()
    }
}

fn host(pattern: &str) -> Conditions {
    Conditions {
        http_hosts: Some(vec![pattern.parse().expect(pattern)]),
        ..Conditions::default()
    }
}

#[test]
fn clients_take_their_routes() {
    let arrival = Arrival {
        client: None,
        local: None,
    };
    let routes = [
        protocol(Protocol::Http2),
        protocol(Protocol::Connect),
        protocol(Protocol::Socks),
        protocol(Protocol::Ssh),
        protocol(Protocol::Rdp),
        protocol(Protocol::Postgres),
        host("localhost"),
        host("127.0.0.1"),
        host("example.org"),
        host("*.example"),
        protocol(Protocol::Http1),
    ];
    for (client, route) in [
        ("curl", host("localhost")),
        ("curl-http10", host("127.0.0.1")),
        ("curl-post", host("localhost")),
        ("curl-proxy", host("example.org")),
        ("curl-connect", protocol(Protocol::Connect)),
        ("curl-http2", protocol(Protocol::Http2)),
        ("curl-h2c", host("127.0.0.1")),
        ("curl-ipv6-host", protocol(Protocol::Http1)),
        ("wget", host("localhost")),
        ("python", host("localhost")),
        ("go", host("localhost")),
        ("chromium", host("localhost")),
        ("nginx", host("127.0.0.1")),
        ("haproxy-check", host("*.example")),
        ("socks4a", protocol(Protocol::Socks)),
        ("socks5h", protocol(Protocol::Socks)),
        ("ssh", protocol(Protocol::Ssh)),
        ("psql", protocol(Protocol::Postgres)),
        ("psql-disable", protocol(Protocol::Postgres)),
        ("rdp", protocol(Protocol::Rdp)),
    ] {
        let file =
            Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/clients/{client}.bin"));
        let bytes = std::fs::read(file).unwrap();
        let expected = routes.iter().position(|it| *it == route).unwrap();
        for cut in 0..=bytes.len() {
            let mut inspection = Inspection::new(LIMIT_BYTES);
            let mut ask = |bytes| inspection.decide(&routes, &arrival, bytes, Waiting::ForMore);
            let decision = match ask(&bytes[..cut]) {
                Decision::More => ask(&bytes),
                early => early,
            };
            assert_eq!(decision, Decision::Route(expected), "{client} cut at {cut}");
        }
    }
}
