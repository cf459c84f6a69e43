//! Where a trial has its connections: on loopback, or between network namespaces of its own.

use std::net::{Ipv4Addr, TcpStream};

use anyhow::Result;

use crate::bypass::OwnGroup;
use crate::own_network::{Namespace, connection};

/// The two networks of a demonstration, each with 24 bits: from RFC 5737, so that nobody takes them for real ones.
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const RELAY_TO_CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
const RELAY_TO_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);

/// Where the client, the relay and the server are.
#[derive(Debug)]
pub(super) enum Stage {
    Loopback,
    /// Each in a network namespace, with a veth pair from one to the next. They go with this process.
    Namespaces {
        client: Namespace,
        relay: Namespace,
        server: Namespace,
    },
}

impl Stage {
    /// Three network namespaces, and a network from one to the next.
    ///
    /// # Errors
    /// Without the right to have them, or without ip(8).
    pub(super) fn namespaces() -> Result<Self> {
        let [client, relay, server] = [Namespace::new()?, Namespace::new()?, Namespace::new()?];
        relay.connect("to-client", RELAY_TO_CLIENT, &client, CLIENT)?;
        relay.connect("to-server", RELAY_TO_SERVER, &server, SERVER)?;
        Ok(Self::Namespaces {
            client,
            relay,
            server,
        })
    }

    /// A connection from the client to the relay.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn to_relay(&self) -> Result<(TcpStream, TcpStream)> {
        self.to_relay_in(None)
    }

    /// The same, of sockets in a control group.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn to_relay_in(&self, group: Option<&OwnGroup>) -> Result<(TcpStream, TcpStream)> {
        let enter = || group.map_or(Ok(()), OwnGroup::enter_thread);
        match self {
            Self::Loopback => connection(Ipv4Addr::LOCALHOST, [None, None], &enter),
            Self::Namespaces { client, relay, .. } => {
                connection(RELAY_TO_CLIENT, [Some(client), Some(relay)], &enter)
            }
        }
    }

    /// A connection from the relay to the server.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn to_server(&self) -> Result<(TcpStream, TcpStream)> {
        match self {
            Self::Loopback => connection(Ipv4Addr::LOCALHOST, [None, None], &|| Ok(())),
            Self::Namespaces { relay, server, .. } => {
                connection(SERVER, [Some(relay), Some(server)], &|| Ok(()))
            }
        }
    }

    /// Has this thread be in the client's network.
    ///
    /// # Errors
    /// Of setns(2).
    pub(super) fn enter_client(&self) -> Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Namespaces { client, .. } => client.enter(),
        }
    }

    /// Has this thread be in the relay's network.
    ///
    /// # Errors
    /// Of setns(2).
    pub(super) fn enter_relay(&self) -> Result<()> {
        match self {
            Self::Loopback => Ok(()),
            Self::Namespaces { relay, .. } => relay.enter(),
        }
    }
}
