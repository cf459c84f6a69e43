//! Which routes take the connections of which others.

use splice_route::{Conditions, Prefixes, Protocol, ServerName};

/// Whether every connection that meets `narrow` meets `wide`, as far as can be told. Files of prefixes may
/// change and cover only themselves.
pub(super) fn covers(wide: &Conditions, narrow: &Conditions) -> bool {
    // PostgreSQL begins with a message of its own, whatever is asked of the hello after it.
    let postgres = Some(Protocol::Postgres);
    if asks_first_bytes(wide) && (wide.protocol == postgres) != (narrow.protocol == postgres) {
        return false;
    }
    (!wide.silent || narrow.silent)
        && clients(wide.clients.as_ref(), narrow.clients.as_ref())
        && all(&wide.local_addresses, &narrow.local_addresses, |a, b| {
            a.covers(b)
        })
        && all(&wide.local_ports, &narrow.local_ports, |a, b| a == b)
        && all(&wide.sni, &narrow.sni, |a, b| match (a, b) {
            (ServerName::None, ServerName::None) => true,
            (ServerName::Matching(a), ServerName::Matching(b)) => a.covers(b),
            _ => false,
        })
        && all(&wide.alpn, &narrow.alpn, |a, b| a == b)
        && all(&wide.tls_versions, &narrow.tls_versions, |a, b| a == b)
        && all(&wide.http_hosts, &narrow.http_hosts, |a, b| a.covers(b))
        && all(&wide.http_methods, &narrow.http_methods, |a, b| a == b)
        && all(&wide.http_paths, &narrow.http_paths, |a, b| {
            b.starts_with(a.as_str())
        })
        && all(&wide.starts_with, &narrow.starts_with, |a, b| {
            b.starts_with(a)
        })
        && wide
            .protocol
            .is_none_or(|protocol| implied(narrow).contains(&protocol))
}

/// Whether each value of `narrow` is covered by one of `wide`.
fn all<T>(wide: &Option<Vec<T>>, narrow: &Option<Vec<T>>, covers: impl Fn(&T, &T) -> bool) -> bool {
    match (wide, narrow) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|b| wide.iter().any(|a| covers(a, b))),
    }
}

fn clients(wide: Option<&Prefixes>, narrow: Option<&Prefixes>) -> bool {
    let (wide, narrow) = match (wide, narrow) {
        (None, _) => return true,
        (Some(_), None) => return false,
        (Some(wide), Some(narrow)) => (wide, narrow),
    };
    let fixed = |b| wide.fixed.iter().any(|a| a.covers(b));
    let file = |path: &String| wide.files.iter().any(|(other, _)| other == path);
    narrow.fixed.iter().all(fixed) && narrow.files.iter().all(|(path, _)| file(path))
}

pub(super) fn asks_tls(conditions: &Conditions) -> bool {
    conditions.sni.is_some() || conditions.alpn.is_some() || conditions.tls_versions.is_some()
}

pub(super) fn asks_http(conditions: &Conditions) -> bool {
    conditions.http_hosts.is_some()
        || conditions.http_methods.is_some()
        || conditions.http_paths.is_some()
}

fn asks_first_bytes(conditions: &Conditions) -> bool {
    asks_tls(conditions)
        || asks_http(conditions)
        || conditions.protocol.is_some()
        || conditions.starts_with.is_some()
}

/// The protocols of every connection that meets `conditions`.
fn implied(conditions: &Conditions) -> Vec<Protocol> {
    let mut protocols: Vec<_> = conditions.protocol.into_iter().collect();
    if asks_tls(conditions) && conditions.protocol != Some(Protocol::Postgres) {
        protocols.push(Protocol::Tls);
    }
    if asks_http(conditions) {
        protocols.push(Protocol::Http1);
    }
    protocols
}
