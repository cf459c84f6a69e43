//! A key counts where it stands closest: in the listener or backend, then in `[defaults]`, then for the process,
//! then as it is built in. No place makes another one's value of another key get lost.

use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use super::examine_text;
use crate::plan::{BackendPlan, ListenerPlan, OnRemove};

/// What is written in each place.
#[derive(Clone, Copy, Default)]
struct Written<'t> {
    process: &'t str,
    defaults: &'t str,
    listener: &'t str,
    backend: &'t str,
}

impl Written<'_> {
    fn text(self) -> String {
        let Self {
            process,
            defaults,
            listener,
            backend,
        } = self;
        // Some keys are for a socket file, and others for TCP.
        let of_file = ["mode", "owner", "group"].map(|key| format!("{key} = "));
        let is_written = |key: &String| defaults.contains(key) || listener.contains(key);
        let address = match of_file.iter().any(is_written) {
            true => "unix:/run/a",
            false => "10.0.0.2:1",
        };
        format!(
            "{process}\n[defaults]\n{defaults}\n\
             [[listener]]\naddress = \"{address}\"\n{listener}\n[[listener.route]]\nbackend = \"b\"\n\
             [backend.b]\nservers = \"10.0.0.1:1\"\nhealth = {{ tcp = true }}\n{backend}\n"
        )
    }

    /// The listener and the backend.
    fn plan(self) -> (ListenerPlan, BackendPlan) {
        let text = self.text();
        match examine_text(Path::new("spliced.toml"), &text).plan {
            Ok(plan) => (
                ListenerPlan::clone(&plan.listeners[0]),
                BackendPlan::clone(&plan.backends[0]),
            ),
            Err(mistakes) => panic!("{mistakes}\n{text}"),
        }
    }

    /// What is wrong with it.
    fn mistakes(self) -> String {
        let text = self.text();
        let plan = examine_text(Path::new("spliced.toml"), &text).plan;
        plan.expect_err(&text).to_string()
    }
}

