//! What the logs say about a connection that has ended.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use splice::{Outcome, Reason, Side};

use crate::access_log::Entry;
use crate::backend::{Backend, Lease};
use crate::client_limit::ClientPermit;
use crate::connection_limit::ConnectionPermit;
use crate::rate_limited_warning::more;
use crate::roster::Seat;
use crate::service::{Service, Terms};
use crate::socket_address::SocketAddress;

/// One connection of a client, for the logs. It holds the connection's permit.
pub(super) struct Record {
    id: u64,
    client: Option<SocketAddress>,
    /// What names the connection in the logs of all proxies, escaped.
    unique_id: Option<Box<str>>,
    /// What the client asks for: hostile text.
    server_name: Option<Box<str>>,
    backend: Option<Arc<Backend>>,
    /// The server that was reached.
    target: Option<SocketAddress>,
    /// At the server that was reached.
    place: Option<(Lease, Seat)>,
    /// The destination that the client has asked for: hostile text, but a name or an address.
    asked: Option<String>,
    /// The server has sent something before the pair.
    has_answer: bool,
    /// Bytes of the client that reached the server before the pair.
    passed_on_bytes: u64,
    accepted_at: Instant,
    /// When the server was reached.
    connected_at: Instant,
    terms: Arc<Terms>,
    service: Arc<Service>,
    seat: Option<Seat>,
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
        let now = Instant::now();
        Self {
            id: service.process.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            client,
            unique_id: None,
            server_name: None,
            backend: None,
            target: None,
            place: None,
            asked: None,
            has_answer: false,
            passed_on_bytes: 0,
            accepted_at: now,
            connected_at: now,
            terms,
            service,
            seat: None,
            client_permit: None,
            _permit: permit,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The client's proxy has told its address.
    pub(super) fn comes_from(&mut self, client: SocketAddr) {
        self.client = Some(SocketAddress::Inet(client));
    }

    /// The connection has a name in the logs of other proxies, too. The first one stays.
    pub(super) fn identified(&mut self, unique_id: &[u8]) {
        self.unique_id
            .get_or_insert_with(|| unique_id.escape_ascii().to_string().into());
    }

    pub(super) fn client_ip(&self) -> Option<IpAddr> {
        Some(self.client.as_ref()?.inet()?.ip())
    }

    /// Takes a seat in the listener's roster.
    pub(super) fn sit(&mut self, seat: Seat) {
        self.seat = Some(seat);
    }

    /// The client is within its limits.
    pub(super) fn admitted(&mut self, permit: Option<ClientPermit>) {
        self.client_permit = permit;
    }

    /// The listener was removed, and has cut its connections.
    pub(super) fn is_cut(&self) -> bool {
        self.seat.as_ref().is_some_and(Seat::is_cut)
    }

    pub(super) fn named(&mut self, server_name: Option<&str>) {
        self.server_name = server_name.map(Into::into);
    }

    pub(super) fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    pub(super) fn wants(&mut self, backend: &Arc<Backend>) {
        self.backend = Some(Arc::clone(backend));
    }

    /// Where the client is to go: the server that was reached, or the backend.
    pub(super) fn wanted(&self) -> String {
        match (&self.target, &self.asked, &self.backend) {
            (Some(address), ..) => address.to_string(),
            (None, Some(asked), _) => asked.clone(),
            (None, None, Some(backend)) => backend.name().into(),
            (None, None, None) => String::new(),
        }
    }

    pub(super) fn asks_for(&mut self, destination: String) {
        self.asked = Some(destination);
    }

    pub(super) fn passed_on(&mut self, bytes: u64) {
        self.passed_on_bytes += bytes;
    }

    pub(super) fn answered(&mut self) {
        self.has_answer = true;
    }

    pub(super) fn has_answer(&self) -> bool {
        self.has_answer
    }

    pub(super) fn connected_to(&mut self, target: SocketAddress, place: Option<(Lease, Seat)>) {
        self.connected_at = Instant::now();
        self.target = Some(target);
        self.place = place.map(|(lease, seat)| {
            seat.join();
            (lease, seat)
        });
    }

    /// Logs the end of the pair.
    pub(super) fn ended(self, outcome: &Outcome) {
        let name = |side| match side {
            Side::A => "client",
            Side::B => "target",
        };
        let why = match outcome.reason {
            Reason::EndOfStream => "end of stream".into(),
            Reason::Reset(side) => format!("reset by {}", name(side)),
            Reason::Failed { side, errno } => {
                format!(
                    "{} failed: {}",
                    name(side),
                    std::io::Error::from_raw_os_error(errno)
                )
            }
            other => other.to_string(),
        };
        let mut why = why;
        if outcome.reason == Reason::Shutdown {
            if self.is_cut() {
                why = "its listener was removed".into();
            } else if self.place.as_ref().is_some_and(|(_, seat)| seat.is_cut()) {
                why = "its server was removed".into();
            } else if self
                .place
                .as_ref()
                .is_some_and(|(_, seat)| seat.is_purged())
            {
                why = "its server went down".into();
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
        self.write(Some(outcome), &why);
    }

    fn warn_of_refusal(&self, why: &str) {
        self.service.warnings.engine_refused.emit(|suppressed| {
            let client = self.client.as_ref().map(SocketAddress::to_string);
            tracing::warn!(
                "connection {} from {} to {} was reset: engine {} refused it: {why}{}",
                self.id,
                client.unwrap_or_default(),
                self.wanted(),
                self.terms.options.engine,
                more(suppressed)
            );
        });
    }

    /// Writes the access log; without an outcome there was no pair.
    pub(super) fn write(self, outcome: Option<&Outcome>, why: &str) {
        match outcome {
            Some(Outcome {
                engine, why_engine, ..
            }) => tracing::debug!(
                "connection {} ended: {why}; engine {engine}: {why_engine}",
                self.id
            ),
            None => tracing::debug!("connection {} ended: {why}", self.id),
        }
        let Some(log) = &self.terms.access_log else {
            return;
        };
        let moved = outcome.map(|outcome| outcome.moved).unwrap_or_default();
        let entry = Entry {
            time: Entry::now(),
            id: self.id,
            unique_id: self.unique_id.as_deref(),
            client: self
                .client
                .as_ref()
                .map(SocketAddress::to_string)
                .unwrap_or_default(),
            target: self.wanted(),
            server_name: self
                .server_name()
                .map(|name| name.escape_debug().to_string()),
            // An engine that refused the connection has moved nothing, so none is named.
            engine: outcome
                .filter(|outcome| outcome.reason != Reason::Refused || moved.total() > 0)
                .map(|outcome| outcome.engine.as_str()),
            why_engine: outcome
                .map(|outcome| outcome.why_engine.to_string())
                .unwrap_or_default(),
            client_to_target_bytes: moved.a_to_b + self.passed_on_bytes,
            target_to_client_bytes: moved.b_to_a,
            outcome: why.into(),
            duration_ms: Entry::milliseconds(self.accepted_at.elapsed()),
        };
        log.write(&entry);
    }
}
