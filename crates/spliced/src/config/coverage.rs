//! Which routes take the connections of which others.

use std::net::IpAddr;

use splice_route::{Conditions, NamePattern, Prefix, Prefixes, Protocol, ServerName};

/// What the conditions of a route take, made once, so that a route with many values is compared with the others in
/// time.
pub(super) struct Coverage {
    /// `None` takes every connection.
    clients: Option<Values>,
    files: Vec<String>,
    local_addresses: Option<Values>,
    local_ports: Option<Values>,
    silent: bool,
    sni: Option<Values>,
    alpn: Option<Values>,
    tls_versions: Option<Values>,
    http_hosts: Option<Values>,
    http_methods: Option<Values>,
    http_paths: Option<Values>,
    protocol: Option<Protocol>,
    /// The protocols of every connection that is taken.
    implied: Vec<Protocol>,
    needs_bytes: bool,
    starts_with: Option<Values>,
}

impl Coverage {
    pub(super) fn of(conditions: &Conditions) -> Self {
        // Each condition by its name: one that is not compared would make `covers` say yes to any two routes that
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
        } = conditions;
        let files = clients.iter().flat_map(|Prefixes { files, .. }| files);
        let fixed = clients.as_ref().map(|Prefixes { fixed, .. }| fixed);
        Self {
            clients: Values::of(fixed, of_prefix),
            files: files.map(|(path, _)| path.clone()).collect(),
            local_addresses: Values::of(local_addresses.as_ref(), of_prefix),
            local_ports: Values::of(local_ports.as_ref(), |port| port.to_be_bytes().into()),
            silent: *silent,
            sni: Values::of(sni.as_ref(), |name| match name {
                ServerName::None => vec![END],
                ServerName::Matching(pattern) => of_name(pattern),
            }),
            alpn: Values::of(alpn.as_ref(), |name| whole(name)),
            tls_versions: Values::of(tls_versions.as_ref(), |version| vec![*version as u8]),
            http_hosts: Values::of(http_hosts.as_ref(), of_name),
            http_methods: Values::of(http_methods.as_ref(), |name| whole(name.as_bytes())),
            http_paths: Values::of(http_paths.as_ref(), |path| path.clone().into_bytes()),
            protocol: *protocol,
            implied: implied(conditions),
            needs_bytes: conditions.need_bytes(),
            starts_with: Values::of(starts_with.as_ref(), Clone::clone),
        }
    }

    /// Whether every connection that meets `narrow` meets these, as far as can be told. Files of prefixes may
    /// change and cover only themselves.
    pub(super) fn covers(&self, narrow: &Self) -> bool {
        // First, where most routes of a large configuration differ.
        if !all(&self.sni, &narrow.sni) || !all(&self.http_hosts, &narrow.http_hosts) {
            return false;
        }
        // PostgreSQL begins with a message of its own, whatever is asked of the hello after it.
        let is_postgres = |of: &Self| of.protocol == Some(Protocol::Postgres);
        if self.needs_bytes && is_postgres(self) != is_postgres(narrow) {
            return false;
        }
        all(&self.clients, &narrow.clients)
            && (self.clients.is_none() || narrow.files.iter().all(|path| self.files.contains(path)))
            && all(&self.local_addresses, &narrow.local_addresses)
            && all(&self.local_ports, &narrow.local_ports)
            && (!self.silent || narrow.silent)
            && all(&self.alpn, &narrow.alpn)
            && all(&self.tls_versions, &narrow.tls_versions)
            && all(&self.http_methods, &narrow.http_methods)
            && all(&self.http_paths, &narrow.http_paths)
            && self
                .protocol
                .is_none_or(|protocol| narrow.implied.contains(&protocol))
            && all(&self.starts_with, &narrow.starts_with)
    }
}

/// Whether each value of `narrow` is covered by one of `wide`.
fn all(wide: &Option<Values>, narrow: &Option<Values>) -> bool {
    match (wide, narrow) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(wide), Some(narrow)) => narrow.0.iter().all(|value| wide.cover(value)),
    }
}

/// The values of a condition as bytes, such that one covers those that begin with it. Sorted, and without those that
/// another one covers: of such values only the last one that is not behind another can cover it.
struct Values(Vec<Vec<u8>>);

impl Values {
    fn of<T>(values: Option<&Vec<T>>, bytes: impl Fn(&T) -> Vec<u8>) -> Option<Self> {
        let mut values: Vec<_> = values?.iter().map(bytes).collect();
        values.sort_unstable();
        // All that begin with one are next to it.
        values.dedup_by(|value, kept| value.starts_with(kept));
        Some(Self(values))
    }

