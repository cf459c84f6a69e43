//! What the logs say about a connection that has ended.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use splice::{Outcome, Reason, Side, Waker};

use crate::backend::{Backend, Lease};
use crate::client_limit::ClientPermit;
use crate::connection_limit::ConnectionPermit;
use crate::rate_limited_warning::more;
use crate::roster::Seat;
use crate::service::{Service, Terms};
use crate::sessions::{Entry, KILLED, Phase, Session, words};
use crate::socket_address::SocketAddress;
use crate::tally::Ending;

/// One connection of a client, for the logs. It holds the connection's permit.
pub(super) struct Record {
    /// What others may read while it lasts.
    session: Arc<Session>,
    /// At the server that was reached.
    place: Option<(Lease, Seat)>,
    /// The server has sent something before the pair.
    has_answer: bool,
    /// When its first backend was found.
    wanted_at: Option<Instant>,
    /// When the server was reached.
    connected_at: Instant,
    terms: Arc<Terms>,
    service: Arc<Service>,
    /// In the listener's roster, and among the sessions.
    entered: Option<(Seat, Entry)>,
    client_permit: Option<ClientPermit>,
    _permit: ConnectionPermit,
}

impl Record {
    pub(super) fn new(
        client: Option<SocketAddress>,
        permit: ConnectionPermit,
        terms: Arc<Terms>,
        service: Arc<Service>,
    ) -> Self {
        let id = service.process.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        let tally = terms.tallies.without_backend();
        let session = Session::new(id, Arc::clone(&terms.plan), client, tally);
        Self {
            wanted_at: None,
            connected_at: session.accepted_at(),
            session,
            place: None,
            has_answer: false,
            terms,
            service,
            entered: None,
            client_permit: None,
            _permit: permit,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.session.id()
    }

    /// The client's proxy has told its address.
    pub(super) fn comes_from(&mut self, client: SocketAddr) {
        let client = SocketAddress::Inet(client);
        let mut facts = self.session.facts();
        if facts.client.as_ref() != Some(&client) {
            facts.peer = facts.client.replace(client);
        }
    }

    /// The connection has a name in the logs of other proxies, too. The first one stays.
    pub(super) fn identified(&mut self, unique_id: &[u8]) {
        self.session
            .facts()
            .unique_id
            .get_or_insert_with(|| unique_id.escape_ascii().to_string().into());
    }

    pub(super) fn client_ip(&self) -> Option<IpAddr> {
        Some(self.session.facts().client.as_ref()?.inet()?.ip())
    }

    /// Takes a seat in the listener's roster, and a place among the sessions. `waker` closes the connection.
    pub(super) fn enter(&mut self, waker: impl Fn() -> Waker) {
        let seat = self.service.connections.enter(waker());
        let sessions = &self.service.process.sessions;
        self.entered = Some((seat, sessions.enter(&self.session, waker())));
    }

    /// The connection is in this phase now.
    pub(super) fn is_in(&self, phase: Phase) {
        self.session.set_phase(phase);
    }

    /// Somebody has asked for its end.
    pub(super) fn is_killed(&self) -> bool {
        self.session.is_killed()
    }

    /// What others read. The record itself goes along with the pair.
    pub(super) fn session(&self) -> Arc<Session> {
        Arc::clone(&self.session)
    }

    /// The client is within its limits.
    pub(super) fn admitted(&mut self, permit: Option<ClientPermit>) {
        self.client_permit = permit;
    }

    /// The listener was removed, and has cut its connections.
    pub(super) fn is_cut(&self) -> bool {
        self.entered.as_ref().is_some_and(|(seat, _)| seat.is_cut())
    }

    pub(super) fn named(&mut self, server_name: Option<&str>) {
        // Most have none.
        if server_name.is_some() {
            self.session.facts().server_name = server_name.map(Into::into);
        }
    }

    /// The route with this index takes it.
    pub(super) fn routed(&mut self, index: usize) {
        self.session.facts().route = Some(index + 1);
    }

    pub(super) fn server_name(&self) -> Option<Arc<str>> {
        self.session.facts().server_name.clone()
    }

    pub(super) fn wants(&mut self, backend: &Arc<Backend>) {
        let mut facts = self.session.facts();
        facts.backend = Some(Arc::clone(backend));
        facts.tally = Arc::clone(self.terms.tallies.with(backend.name()));
        // Another one may be the fallback of the first.
        if self.wanted_at.is_none() {
            let now = Instant::now();
            self.wanted_at = Some(now);
            let taken = now.saturating_duration_since(self.session.accepted_at());
            facts.tally.deciding.add(taken);
        }
    }

    /// This server was picked.
    pub(super) fn tries(&mut self, lease: &Lease) {
        self.session.facts().server = Some(lease.server_name());
    }

    /// Where the client is to go: the server that was reached, or the backend.
    pub(super) fn wanted(&self) -> String {
        self.session.facts().wanted()
    }

    pub(super) fn asks_for(&mut self, destination: String) {
        self.session.facts().asked = Some(destination);
    }

    pub(super) fn passed_on(&mut self, bytes: u64) {
        self.session.facts().passed_on_bytes += bytes;
    }

    pub(super) fn answered(&mut self) {
        self.has_answer = true;
    }

    pub(super) fn has_answer(&self) -> bool {
        self.has_answer
    }

    pub(super) fn connected_to(&mut self, place: Option<(Lease, Seat)>) {
        self.connected_at = Instant::now();
        let mut facts = self.session.facts();
        facts.reached_at = Some(self.connected_at);
        if let Some(wanted_at) = self.wanted_at {
            let taken = self.connected_at.saturating_duration_since(wanted_at);
            facts.tally.connecting.add(taken);
        }
        drop(facts);
        self.place = place.map(|(lease, seat)| {
            seat.join();
            (lease, seat)
        });
    }

    /// Logs the end of the pair.
    pub(super) fn ended(self, outcome: &Outcome) {
        let (mut why, mut ending) = (words(outcome.reason), Ending::from(outcome.reason));
        if outcome.reason == Reason::Shutdown {
            if self.is_killed() {
                (why, ending) = (KILLED.into(), Ending::Killed);
            } else if self.is_cut() {
                (why, ending) = ("its listener was removed".into(), Ending::ListenerRemoved);
            } else if self.place.as_ref().is_some_and(|(_, seat)| seat.is_cut()) {
                (why, ending) = ("its server was removed".into(), Ending::ServerRemoved);
            } else if self
                .place
                .as_ref()
                .is_some_and(|(_, seat)| seat.is_purged())
            {
                (why, ending) = ("its server went down".into(), Ending::ServerDown);
            } else {
                let cut_short = &self.service.process.cut_short;
                cut_short.fetch_add(1, Ordering::Relaxed);
            }
        }
        if let Some((lease, _)) = &self.place {
            if self.has_answer || outcome.moved.b_to_a > 0 {
                lease.answered(self.client_ip(), self.connected_at);
            } else if outcome.reason == Reason::Reset(Side::B) {
                lease.reset_before_first_byte(self.client_ip());
            }
        }
        if outcome.reason == Reason::Refused {
            self.warn_of_refusal(&outcome.why_engine);
        }
        self.write(Some(outcome), &why, ending);
    }

    fn warn_of_refusal(&self, why: &str) {
        self.service.warnings.engine_refused.emit(|suppressed| {
            let (client, wanted) = {
                let facts = self.session.facts();
                (facts.client_name(), facts.wanted())
            };
            tracing::warn!(
                "connection {} from {} to {} was reset: engine {} refused it: {why}{}",
                self.id(),
                client,
                wanted,
                self.terms.options.engine,
                more(suppressed)
            );
        });
    }

    /// Writes the access log; without an outcome there was no pair.
    pub(super) fn write(self, outcome: Option<&Outcome>, why: &str, ending: Ending) {
        self.session.ended(outcome, ending);
        match outcome {
            Some(Outcome {
                engine, why_engine, ..
            }) => tracing::debug!(
                "connection {} ended: {why}; engine {engine}: {why_engine}",
                self.id()
            ),
            None => tracing::debug!("connection {} ended: {why}", self.id()),
        }
        if let Some(log) = &self.terms.access_log {
            self.session.log_end(log, outcome, why);
        }
    }
}
