//! What one client and the target exchange.

use std::net::SocketAddr;
use std::time::Instant;

use serde::Serialize;

use super::counters::Flow;
use super::sender::Sender;
use super::socket::DatagramSocket;
use crate::sessions::{End, Own, Phase, Units};
use crate::socket_address::SocketAddress;

/// A client's own socket to the target.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) client: Sender,
    /// The listener that the client has sent to: its index in the thread.
    pub(crate) listener: usize,
    pub(crate) socket: DatagramSocket,
    pub(crate) target: SocketAddress,
    pub(crate) to_target: Flow,
    pub(crate) to_client: Flow,
    pub(crate) began: Instant,
    pub(crate) used: Instant,
}

/// A session that has ended, in the access log.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// When it ended, RFC 3339 in UTC.
    time: String,
    /// Counts the sessions of this process from 1.
    id: u64,
    client: String,
    target: String,
    client_to_target_datagrams: u64,
    client_to_target_bytes: u64,
    client_to_target_dropped: u64,
    target_to_client_datagrams: u64,
    target_to_client_bytes: u64,
    target_to_client_dropped: u64,
    outcome: String,
    duration_ms: f64,
}

impl Session {
    /// The target's address, if the socket is a UDP socket.
    pub(crate) fn udp_target(&self) -> Option<SocketAddr> {
        self.target.inet()
    }

    /// What is known of it now. `listener` is the address that the client has sent to.
    pub(crate) fn told(&self, listener: String) -> Own {
        Own {
            id: self.id,
            listener,
            client: self.client.to_string(),
            target: self.target.to_string(),
            phase: Phase::Relaying,
            streams: [End::Open; 2],
            began: self.began,
            used: self.used,
            bytes: [self.to_target.bytes, self.to_client.bytes],
            units: Units {
                client_to_target_datagrams: Some(self.to_target.datagrams),
                target_to_client_datagrams: Some(self.to_client.datagrams),
                client_to_target_dropped: Some(self.to_target.dropped.sum()),
                target_to_client_dropped: Some(self.to_client.dropped.sum()),
                ..Units::default()
            },
        }
    }

    /// The line of the access log.
    pub(crate) fn entry(&self, outcome: String) -> Entry {
        let milliseconds = crate::access_log::Entry::milliseconds(self.began.elapsed());
        Entry {
            time: crate::access_log::Entry::now(),
            id: self.id,
            client: self.client.to_string(),
            target: self.target.to_string(),
            client_to_target_datagrams: self.to_target.datagrams,
            client_to_target_bytes: self.to_target.bytes,
            client_to_target_dropped: self.to_target.dropped.sum(),
            target_to_client_datagrams: self.to_client.datagrams,
            target_to_client_bytes: self.to_client.bytes,
            target_to_client_dropped: self.to_client.dropped.sum(),
            outcome,
            duration_ms: milliseconds,
        }
    }
}