    fn cover(&self, value: &[u8]) -> bool {
        // Most conditions have one value, and there may be 10 000 routes, each of which is compared with all before it.
        if let [only] = &self.0[..] {
            return value.starts_with(only);
        }
        let behind = self.0.partition_point(|other| other.as_slice() <= value);
        self.0[..behind]
            .last()
            .is_some_and(|last| value.starts_with(last))
    }
}

/// Ends a value that covers only itself. No name has it.
const END: u8 = 0;

/// Covers only itself, whatever its bytes.
fn whole(bytes: &[u8]) -> Vec<u8> {
    let length = bytes.len().to_be_bytes();
    [&length, bytes].concat()
}

/// From its end: `*.example.org` covers what goes on behind the dot.
fn of_name(pattern: &NamePattern) -> Vec<u8> {
    let text = pattern.to_string();
    let (text, end) = match text.strip_prefix('*') {
        Some(below) => (below, None),
        None => (text.as_str(), Some(END)),
    };
    text.bytes().rev().chain(end).collect()
}

/// The family, and then each bit.
fn of_prefix(prefix: &Prefix) -> Vec<u8> {
    let (family, octets) = match prefix.address() {
        IpAddr::V4(ip) => (4, ip.octets().to_vec()),
        IpAddr::V6(ip) => (6, ip.octets().to_vec()),
    };
    let bits = octets
        .iter()
        .flat_map(|octet| (0..8).rev().map(move |bit| octet >> bit & 1));
    let bits = bits.take(prefix.length_bits().into());
    [family].into_iter().chain(bits).collect()
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

    fn covers(wide: &Conditions, narrow: &Conditions) -> bool {
        Coverage::of(wide).covers(&Coverage::of(narrow))
    }

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
    fn names_prefixes_and_paths_cover_what_is_below() {
        let hosts = |list: &[&str]| Conditions {
            http_hosts: Some(list.iter().map(|text| text.parse().expect(text)).collect()),
            ..Conditions::default()
        };
        let clients = |list: &[&str]| Conditions {
            clients: Some(Prefixes {
                fixed: list.iter().map(|text| text.parse().expect(text)).collect(),
                files: Vec::new(),
            }),
            ..Conditions::default()
        };
        let paths = |list: &[&str]| Conditions {
            http_paths: Some(list.iter().map(|text| (*text).into()).collect()),
            ..Conditions::default()
        };
        type Make<'a> = &'a dyn Fn(&[&str]) -> Conditions;
        let cases: [(Make<'_>, &[&str], &[&str], bool); 18] = [
            (&hosts, &["*.example.org"], &["www.example.org"], true),
            (&hosts, &["*.org"], &["*.example.org"], true),
            (&hosts, &["*.example.org"], &["*.org"], false),
            (&hosts, &["*.example.org"], &["example.org"], false),
            (&hosts, &["*.example.org"], &["badexample.org"], false),
            (&hosts, &["www.example.org"], &["*.example.org"], false),
            (&hosts, &["example.org"], &["example.org.uk"], false),
            (
                &hosts,
                &["b.org", "*.org", "a.b.org"],
                &["c.org", "x.a.org"],
                true,
            ),
            (
                &hosts,
                &["a.org", "*.b.org", "c.org"],
                &["c.org", "x.b.org"],
                true,
            ),
            (
                &hosts,
                &["a.org", "*.b.org", "c.org"],
                &["c.org", "b.org"],
                false,
            ),
            (&clients, &["10.0.0.0/8"], &["10.1.0.0/16"], true),
            (&clients, &["10.1.0.0/16"], &["10.0.0.0/8"], false),
            (&clients, &["::/0"], &["10.0.0.0/8"], false),
            (
                &clients,
                &["0.0.0.0/0", "10.0.0.0/8", "::/1"],
                &["127.0.0.1", "::1"],
                true,
            ),
            (&clients, &["10.0.0.0/9", "10.0.0.0"], &["10.127.0.1"], true),
            (&paths, &["/a"], &["/ab", "/a/b"], true),
            (&paths, &["/a/", "/a/b", "/b"], &["/a"], false),
            (&paths, &["/a/", "/a/b", "/b"], &["/a/z"], true),
        ];
        for (make, wide, narrow, expected) in cases {
            assert_eq!(
                covers(&make(wide), &make(narrow)),
                expected,
                "{wide:?} {narrow:?}"
            );
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
