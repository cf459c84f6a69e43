//! The log says once that a backend has no server for new clients, and once that it has one again.

use rustix::process::Signal;

use super::Proxy;
use super::evidence::{configuration, server_of, wait_counted};
use super::fickle::Fickle;

const NONE: &str = "backend b: no server is left for new clients: ";
const AGAIN: &str = "backend b: new clients get a server again: ";

const HEALTH: &str = "health = { http = \"/health\", every = \"100ms\", rise = 1, fall = 1 }";

struct Stage {
    servers: [Fickle; 2],
    proxy: Proxy,
}

impl Stage {
    fn new() -> Self {
        let servers = [Fickle::new(), Fickle::new()];
        let both = servers.each_ref().map(Fickle::quoted).join(", ");
        let proxy = Proxy::run(&configuration(&both, HEALTH));
        Self { servers, proxy }
    }

    fn order(&self, order: &str, index: usize, more: &[&str]) {
        let address = self.servers[index].quoted();
        let arguments = [&[order, address.trim_matches('"')], more].concat();
        let output = self.proxy.ask_with(&arguments);
        assert!(output.status.success(), "{output:?}");
    }

    /// The configuration has these servers.
    fn reload(&self, disabled: bool, indices: &[usize]) {
        let servers = indices.iter().map(|index| {
            let address = self.servers[*index].quoted();
            format!("{{ address = {address}, disabled = {disabled} }}")
        });
        let servers = servers.collect::<Vec<_>>().join(", ");
        let output = self.proxy.reload(&configuration(&servers, HEALTH));
        assert!(output.status.success(), "{output:?}");
    }

    fn fall_sick(&self, index: usize) {
        self.servers[index].set(|it| &it.sick);
        let failed = server_of(&self.proxy, index)["failed_checks"].as_u64();
        // More than one: the state stays, and the log is silent.
        wait_counted(&self.proxy, index, "failed_checks", failed.unwrap_or(0) + 3);
    }

    fn get_well(&self, index: usize) {
        self.servers[index].unset(|it| &it.sick);
    }

    fn count(&self) -> [usize; 2] {
        [NONE, AGAIN].map(|words| self.proxy.relay.lines_logged(words))
    }
}

type Act = fn(&Stage);

/// What leaves a backend without servers, the reason that is told, and what gives it one again.
const CAUSES: [(Act, &str, Act); 7] = [
    (
        |stage| {
            [0, 1]
                .iter()
                .for_each(|index| stage.order("drain", *index, &[]))
        },
        "all 2 servers are drained",
        |stage| stage.order("undrain", 0, &[]),
    ),
    (
        |stage| {
            stage.order("weigh", 0, &["0"]);
            stage.order("weigh", 1, &["0"]);
            stage.order("weigh", 1, &["0"]);
        },
        "all 2 servers have the weight 0",
        |stage| stage.order("weigh", 1, &["5"]),
    ),
    (
        |stage| [0, 1].iter().for_each(|index| stage.fall_sick(*index)),
        "all 2 servers are down",
        |stage| stage.get_well(1),
    ),
    (
        |stage| {
            stage.order("drain", 0, &[]);
            stage.fall_sick(1);
        },
        "of 2 servers, 1 is down and 1 is drained",
        |stage| stage.order("undrain", 0, &[]),
    ),
    (
        |stage| stage.reload(true, &[0, 1]),
        "all 2 servers are disabled",
        |stage| stage.reload(false, &[0, 1]),
    ),
    (
        |stage| {
            stage.order("drain", 1, &[]);
            stage.reload(false, &[1]);
        },
        "its server is drained",
        |stage| stage.reload(false, &[0, 1]),
    ),
    (
        |stage| {
            stage.fall_sick(1);
            stage.reload(false, &[1]);
        },
        "its server is down",
        |stage| {
            let output = stage
                .proxy
                .reload(&configuration(&stage.servers[1].quoted(), ""));
            assert!(output.status.success(), "{output:?}");
        },
    ),
];

#[test]
fn each_cause_is_told_once_and_its_end_once() {
    for (breaks, why, mends) in CAUSES {
        let stage = Stage::new();
        assert_eq!(stage.count(), [0, 0], "{why}");
        breaks(&stage);
        let line = stage.proxy.relay.wait_logged(NONE);
        assert!(
            line.contains(" WARN ") && line.ends_with(&format!(": {why}")),
            "{line}, not {why}"
        );
        assert_eq!(stage.count(), [1, 0], "{why}");
        mends(&stage);
        let line = stage.proxy.relay.wait_logged(AGAIN);
        assert!(line.contains(" INFO "), "{line}");
        let told = stage.proxy.status();
        assert!(told["backends"][0]["why_none"].is_null(), "{told}");
        // A line of its own comes after all that there are.
        stage.proxy.write("");
        stage.proxy.relay.signal(Signal::HUP);
        stage.proxy.relay.wait_logged("not reloaded");
        assert_eq!(stage.count(), [1, 1], "{why}");
    }
}

/// One that a reload exchanges has a server all the time.
#[test]
fn a_reload_that_exchanges_servers_is_no_gap() {
    let stage = Stage::new();
    for indices in [&[0][..], &[1], &[0]] {
        stage.reload(false, indices);
    }
    let other = |off: usize| {
        let servers = stage.servers.each_ref().map(Fickle::quoted);
        let servers = [0, 1].map(|index| {
            format!(
                "{{ address = {}, disabled = {} }}",
                servers[index],
                index == off
            )
        });
        let output = stage
            .proxy
            .reload(&configuration(&servers.join(", "), HEALTH));
        assert!(output.status.success(), "{output:?}");
    };
    [0, 1, 0].into_iter().for_each(other);
    stage.order("drain", 1, &[]);
    stage.proxy.relay.wait_logged(NONE);
    assert_eq!(stage.count(), [1, 0]);
}
