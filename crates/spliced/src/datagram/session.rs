//! What one client and the target exchange.

use std::net::SocketAddr;
use std::time::Instant;

use super::counters::Flow;
use super::plan::DatagramPlan;
use super::sender::Sender;
use super::socket::DatagramSocket;
use crate::access_log::{AccessLog, Entry, Moved};
use crate::client_limit::ClientPermit;
use crate::sessions::{End, Own, Phase, Units};
use crate::socket_address::SocketAddress;

/// How far a session has come: those that come first make room first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The target has answered as often as the relay expects.
    Finished,
    New,
    /// The client has sent again after an answer.
    Assured,
}

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
    /// The client has sent again after an answer.
    pub(crate) is_assured: bool,
    /// Of the longest datagram to the target, in bytes.
    pub(crate) longest: usize,
    /// Counts it as a session of its client.
    pub(crate) _permit: Option<ClientPermit>,
    pub(crate) began: Instant,
    pub(crate) used: Instant,
}

impl Session {
    /// The target's address, if the socket is a UDP socket.
    pub(crate) fn udp_target(&self) -> Option<SocketAddr> {
        self.target.inet()
    }

    /// How far it has come. `replies` is how many datagrams answer one of the client, if that is known.
    pub(crate) fn standing(&self, replies: Option<u32>) -> Standing {
        let (asked, answered) = (self.to_target.seen(), self.to_client.seen());
        match replies {
            Some(replies) if answered >= asked.saturating_mul(replies.into()) => Standing::Finished,
            _ if self.is_assured => Standing::Assured,
            _ => Standing::New,
        }
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

    /// Its line in the access log: that of its end, if it has an outcome. `listener` is as in [`Session::told`].
    pub(crate) fn log(
        &self,
        log: &AccessLog,
        plan: &DatagramPlan,
        listener: &str,
        outcome: Option<&str>,
    ) {
        let server = plan.target.to_string();
        let moved = |flow: &Flow| Moved {
            bytes: flow.bytes,
            datagrams: Some(flow.datagrams),
            dropped: Some(flow.dropped.sum()),
            messages: None,
        };
        log.write(&Entry {
            client: &self.client,
            target: &self.target,
            moved: outcome.map(|_| [&self.to_target, &self.to_client].map(moved)),
            lasted: outcome.map(|_| self.began.elapsed()),
            ..Entry::copied(self.id, listener, &server, outcome)
        });
    }
}
