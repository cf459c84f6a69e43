//! To whom the routes of a listener lead, a line for each.

use std::fmt::Display;

use splice_route::{Conditions, Prefixes, Protocol, ServerName, TlsVersion};

use crate::plan::{Action, RoutePlan};
use crate::plural::counted;
use crate::printable::printable;

/// So many routes have a line of their own: a screen has some 50.
const ROUTES_NAMED: usize = 20;

/// So many values of a condition are named.
const VALUES_NAMED: usize = 3;

/// As [`told`], of streams and messages. Where every client goes to one backend there is nothing to tell: so many a
/// configuration has a line for each listener.
pub(super) fn told_if_some_differ(routes: &[RoutePlan]) -> Vec<String> {
    let is_plain = |route: &RoutePlan| {
        let to_one = matches!(&route.action, Action::Backend { fallback: None, .. });
        to_one && route.conditions == Conditions::default()
    };
    match routes {
        [only] if is_plain(only) => Vec::new(),
        routes => told(routes),
    }
}

/// A line for each of `routes`, or for the first of many.
pub(super) fn told(routes: &[RoutePlan]) -> Vec<String> {
    let mut told: Vec<_> = routes.iter().take(ROUTES_NAMED).map(route).collect();
    match routes.len().saturating_sub(ROUTES_NAMED) {
        0 => {}
        more => told.push(format!("{} more", counted(more, "route"))),
    }
    told
}

fn route(route: &RoutePlan) -> String {
    let clients = clients(&route.conditions);
    match &route.action {
        Action::Backend {
            name,
            fallback: Some(fallback),
        } => format!("{clients} to backend {name}, or else {fallback}"),
        Action::Backend { name, .. } => format!("{clients} to backend {name}"),
        Action::Requested(rules) => {
            let rules = counted(rules.len(), "rule");
            format!("{clients} to what they ask for, within {rules}")
        }
        Action::Echo => format!("{clients} to itself"),
        Action::Reset => format!("{clients}: reset"),
    }
}

fn clients(conditions: &Conditions) -> String {
    let Conditions {
        clients,
        local_addresses,
        local_ports,
        silent,
        sni,
        alpn,
        tls_versions,
        http_hosts,
        http_methods,
        http_paths,
        protocol,
        starts_with,
    } = conditions;
    let server_name = |name: &ServerName| match name {
        ServerName::None => "none".to_owned(),
        ServerName::Matching(pattern) => pattern.to_string(),
    };
    let bytes = |bytes: &Vec<u8>| String::from_utf8_lossy(bytes).into_owned();
    // As a configuration has them.
    let with = [
        named("local_address", local_addresses.as_deref(), shown),
        named("local_port", local_ports.as_deref(), shown),
        named("sni", sni.as_deref(), server_name),
        named("alpn", alpn.as_deref(), bytes),
        named("tls_version", tls_versions.as_deref(), version),
        named("http_host", http_hosts.as_deref(), shown),
        named("http_method", http_methods.as_deref(), shown),
        named("http_path", http_paths.as_deref(), shown),
        named(
            "protocol",
            protocol.as_ref().map(std::slice::from_ref),
            word,
        ),
        named("starts_with", starts_with.as_deref(), bytes),
    ];
    let with: Vec<_> = with.into_iter().flatten().collect();
    if clients.is_none() && !silent && with.is_empty() {
        return "every client".into();
    }
    let mut told = match silent {
        true => "silent clients".to_owned(),
        false => "clients".to_owned(),
    };
    if let Some(prefixes) = clients {
        told += &format!(" in {}", some(all(prefixes)));
    }
    if !with.is_empty() {
        told += &format!(" with {}", with.join(" and "));
    }
    told
}

/// A condition and its values.
fn named<T>(key: &str, values: Option<&[T]>, told: impl Fn(&T) -> String) -> Option<String> {
    let values = values?.iter().map(told);
    Some(format!("{key} {}", some(values)))
}

/// The first of them.
fn some(mut values: impl Iterator<Item = String>) -> String {
    let first = values.by_ref().take(VALUES_NAMED);
    let mut told: Vec<_> = first.map(|value| printable(&value)).collect();
    match values.count() {
        0 => {}
        more => told.push(format!("{more} more")),
    }
    told.join(", ")
}

fn all(prefixes: &Prefixes) -> impl Iterator<Item = String> {
    let files = prefixes.files.iter().map(|(path, _)| path.clone());
    prefixes.fixed.iter().map(ToString::to_string).chain(files)
}

fn shown(value: &impl Display) -> String {
    value.to_string()
}

fn version(version: &TlsVersion) -> String {
    let word = match version {
        TlsVersion::Tls10 => "1.0",
        TlsVersion::Tls11 => "1.1",
        TlsVersion::Tls12 => "1.2",
        TlsVersion::Tls13 => "1.3",
    };
    word.into()
}

fn word(protocol: &Protocol) -> String {
    let word = match protocol {
        Protocol::Tls => "tls",
        Protocol::Http1 => "http1",
        Protocol::Http2 => "http2",
        Protocol::Postgres => "postgres",
        Protocol::Ssh => "ssh",
        Protocol::Rdp => "rdp",
        Protocol::Socks => "socks",
        Protocol::Connect => "connect",
    };
    word.into()
}
