//! What one client and the target exchange.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::control::Entered;
use super::counters::Flow;
use super::held::Held;
use super::outcome::Outcome;
use super::plan::shown;
use super::sender::Sender;
use super::service::ServiceTerms;
use super::socket::DatagramSocket;
use crate::access_log::{Entry, Moved};
use crate::client_limit::ClientPermit;
use crate::connection_limit::ConnectionPermit;
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
pub(crate) struct Session {
    pub(crate) id: u64,
    pub(crate) client: Sender,
    /// The address of this host, or the one that the kernel chooses.
    pub(crate) answers_from: Option<IpAddr>,
    /// The listener that the client has sent to: its index in the thread.
    pub(crate) listener: usize,
    pub(crate) socket: DatagramSocket,
    /// One call may send several datagrams to the target, as far as is known.
    pub(crate) target_takes_trains: bool,
    pub(crate) client_takes_trains: bool,
    pub(crate) target: SocketAddress,
    /// At a server of a backend.
    pub(crate) held: Held,
    /// Under which it was opened.
    pub(crate) terms: Arc<ServiceTerms>,
    pub(crate) to_target: Flow,
    pub(crate) to_client: Flow,
    /// The client has sent again after an answer.
    pub(crate) is_assured: bool,
    /// Of the longest datagram to the target, in bytes.
    pub(crate) longest: usize,
    /// Counts it as a session of its client.
    pub(crate) permit: Option<ClientPermit>,
    pub(crate) began: Instant,
    pub(crate) used: Instant,
    pub(crate) _counted: ConnectionPermit,
    /// Counts it as a session of its thread.
    pub(crate) _entered: Entered,
}

impl Session {
    /// How far it has come. `replies` is how many datagrams answer one of the client, if that is known.
    pub(crate) fn standing(&self, replies: Option<u32>) -> Standing {
        let (asked, answered) = (self.to_target.seen(), self.to_client.seen());
        match replies {
            Some(replies) if answered >= asked.saturating_mul(replies.into()) => Standing::Finished,
            _ if self.is_assured => Standing::Assured,
            _ => Standing::New,
        }
    }

    /// What is known of it now.
    pub(crate) fn told(&self) -> Own {
        Own {
            id: self.id,
            listener: self.terms.name.clone(),
            route: self.held.route(),
            backend: self.held.backend_name().into(),
            server: (*self.held.server_name()).into(),
            client: self.client.to_string(),
            target: shown(&self.target),
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

    /// Adds what has moved to the counters of the process.
    pub(crate) fn account(&mut self) {
        self.held.account([&self.to_target, &self.to_client]);
    }

    /// Logs that it has begun.
    pub(crate) fn began(&self) {
        let log = self.terms.access_log.as_ref();
        if log.is_some_and(|log| log.has_starts()) {
            self.log(None);
        }
    }

    /// Logs and counts that it has ended.
    pub(crate) fn ended(&mut self, outcome: Outcome) {
        self.account();
        self.held.ended(outcome);
        self.log(Some(&outcome.to_string()));
    }

    fn log(&self, outcome: Option<&str>) {
        let Some(log) = &self.terms.access_log else {
            return;
        };
        let moved = |flow: &Flow| Moved {
            bytes: flow.bytes,
            datagrams: Some(flow.datagrams),
            dropped: Some(flow.dropped.sum()),
            messages: None,
        };
        let server = self.held.server_name();
        log.write(&Entry {
            route: Some(self.held.route()),
            backend: Some(self.held.backend_name()),
            client: &self.client,
            target: &shown(&self.target),
            moved: outcome.map(|_| [&self.to_target, &self.to_client].map(moved)),
            lasted: outcome.map(|_| self.began.elapsed()),
            ..Entry::copied(self.id, &self.terms.name, &server, outcome)
        });
    }
}
