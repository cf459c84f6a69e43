//! A relay between a client and a server in namespaces of their own, and a forger beside each of the two.

use std::net::{IpAddr, SocketAddr};

use netlab::{Lab, Need, available};

use super::connection::{Connection, Side};
use super::forger::Forger;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::BINARY;
use crate::segment::hop::Hop;
use crate::server::Server;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

pub(super) struct Stage {
    lab: Lab,
    server: Server,
    hop: Hop,
    /// Whether the engine translates segments.
    splices: bool,
    at_client: Forger,
    at_server: Forger,
}

impl Stage {
    /// Runs a case on a relay with this engine.
    pub(super) fn with(engine: &str, family: Family, case: impl FnOnce(&Self)) {
        if available(Need::Root) && available(Need::Ss) {
            case(&Self::new(engine, family));
        }
    }

    fn new(engine: &str, family: Family) -> Self {
        let lab = Lab::new().expect("a lab");
        let (listen, target): (IpAddr, IpAddr) = match family {
            Family::V4 => (Lab::RELAY_V4.into(), Lab::SERVER_V4.into()),
            Family::V6 => (Lab::RELAY_V6.into(), Lab::SERVER_V6.into()),
        };
        let any_port = |ip| SocketAddr::new(ip, 0).to_string();
        let server = Server::in_namespace(lab.server(), &any_port(target));
        let mut command = lab.relay().command(BINARY);
        command.args(["relay", &any_port(listen), &server.address]);
        command.args(["--engine", engine]);
        Self {
            hop: Hop::spawn(&mut command),
            splices: engine != "copy",
            at_client: Forger::in_namespace(lab.client(), family),
            at_server: Forger::in_namespace(lab.server(), family),
            lab,
            server,
        }
    }

    pub(super) fn forger(&self, side: Side) -> &Forger {
        match side {
            Side::Client => &self.at_client,
            Side::Server => &self.at_server,
        }
    }

    /// Connections that are idle since their change-over, if the engine has one.
    pub(super) fn connect(&self, count: usize) -> Vec<Connection> {
        let connections = (0..count).map(|number| {
            let connect = || Peer::connect(self.hop.address());
            let connection = Connection {
                client: self.lab.client().enter(connect).expect("entered"),
                server: self.server.accept(),
            };
            connection.greet(number as u64);
            connection
        });
        let connections = connections.collect();
        if self.splices {
            until("the connections are spliced", || {
                self.hop.are_spliced(count)
            });
        }
        connections
    }

    /// Waits until the relay has logged this number of pairs, and has no socket of them.
    pub(super) fn expect_ended(&self, pairs: usize) {
        until("all pairs have ended", || self.hop.connections() == pairs);
        until("the relay has no connected socket", || {
            let listed = self.lab.relay().command("ss").arg("-Htn").output();
            let listed = listed.expect("ss runs");
            assert!(listed.status.success(), "{listed:?}");
            listed.stdout.is_empty()
        });
    }
}
