//! Which routes take the connections of which others.

use splice_route::{Conditions, Prefixes, Protocol, ServerName};

/// Whether every connection that meets `narrow` meets `wide`, as far as can be told. Files of prefixes may
/// change and cover only themselves.
pub(super) fn covers(wide: &Conditions, narrow: &Conditions) -> bool {
    // Each condition by its name: one that is not compared would make this say yes to any two routes that
    // differ in it.
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
    } = wide;
    // PostgreSQL begins with a message of its own, whatever is asked of the hello after it.
    let postgres = Some(Protocol::Postgres);
    if wide.need_bytes() && (*protocol == postgres) != (narrow.protocol == postgres) {
        return false;
    }
    covers_prefixes(clients.as_ref(), narrow.clients.as_ref())
        && all(local_addresses, &narrow.local_addresses, |a, b| a.covers(b))
        && all(local_ports, &narrow.local_ports, |a, b| a == b)
        && (!silent || narrow.silent)
        && all(sni, &narrow.sni, |a, b| match (a, b) {
            (ServerName::None, ServerName::None) => true,
            (ServerName::Matching(a), ServerName::Matching(b)) => a.covers(b),
            (ServerName::None, ServerName::Matching(_))
            | (ServerName::Matching(_), ServerName::None) => false,
        })
        && all(alpn, &narrow.alpn, |a, b| a == b)
        && all(tls_versions, &narrow.tls_versions, |a, b| a == b)
        && all(http_hosts, &narrow.http_hosts, |a, b| a.covers(b))
        && all(http_methods, &narrow.http_methods, |a, b| a == b)
        && all(http_paths, &narrow.http_paths, |a, b| {
            b.starts_with(a.as_str())
        })
        && protocol.is_none_or(|protocol| implied(narrow).contains(&protocol))
        && all(starts_with, &narrow.starts_with, |a, b| b.starts_with(a))
}

/// Whether each value of `narrow` is covered by one of `wide`.
fn all<T>(wide: &Option<Vec<T>>, narrow: &Option<Vec<T>>, covers: impl Fn(&T, &T) -> bool) -> bool {
    match (wide, narrow) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.iter().all(|b| wide.iter().any(|a| covers(a, b))),
    }
}

fn covers_prefixes(wide: Option<&Prefixes>, narrow: Option<&Prefixes>) -> bool {
    let (wide, Prefixes { fixed, files }) = match (wide, narrow) {
        (None, _) => return true,
        (Some(_), None) => return false,
        (Some(wide), Some(narrow)) => (wide, narrow),
    };
    let is_covered = |b| wide.fixed.iter().any(|a| a.covers(b));
    let is_named = |path: &String| wide.files.iter().any(|(other, _)| other == path);
    fixed.iter().all(is_covered) && files.iter().all(|(path, _)| is_named(path))
}

/// The protocols of every connection that meets `conditions`.
fn implied(conditions: &Conditions) -> Vec<Protocol> {
    let mut protocols: Vec<_> = conditions.protocol.into_iter().collect();
    if conditions.ask_for_hello() && conditions.protocol != Some(Protocol::Postgres) {
        protocols.push(Protocol::Tls);
    }
    if conditions.ask_for_head() {
        protocols.push(Protocol::Http1);
    }
    protocols
}

#[cfg(test)]
mod tests {
    use splice_route::TlsVersion;

    use super::*;

    /// Sets one condition.
    type Set = fn(&mut Conditions);

    /// Every condition by its name, with two values that rule one another out. `silent` has one.
    fn matchers() -> Vec<(&'static str, Set, Option<Set>)> {
        macro_rules! matcher {
            ($field:ident: $one:expr $(, $other:expr)?) => {{
                let one: Set = |conditions| conditions.$field = $one;
                let others: &[Set] = &[$(|conditions| conditions.$field = $other)?];
                (stringify!($field), one, others.first().copied())
            }};
        }
        fn read<T: std::str::FromStr<Err: std::fmt::Debug>>(text: &str) -> T {
            text.parse().expect(text)
        }
        fn prefixes(text: &str) -> Option<Prefixes> {
            Some(Prefixes {
                fixed: vec![read(text)],
                files: Vec::new(),
            })
        }
        fn name(text: &str) -> Option<Vec<ServerName>> {
            Some(vec![ServerName::Matching(read(text))])
        }
        vec![
            matcher!(clients: prefixes("10.0.0.0/8"), prefixes("11.0.0.0/8")),
            matcher!(local_addresses: Some(vec![read("10.0.0.1")]), Some(vec![read("10.0.0.2")])),
            matcher!(local_ports: Some(vec![80]), Some(vec![443])),
            matcher!(silent: true),
            matcher!(sni: name("a.example"), Some(vec![ServerName::None])),
            matcher!(alpn: Some(vec![b"h2".to_vec()]), Some(vec![b"h3".to_vec()])),
            matcher!(
                tls_versions: Some(vec![TlsVersion::Tls12]),
                Some(vec![TlsVersion::Tls13])
            ),
            matcher!(http_hosts: Some(vec![read("a.example")]), Some(vec![read("b.example")])),
            matcher!(http_methods: Some(vec!["GET".into()]), Some(vec!["PUT".into()])),
            matcher!(http_paths: Some(vec!["/a".into()]), Some(vec!["/b".into()])),
            matcher!(protocol: Some(Protocol::Ssh), Some(Protocol::Rdp)),
            matcher!(starts_with: Some(vec![b"a".to_vec()]), Some(vec![b"b".to_vec()])),
        ]
    }

    #[test]
    fn a_route_covers_only_what_meets_each_of_its_conditions() {
        let any = Conditions::default();
        for (name, one, other) in matchers() {
            let with = |set: Set| {
                let mut conditions = Conditions::default();
                set(&mut conditions);
                conditions
            };
            let one = with(one);
            assert_ne!(one, any, "{name}");
            assert!(covers(&one, &one), "{name}");
            assert!(covers(&any, &one), "{name}");
            assert!(!covers(&one, &any), "{name}");
            if let Some(other) = other.map(with) {
                assert!(!covers(&one, &other), "{name}");
                assert!(!covers(&other, &one), "{name}");
            }
            // With a second condition on either side.
            for (second, set, _) in matchers().iter().filter(|it| it.0 != name) {
                let mut both = one.clone();
                set(&mut both);
                assert!(covers(&one, &both), "{name} {second}");
                assert!(!covers(&both, &one), "{name} {second}");
            }
        }
    }

    #[test]
    fn no_condition_is_forgotten_here() {
        let shown = format!("{:?}", Conditions::default());
        let fields = shown
            .trim_start_matches("Conditions { ")
            .trim_end_matches(" }");
        let fields: Vec<_> = fields
            .split(", ")
            .filter_map(|field| field.split_once(": "))
            .map(|(name, _)| name)
            .collect();
        let tried: Vec<_> = matchers().iter().map(|it| it.0).collect();
        assert!(fields.len() > 10, "{fields:?}");
        for field in fields {
            assert!(tried.contains(&field), "no test of {field}");
        }
    }
}