/// A key that `[defaults]` has for listeners or backends, and how a plan shows it.
struct Key<P> {
    name: &'static str,
    /// As it is built in, two values as they are written, and what the plan then has.
    built_in: &'static str,
    defaults: [&'static str; 2],
    own: [&'static str; 2],
    shown: fn(&P) -> &dyn Debug,
}

/// `name: built in, [written in [defaults] => planned], [written by itself => planned], field of the plan;`
macro_rules! keys {
    ($($name:literal: $built_in:expr, [$defaults:expr => $then:expr], [$own:expr => $last:expr], $($field:ident).+;)*) => {
        vec![$(Key {
            name: $name,
            built_in: $built_in,
            defaults: [$defaults, $then],
            own: [$own, $last],
            shown: |plan| &plan.$($field).+,
        }),*]
    };
}

fn of_listeners() -> Vec<Key<ListenerPlan>> {
    const SYSTEM: &str =
        "On(KeepAliveTimes { idle_seconds: None, interval_seconds: None, probes: None })";
    const PROBES: &str =
        "On(KeepAliveTimes { idle_seconds: None, interval_seconds: None, probes: Some(3) })";
    const NEVER: &str = "UserTimeout { milliseconds: 0 }";
    const TWENTY: &str = "UserTimeout { milliseconds: 20000 }";
    keys! {
        "engine": "Auto", ["'copy'" => "Only(Copy)"], ["'pipe'" => "Only(Pipe)"], engine;
        "from_syn": "false", ["true" => "true"], ["false" => "false"], from_syn;
        "bypass_firewall": "false", ["true" => "true"], ["false" => "false"], bypass_firewall;
        "mode": "None", ["'0660'" => "Some(FileMode(432))"], ["'600'" => "Some(FileMode(384))"],
            file_access.mode;
        "owner": "None", ["1" => "Some(1)"], ["'root'" => "Some(0)"], file_access.owner;
        "group": "None", ["'2'" => "Some(2)"], ["0" => "Some(0)"], file_access.group;
        "decide_within": "3s", ["'2s'" => "2s"], ["'1s'" => "1s"], decide_within;
        "first_bytes_limit": "65536", ["1024" => "1024"], ["512" => "512"], first_bytes_limit;
        "idle_timeout": "None", ["'2m'" => "Some(120s)"], ["'1m'" => "Some(60s)"], idle_timeout;
        "half_close_timeout": "None", ["'2m'" => "Some(120s)"], ["'1m'" => "Some(60s)"],
            half_close_timeout;
        "keepalive": SYSTEM, ["false" => "Off"], ["{ probes = 3 }" => PROBES], peer_timeouts.keepalive;
        "user_timeout": NEVER, ["'20s'" => TWENTY], ["'0s'" => NEVER], peer_timeouts.user_timeout;
        "splice_after": "None", ["'5ms'" => "Some(5ms)"], ["'0s'" => "Some(0ns)"], splice_after;
        "connect_timeout": "5s", ["'2s'" => "2s"], ["'1s'" => "1s"], connect_timeout;
        "max_connections": "None", ["20" => "Some(20)"], ["10" => "Some(10)"], max_connections;
        "max_connections_per_client": "None", ["20" => "Some(20)"], ["10" => "Some(10)"],
            per_client.max_connections;
        "new_connections_per_client": "None", ["20" => "Some(20)"], ["10" => "Some(10)"],
            per_client.new_per_second;
        "client_prefix": "64", ["{ ipv6 = 56 }" => "56"], ["{ ipv6 = 48 }" => "48"],
            per_client.ipv6_bits;
        "rate": "None", ["'2MB'" => "Some(2000000)"], ["'1MB'" => "Some(1000000)"], rate;
        "access_log": "None", ["'a'" => "Some(File(\"a\"))"], ["'-'" => "Some(StandardOutput)"],
            access_log.place;
        "access_log_fields": "None", ["'id'" => "Some(Fields([Id]))"],
            ["['time', 'id']" => "Some(Fields([Time, Id]))"], access_log.fields;
        "access_log_start": "false", ["true" => "true"], ["false" => "false"], access_log.starts;
        "on_remove": "Drain(30s)", ["'reset'" => "Reset"], ["'drain'" => "Drain(30s)"], on_remove;
        "drain_timeout": "Drain(30s)", ["'2s'" => "Drain(2s)"], ["'1s'" => "Drain(1s)"], on_remove;
    }
}

fn of_backends() -> Vec<Key<BackendPlan>> {
    keys! {
        "balance": "RoundRobin", ["'consistent'" => "Consistent(Client)"],
            ["'least-connections'" => "LeastConnections"], balance;
        "connect_timeout": "5s", ["'2s'" => "2s"], ["'1s'" => "1s"], connect_timeout;
        "send_proxy": "None", ["'v1'" => "Some(V1)"], ["'v2'" => "Some(V2)"], send_proxy;
        "max_connections_per_server": "None", ["20" => "Some(20)"], ["10" => "Some(10)"],
            max_connections_per_server;
        "queue": "1024", ["20" => "20"], ["0" => "0"], queue.most;
        "queue_timeout": "5s", ["'2s'" => "2s"], ["'1s'" => "1s"], queue.wait;
        "slow_start": "None", ["'2s'" => "Some(2s)"], ["'1s'" => "Some(1s)"], slow_start;
        "on_down": "false", ["'reset'" => "true"], ["'keep'" => "false"], resets_on_down;
        "on_remove": "Drain(30s)", ["'reset'" => "Reset"], ["'drain'" => "Drain(30s)"], on_remove;
        "drain_timeout": "Drain(30s)", ["'2s'" => "Drain(2s)"], ["'1s'" => "Drain(1s)"], on_remove;
    }
}

/// The keys that have a test here.
pub(super) fn keys_of_defaults() -> Vec<&'static str> {
    let listeners = of_listeners();
    let backends = of_backends();
    let names = listeners.iter().map(|key| key.name);
    names
        .chain(backends.iter().map(|key| key.name))
        // By a test of its own.
        .chain(["hash"])
        .collect()
}

fn check<P>(keys: &[Key<P>], plan: impl Fn(&str, &str) -> P) {
    for key in keys {
        let name = key.name;
        let line = |value: &str| format!("{name} = {value}");
        let (defaults, own) = (line(key.defaults[0]), line(key.own[0]));
        for (defaults, own, expected) in [
            ("", "", key.built_in),
            (&*defaults, "", key.defaults[1]),
            ("", &*own, key.own[1]),
            (&*defaults, &*own, key.own[1]),
        ] {
            let plan = plan(defaults, own);
            let shown = format!("{:?}", (key.shown)(&plan));
            assert_eq!(shown, expected, "[defaults] {defaults:?}, itself {own:?}");
        }
    }
}

#[test]
fn every_key_counts_where_it_stands_closest() {
    check(&of_listeners(), |defaults, listener| {
        let written = Written {
            defaults,
            listener,
            ..Written::default()
        };
        written.plan().0
    });
    check(&of_backends(), |defaults, backend| {
        let written = Written {
            defaults,
            backend,
            ..Written::default()
        };
        written.plan().1
    });
}

/// The message about an unknown key lists those that there are.
#[test]
fn no_key_of_defaults_is_forgotten_here() {
    let written = Written {
        defaults: "x_y_z = 1",
        ..Written::default()
    };
    let mistakes = written.mistakes();
    let (_, keys) = mistakes
        .split_once("\"x_y_z\"; it takes ")
        .expect("the keys");
    let keys: Vec<_> = keys
        .split(", ")
        .flat_map(|keys| keys.split(" or "))
        .collect();
    assert!(keys.len() > 20, "{keys:?}");
    let tried = keys_of_defaults();
    for key in keys {
        assert!(tried.contains(&key), "no test of {key}");
    }
}

#[test]
fn what_happens_on_removal_is_put_together_from_every_place() {
    let process = "drain_timeout = '7s'";
    let drain = |seconds| OnRemove::Drain(Duration::from_secs(seconds));
    for (process, defaults, own, expected) in [
        ("", "", "", drain(30)),
        (process, "", "", drain(7)),
        (process, "drain_timeout = '5s'", "", drain(5)),
        (
            process,
            "drain_timeout = '5s'",
            "drain_timeout = '0s'",
            drain(0),
        ),
        (process, "", "on_remove = 'drain'", drain(7)),
        (process, "", "drain_timeout = '3s'", drain(3)),
        (process, "", "on_remove = 'reset'", OnRemove::Reset),
        (process, "on_remove = 'reset'", "", OnRemove::Reset),
        ("", "on_remove = 'reset'", "on_remove = 'drain'", drain(30)),
        (
            process,
            "on_remove = 'reset'",
            "on_remove = 'drain'",
            drain(7),
        ),
        (
            process,
            "on_remove = 'reset'",
            "drain_timeout = '3s'",
            drain(3),
        ),
        (
            process,
            "on_remove = 'reset'",
            "on_remove = 'drain'\ndrain_timeout = '3s'",
            drain(3),
        ),
        // That of [defaults] is for those that drain.
        (
            process,
            "on_remove = 'reset'\ndrain_timeout = '5s'",
            "",
            OnRemove::Reset,
        ),
        (
            process,
            "on_remove = 'reset'\ndrain_timeout = '5s'",
            "on_remove = 'drain'",
            drain(5),
        ),
        (
            process,
            "drain_timeout = '5s'",
            "on_remove = 'reset'",
            OnRemove::Reset,
        ),
        (
            process,
            "drain_timeout = '5s'",
            "on_remove = 'drain'",
            drain(5),
        ),
    ] {
        let written = Written {
            process,
            defaults,
            listener: own,
            backend: own,
        };
        let (listener, backend) = written.plan();
        let text = written.text();
        assert_eq!(listener.on_remove, expected, "{text}");
        assert_eq!(backend.on_remove, expected, "{text}");
    }
}

#[test]
fn what_is_hashed_outlives_a_change_of_balance() {
    for (defaults, own, expected) in [
        (
            "balance = 'consistent'\nhash = 'sni'",
            "",
            "Consistent(ServerName)",
        ),
        (
            "balance = 'consistent'\nhash = 'sni'",
            "balance = 'consistent'",
            "Consistent(ServerName)",
        ),
        (
            "balance = 'consistent'\nhash = 'sni'",
            "balance = 'round-robin'",
            "RoundRobin",
        ),
        (
            "balance = 'consistent'\nhash = 'sni'",
            "hash = 'client'",
            "Consistent(Client)",
        ),
        (
            "balance = 'consistent'",
            "hash = 'sni'",
            "Consistent(ServerName)",
        ),
        // That of [defaults] is for those that hash.
        ("hash = 'sni'", "", "RoundRobin"),
        (
            "hash = 'sni'",
            "balance = 'consistent'",
            "Consistent(ServerName)",
        ),
        (
            "",
            "balance = 'consistent'\nhash = 'sni'",
            "Consistent(ServerName)",
        ),
    ] {
        let written = Written {
            defaults,
            backend: own,
            ..Written::default()
        };
        let (_, backend) = written.plan();
        assert_eq!(
            format!("{:?}", backend.balance),
            expected,
            "{}",
            written.text()
        );
    }
    for (defaults, own) in [
        ("", "hash = 'sni'"),
        ("hash = 'client'", "hash = 'sni'"),
        (
            "balance = 'consistent'",
            "balance = 'round-robin'\nhash = 'sni'",
        ),
    ] {
        let written = Written {
            defaults,
            backend: own,
            ..Written::default()
        };
        let mistakes = written.mistakes();
        assert!(
            mistakes.contains("hash needs balance = \"consistent\""),
            "{mistakes}"
        );
    }
}

/// The time in the queue is that of connecting, wherever each of them stands.
#[test]
fn the_time_in_the_queue_follows_the_time_to_connect() {
    for (defaults, own, seconds) in [
        ("connect_timeout = '2s'", "", 2),
        ("connect_timeout = '2s'", "connect_timeout = '1s'", 1),
        ("queue_timeout = '9s'", "connect_timeout = '1s'", 9),
        ("connect_timeout = '2s'", "queue_timeout = '9s'", 9),
    ] {
        let written = Written {
            defaults,
            backend: own,
            ..Written::default()
        };
        let (_, backend) = written.plan();
        let wait = Duration::from_secs(seconds);
        assert_eq!(backend.queue.wait, wait, "{}", written.text());
    }
}

#[test]
fn a_part_of_client_prefix_leaves_the_other_as_it_was() {
    for (defaults, own, bits) in [
        ("", "client_prefix = { ipv6 = 48 }", (32, 48)),
        ("client_prefix = { ipv4 = 24 }", "", (24, 64)),
        (
            "client_prefix = { ipv4 = 24 }",
            "client_prefix = { ipv6 = 48 }",
            (24, 48),
        ),
    ] {
        let written = Written {
            defaults,
            listener: own,
            ..Written::default()
        };
        let limits = written.plan().0.per_client;
        assert_eq!(
            (limits.ipv4_bits, limits.ipv6_bits),
            bits,
            "{}",
            written.text()
        );
    }
}
