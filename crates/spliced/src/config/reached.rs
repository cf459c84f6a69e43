//! What every key says reaches the plan. Those that `[defaults]` has, too, are in `precedence`.

use std::path::Path;

use super::examine_text;

/// Where a key stands.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Process,
    Listener,
    /// A listener of datagrams. One of streams knows its keys, and refuses them.
    Datagrams,
    Route,
    Backend,
    Server,
    Health,
}

/// A configuration with these lines in one place.
fn text(place: Place, lines: &str) -> String {
    if place == Place::Datagrams {
        return format!(
            "[[listener]]\naddress = 'udp::1'\n{lines}\n[[listener.route]]\nbackend = 'b'\n\
             [backend.b]\nservers = 'udp:10.0.0.1:1'\n"
        );
    }
    let at = |other| if other == place { lines } else { "" };
    // A route says what it does, and a check what it checks, unless the lines do.
    let action = match lines.contains("reset") || lines.contains("allow") {
        true => "",
        false => "backend = 'b'",
    };
    let checks_more = ["http", "tls"].iter().any(|key| lines.contains(key));
    let check = match place == Place::Health && checks_more {
        true => "",
        false => "tcp = true",
    };
    format!(
        "{}\n[[listener]]\naddress = ':1'\n{}\n[[listener.route]]\n{action}\n{}\n\
         [backend.b]\n{}\n[[backend.b.servers]]\naddress = '10.0.0.1:1'\n{}\n[backend.b.health]\n{check}\n{}\n\
         [backend.c]\nservers = '10.0.0.2:1'\n",
        at(Place::Process),
        at(Place::Listener),
        at(Place::Route),
        at(Place::Backend),
        at(Place::Server),
        at(Place::Health),
    )
}

/// The plan of such a configuration, or its mistakes.
fn examine(place: Place, lines: &str) -> Result<String, String> {
    let text = text(place, lines);
    match examine_text(Path::new("spliced.toml"), &text).plan {
        Ok(plan) => Ok(format!("{plan:?}")),
        Err(mistakes) => Err(format!("{mistakes}\n{text}")),
    }
}

