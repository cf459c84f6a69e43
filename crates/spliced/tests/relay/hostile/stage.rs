//! A relay between a client and a server in namespaces of their own, and a forger beside each of the two.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use netlab::{Lab, Namespace, Need, available};
use splice_bpf::types::segment_state;

use super::connection::{Connection, Side};
use super::forger::Forger;
use super::hops::Hops;
use super::vanish::SETTINGS;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::BINARY;
use crate::segment::hop::Hop;
use crate::server::Server;

/// The outcome in the access log of a pair whose streams have both ended in order.
pub(super) const IN_ORDER: &[&str] = &["end of stream"];
/// That of a pair with a reset.
pub(super) const BY_RESET: &[&str] = &["reset by client", "reset by target"];

/// Of a relay that is told one.
const USER_TIMEOUT: &str = "3s";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

pub(super) struct Stage {
    lab: Lab,
    /// The client and the server behind routers.
    hops: Option<Hops>,
    server: Server,
    hop: Hop,
    engine: String,
    family: Family,
    at_client: Forger,
    at_server: Forger,
}

/// How a relay is started.
struct Start<'a> {
    engine: &'a str,
    family: Family,
    /// Its options beside the engine.
    options: &'a [&'a str],
    /// A program that starts it, and the arguments of that program before its own.
    by: &'a [&'a str],
}

impl<'a> Start<'a> {
    fn with(engine: &'a str, family: Family) -> Self {
        Self {
            engine,
            family,
            options: &[],
            by: &[],
        }
    }

    fn command(&self, lab: &Lab) -> Command {
        match self.by {
            [] => lab.relay().command(BINARY),
            [program, arguments @ ..] => {
                let mut command = lab.relay().command(program);
                command.args(arguments).arg(BINARY);
                command
            }
        }
    }
}

impl Stage {
    /// Runs a case on a relay with this engine.
    pub(super) fn with(engine: &str, family: Family, case: impl FnOnce(&Self)) {
        Self::run(&Start::with(engine, family), |_| None, case);
    }

    /// The same, with a relay that gives an end up after this time.
    pub(super) fn with_user_timeout(engine: &str, family: Family, case: impl FnOnce(&Self)) {
        let start = Start {
            options: &["--user-timeout", USER_TIMEOUT],
            ..Start::with(engine, family)
        };
        Self::run(&start, |_| None, case);
    }

    /// The same, with a relay that soon gives up who has vanished.
    pub(super) fn impatient(engine: &str, family: Family, case: impl FnOnce(&Self)) {
        let hasten = |lab: &Lab| {
            hasten(lab);
            None
        };
        Self::run(&Start::with(engine, family), hasten, case);
    }

    /// The same, with a router on each side of the relay.
    pub(super) fn impatient_routed(engine: &str, family: Family, case: impl FnOnce(&Self)) {
        Self::impatient_routed_by(&[], engine, family, case);
    }

    /// The same, with a relay that this program starts: its own arguments come after these.
    pub(super) fn impatient_routed_by(
        by: &[&str],
        engine: &str,
        family: Family,
        case: impl FnOnce(&Self),
    ) {
        let prepare = |lab: &Lab| {
            hasten(lab);
            Some(Hops::behind(lab))
        };
        let start = Start {
            by,
            ..Start::with(engine, family)
        };
        Self::run(&start, prepare, case);
    }

    /// With a router on each side of the relay: the lab's client and server.
    pub(super) fn routed(engine: &str, family: Family, case: impl FnOnce(&Self)) {
        Self::routed_by(&[], engine, family, case);
    }

    /// The same, with a relay that this program starts.
    pub(super) fn routed_by(by: &[&str], engine: &str, family: Family, case: impl FnOnce(&Self)) {
        let start = Start {
            by,
            ..Start::with(engine, family)
        };
        Self::run(&start, |lab| Some(Hops::behind(lab)), case);
    }

    /// The same, where something is done before the relay runs.
    pub(super) fn routed_after(
        prepare: impl FnOnce(&Lab),
        engine: &str,
        family: Family,
        case: impl FnOnce(&Self),
    ) {
        let hops = |lab: &Lab| {
            let hops = Hops::behind(lab);
            prepare(lab);
            Some(hops)
        };
        Self::run(&Start::with(engine, family), hops, case);
    }

    fn run(start: &Start<'_>, hops: impl FnOnce(&Lab) -> Option<Hops>, case: impl FnOnce(&Self)) {
        if available(Need::Root) && available(Need::Ss) {
            let lab = Lab::new().expect("a lab");
            let hops = hops(&lab);
            case(&Self::between(lab, hops, start));
        }
    }

