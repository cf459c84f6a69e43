//! Conditions that no connection can meet together.

use splice::Address;
use splice_route::{Conditions, Protocol};

use crate::config::value::Table;
use crate::plan::ListenerPlan;

/// Conditions on what comes first, and the protocol that each asks for.
const OF_PROTOCOLS: [(&str, Option<&str>); 10] = [
    ("sni", Some("TLS")),
    ("alpn", Some("TLS")),
    ("tls_version", Some("TLS")),
    ("http_host", Some("HTTP/1")),
    ("http_method", Some("HTTP/1")),
    ("http_path", Some("HTTP/1")),
    ("protocol", None),
    ("socks", Some("SOCKS")),
    ("connect", Some("HTTP/1")),
    ("starts_with", None),
];

/// Notes the conditions of a route of `listener` that contradict one another.
pub(super) fn find(table: &Table<'_>, conditions: &Conditions, listener: &ListenerPlan) {
    let given: Vec<_> = OF_PROTOCOLS
        .into_iter()
        .filter(|(key, _)| table.get(key).is_some())
        .collect();
    if let Some((key, _)) = given.first()
        && conditions.silent
    {
        table.notes.mistake(
            &table.at(key),
            format!("a silent client has sent nothing, so {key} never matches; use two routes"),
        );
        return;
    }
    let protocol = conditions.protocol.and_then(|protocol| match protocol {
        Protocol::Tls => Some("TLS"),
        Protocol::Http1 => Some("HTTP/1"),
        Protocol::Http2 => Some("the preface of HTTP/2"),
        Protocol::Postgres => Some("PostgreSQL"),
        Protocol::Ssh => Some("SSH"),
        Protocol::Rdp => Some("RDP"),
        // Noted with their keys.
        Protocol::Socks | Protocol::Connect => None,
    });
    let asked: Vec<_> = given
        .iter()
        .filter_map(|(key, asked)| match *key {
            "protocol" => protocol.map(|asked| (*key, asked)),
            _ => asked.map(|asked| (*key, asked)),
        })
        .collect();
    let fits = |a: &str, b: &str| a == b || [a, b] == ["TLS", "PostgreSQL"];
    for (index, (key, asked_here)) in asked.iter().enumerate() {
        let other = asked[..index]
            .iter()
            .find(|(_, before)| !fits(before, asked_here));
        if let Some((other, before)) = other {
            table.notes.mistake(
                &table.at(key),
                format!(
                    "{key} asks for {asked_here} and {other} for {before}, which never come together; \
                     use two routes"
                ),
            );
            break;
        }
    }
    if let (Address::Inet { port, .. }, Some(ports), None) = (
        &listener.address,
        &conditions.local_ports,
        &listener.require_proxy_from,
    ) && *port != 0
        && !ports.contains(port)
    {
        table.notes.mistake(
            &table.at("local_port"),
            format!("clients of this listener come to port {port} only; correct local_port"),
        );
    }
}