/// A place, the lines of a key, which comes first, and what they add to the plan.
const KEYS: &[(Place, &str, &str)] = &[
    (Place::Process, "threads = 3", "threads: Some(3)"),
    (Place::Process, "drain_timeout = '7s'", "drain_timeout: 7s"),
    (
        Place::Process,
        "[process]\ncontrol = 'x'",
        "control: Some(\"x\")",
    ),
    (
        Place::Process,
        "[process]\ncontrol_group = 7",
        "control_group: Some(7)",
    ),
    (
        Place::Process,
        "[process]\ncontrol_read = 'x'",
        "control_read: Some(\"x\")",
    ),
    (
        Place::Process,
        "[process]\ncontrol_read = 'y'\ncontrol_read_group = 7",
        "control_read_group: Some(7)",
    ),
    (
        Place::Process,
        "[process]\nmetrics = '127.0.0.1:9500'",
        "metrics: Some(Inet { host: \"127.0.0.1\", port: 9500 })",
    ),
    (Place::Listener, "name = 'l'", "name: \"l\""),
    (
        Place::Listener,
        "trusted = '10.0.0.0/8'\nproxy_protocol = 'require'",
        "require_proxy_from: Some([",
    ),
    (
        Place::Listener,
        "proxy_protocol = 'require'\ntrusted = '10.0.0.0/8'",
        "require_proxy_from: Some([",
    ),
    (Place::Route, "client = '10.0.0.0/8'", "clients: Some("),
    (
        Place::Route,
        "local_address = '10.0.0.1'",
        "local_addresses: Some([",
    ),
    (Place::Route, "local_port = 1", "local_ports: Some([1])"),
    (Place::Route, "silent = true", "silent: true"),
    (Place::Route, "sni = 'none'", "sni: Some([None])"),
    (Place::Route, "alpn = 'A'", "alpn: Some([[65]])"),
    (
        Place::Route,
        "tls_version = '1.3'",
        "tls_versions: Some([Tls13])",
    ),
    (Place::Route, "http_host = 'a.example'", "http_hosts: Some("),
    (
        Place::Route,
        "http_method = 'GET'",
        "http_methods: Some([\"GET\"])",
    ),
    (
        Place::Route,
        "http_path = '/a'",
        "http_paths: Some([\"/a\"])",
    ),
    (Place::Route, "protocol = 'ssh'", "protocol: Some(Ssh)"),
    (
        Place::Route,
        "starts_with = 'A'",
        "starts_with: Some([[65]])",
    ),
    (Place::Route, "reset = true", "action: Reset"),
    (Place::Route, "fallback = 'c'", "fallback: Some(\"c\")"),
    (
        Place::Route,
        "socks = { allow = '10.0.0.0/8:*' }",
        "protocol: Some(Socks)",
    ),
    (
        Place::Route,
        "connect = { allow = '10.0.0.0/8:*' }",
        "action: Requested([",
    ),
    (
        Place::Backend,
        "hash = 'sni'\nbalance = 'consistent'",
        "Consistent(ServerName)",
    ),
    (
        Place::Backend,
        "source = '10.0.0.2'",
        "source: Addresses([10.0.0.2])",
    ),
    (Place::Backend, "mark = 5", "mark: Some(5)"),
    (
        Place::Backend,
        "interface = 'lo'",
        "interface: Some(\"lo\")",
    ),
    (Place::Server, "weight = 9", "weight: 9"),
    (Place::Server, "backup = true", "backup: true"),
    (Place::Server, "disabled = true", "disabled: true"),
    (
        Place::Health,
        "tls = 'a.example'",
        "server_name: Some(\"a.example\")",
    ),
    (Place::Health, "http = '/a'", "path: \"/a\""),
    (
        Place::Health,
        "host = 'a.example'\nhttp = '/a'",
        "host: Some(\"a.example\")",
    ),
    (
        Place::Health,
        "status = 204\nhttp = '/a'",
        "status: Some(204)",
    ),
    (Place::Health, "send = 'A'\nexpect = 'B'", "send: [65]"),
    (Place::Health, "expect = 'B'", "expect: [66]"),
    (Place::Health, "every = '9s'", "every: 9s"),
    (Place::Health, "timeout = '1s'", "timeout: 1s"),
    (Place::Health, "rise = 7", "rise: 7"),
    (Place::Health, "fall = 7", "fall: 7"),
    (Place::Datagrams, "max_sessions = 7", "max_sessions: 7"),
    (
        Place::Datagrams,
        "max_sessions_per_client = 7",
        "max_connections: Some(7)",
    ),
    (Place::Datagrams, "replies = 7", "replies: Some(7)"),
    (Place::Datagrams, "ttl = 'keep'", "ttl: Keep"),
    (
        Place::Datagrams,
        "dont_fragment = 'yes'",
        "dont_fragment: Yes",
    ),
];

#[test]
fn every_key_reaches_the_plan() {
    let without = examine(Place::Process, "").expect("a plan");
    for (place, lines, added) in KEYS {
        assert!(!without.contains(added), "{added} without {lines}");
        let plan = examine(*place, lines).unwrap_or_else(|why| panic!("{why}"));
        assert!(plan.contains(added), "no {added} by {lines}: {plan}");
    }
}

/// The message about an unknown key lists those that there are.
#[test]
fn no_key_is_forgotten_here() {
    // Those of every configuration.
    let always = [
        "address", "backend", "bypass", "defaults", "health", "listener", "process", "protocol",
        "route", "servers", "tcp",
    ];
    let of_defaults = super::precedence::keys_of_defaults();
    let places = [
        Place::Process,
        Place::Listener,
        Place::Route,
        Place::Backend,
        Place::Server,
        Place::Health,
    ];
    for place in places {
        let mistakes = examine(place, "x_y_z = 1").expect_err("no such key");
        let (_, keys) = mistakes
            .split_once("\"x_y_z\"; it takes ")
            .expect("the keys");
        let keys = keys.lines().next().expect("a line");
        for key in keys.split(", ").flat_map(|keys| keys.split(" or ")) {
            let begins = |lines: &str| lines.starts_with(&format!("{key} "));
            let is_here = |of| of == place || (place, of) == (Place::Listener, Place::Datagrams);
            let is_tried = KEYS.iter().any(|it| is_here(it.0) && begins(it.1));
            assert!(
                is_tried || always.contains(&key) || of_defaults.contains(&key),
                "no test of {key}, {place:?}"
            );
        }
    }
}