    fn between(lab: Lab, hops: Option<Hops>, start: &Start<'_>) -> Self {
        let family = start.family;
        let [listen, target]: [IpAddr; 2] = match (family, &hops) {
            (Family::V4, None) => [Lab::RELAY_V4.into(), Lab::SERVER_V4.into()],
            (Family::V6, None) => [Lab::RELAY_V6.into(), Lab::SERVER_V6.into()],
            (Family::V4, Some(_)) => [Lab::RELAY_V4.into(), Hops::FAR_V4.into()],
            (Family::V6, Some(_)) => [Lab::RELAY_V6.into(), Hops::FAR_V6.into()],
        };
        let any_port = |ip| SocketAddr::new(ip, 0).to_string();
        let client_side = hops
            .as_ref()
            .map_or_else(|| lab.client(), |hops| &hops.near);
        let server_side = hops.as_ref().map_or_else(|| lab.server(), |hops| &hops.far);
        let server = Server::in_namespace(server_side, &any_port(target));
        let mut command = start.command(&lab);
        command.args(["relay", &any_port(listen), &server.address]);
        command.args(["--engine", start.engine]).args(start.options);
        Self {
            hop: Hop::spawn(&mut command),
            engine: start.engine.to_owned(),
            family,
            at_client: Forger::in_namespace(client_side, family),
            at_server: Forger::in_namespace(server_side, family),
            lab,
            hops,
            server,
        }
    }

    pub(super) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// Where the client is.
    pub(super) fn client(&self) -> &Namespace {
        let hops = self.hops.as_ref();
        hops.map_or_else(|| self.lab.client(), |hops| &hops.near)
    }

    /// Where the server is.
    pub(super) fn server(&self) -> &Namespace {
        let hops = self.hops.as_ref();
        hops.map_or_else(|| self.lab.server(), |hops| &hops.far)
    }

    pub(super) fn hop(&self) -> &Hop {
        &self.hop
    }

    pub(super) fn target(&self) -> &Server {
        &self.server
    }

    pub(super) fn family(&self) -> Family {
        self.family
    }

    pub(super) fn engine(&self) -> &str {
        &self.engine
    }

    /// Whether the engine translates segments.
    pub(super) fn splices(&self) -> bool {
        self.engine != "copy"
    }

    pub(super) fn forger(&self, side: Side) -> &Forger {
        match side {
            Side::Client => &self.at_client,
            Side::Server => &self.at_server,
        }
    }

    /// Connections that the engine has taken. A spliced one has carried nothing yet: it is idle since its
    /// change-over.
    pub(super) fn connect(&self, count: usize) -> Vec<Connection> {
        let connect = || Peer::connect(self.hop.address());
        let connections = (0..count).map(|_| Connection {
            client: self.client().enter(connect).expect("entered"),
            server: self.server.accept(),
        });
        let connections: Vec<_> = connections.collect();
        if self.splices() {
            until("the connections are spliced", || {
                self.hop.are_spliced(count)
            });
        } else {
            // Otherwise the relay may not know yet that its target is connected.
            for connection in &connections {
                connection.moves_a_byte(Side::Client);
            }
        }
        connections
    }

    /// A rule of nftables that drops what clients send.
    pub(super) fn stop_clients(&self) {
        let port = self.hop.relay.port();
        self.nft(&format!(
            "add table inet stop; \
             add chain inet stop c {{ type filter hook input priority 0; }}; \
             add rule inet stop c tcp dport {port} drop"
        ));
    }

    /// Removes that.
    pub(super) fn let_clients_pass(&self) {
        self.nft("delete table inet stop");
    }

    fn nft(&self, rules: &str) {
        let done = self.lab.relay().command("nft").arg(rules).output();
        let done = done.expect("nft runs");
        assert!(done.status.success(), "{rules}: {done:?}");
    }

    /// Waits until the program translates for no connection any more.
    pub(super) fn until_all_are_back(&self) {
        let by_program = [
            segment_state::OVERLAP,
            segment_state::SPLICED,
            segment_state::HELD,
        ];
        until("all have gone back", || {
            let states = self.hop.states();
            !states.iter().any(|state| by_program.contains(state))
        });
    }

    /// Waits until the relay has logged the end of this number of pairs, and has no socket of them. Every one must
    /// have one of these outcomes.
    pub(super) fn expect_ended(&self, pairs: usize, outcomes: &[&str]) {
        until("all pairs have ended", || self.hop.connections() == pairs);
        for entry in self.hop.entries() {
            let outcome = entry["outcome"].as_str().expect("an outcome");
            assert!(outcomes.contains(&outcome), "{entry}");
        }
        until("the relay has no connected socket", || {
            let listed = self.lab.relay().command("ss").arg("-Htn").output();
            let listed = listed.expect("ss runs");
            assert!(listed.status.success(), "{listed:?}");
            listed.stdout.is_empty()
        });
    }
}

/// Has the relay's host give up soon who has vanished.
pub(super) fn hasten(lab: &Lab) {
    for (name, value) in SETTINGS {
        lab.relay().set_sysctl(name, value).expect("set");
    }
}
