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
    /// At a server of a backend; `None`: a relay has one target.
    pub(crate) held: Option<Held>,
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

    /// What is known of it now. `listener` is the address that the client has sent to.
    pub(crate) fn told(&self, listener: &SocketAddress) -> Own {
        let (backend, server) = self.place();
        Own {
            id: self.id,
            listener: self.terms.listener(listener),
            route: self.route(),
            backend: backend.into(),
            server: (*server).into(),
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

    /// The number of the route that took the client.
    fn route(&self) -> usize {
        self.held.as_ref().map_or(1, Held::route)
    }

    /// The names of the backend and of the server. For a relay, both are the target as it was typed.
    fn place(&self) -> (&str, Arc<str>) {
        match &self.held {
            Some(held) => (held.backend_name(), held.server_name()),
            None => {
                let name = self.terms.destination.target_name().unwrap_or_default();
                (name, name.into())
            }
        }
    }

    /// Adds what has moved to the counters of the process.
    pub(crate) fn account(&mut self) {
        if let Some(held) = &mut self.held {
            held.account([&self.to_target, &self.to_client]);
        }
    }

    /// Logs that it has begun. `listener` is as in [`told`](Self::told).
    pub(crate) fn began(&self, listener: &SocketAddress) {
        let log = self.terms.access_log.as_ref();
        if log.is_some_and(|log| log.has_starts()) {
            self.log(listener, None);
        }
    }

    /// Logs and counts that it has ended.
    pub(crate) fn ended(&mut self, listener: &SocketAddress, outcome: Outcome) {
        self.account();
        if let Some(held) = &self.held {
            held.ended(outcome);
        }
        self.log(listener, Some(&outcome.to_string()));
    }

    fn log(&self, listener: &SocketAddress, outcome: Option<&str>) {
        let Some(log) = &self.terms.access_log else {
            return;
        };
        let moved = |flow: &Flow| Moved {
            bytes: flow.bytes,
            datagrams: Some(flow.datagrams),
            dropped: Some(flow.dropped.sum()),
            messages: None,
        };
        let (backend, server) = self.place();
        let listener = self.terms.listener(listener);
        log.write(&Entry {
            route: Some(self.route()),
            backend: Some(backend),
            client: &self.client,
            target: &shown(&self.target),
            moved: outcome.map(|_| [&self.to_target, &self.to_client].map(moved)),
            lasted: outcome.map(|_| self.began.elapsed()),
            ..Entry::copied(self.id, &listener, &server, outcome)
        });
    }
}
