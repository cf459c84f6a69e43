//! What the logs say about a connection that has ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use splice::{Outcome, Reason, Side};

use crate::access_log::Entry;
use crate::connection_limit::ConnectionPermit;
use crate::service::Service;
use crate::socket_address::SocketAddress;
use crate::target::Target;

/// One connection of a client, for the logs. It holds the connection's permit.
pub(super) struct Record {
    id: u64,
    client: Option<SocketAddress>,
    /// The address that was reached.
    target: Option<SocketAddress>,
    wanted: Arc<Target>,
    accepted_at: Instant,
    service: Arc<Service>,
    _permit: ConnectionPermit,
}

impl Record {
    pub(super) fn new(
        client: Option<SocketAddress>,
        wanted: Arc<Target>,
        permit: ConnectionPermit,
        service: Arc<Service>,
    ) -> Self {
        Self {
            id: service.next_id.fetch_add(1, Ordering::Relaxed) + 1,
            client,
            target: None,
            wanted,
            accepted_at: Instant::now(),
            service,
            _permit: permit,
        }
    }

    pub(super) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn wanted(&self) -> &Target {
        &self.wanted
    }

    pub(super) fn connected_to(&mut self, target: SocketAddress) {
        self.target = Some(target);
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
            Reason::Filtered => format!("stopped: {}", outcome.why_engine),
            other => other.to_string(),
        };
        if outcome.reason == Reason::Shutdown {
            self.service.cut_short.fetch_add(1, Ordering::Relaxed);
        }
        if outcome.reason == Reason::Refused {
            self.warn_of_refusal(&outcome.why_engine);
        }
        self.write(Some(outcome), &why);
    }

    fn warn_of_refusal(&self, why: &str) {
        self.service.warnings.engine_refused.emit(|suppressed| {
            let name =
                |address: &Option<SocketAddress>| address.as_ref().map(SocketAddress::to_string);
            tracing::warn!(
                "connection {} from {} to {} was reset: engine {} refused it: {why}{}",
                self.id,
                name(&self.client).unwrap_or_default(),
                name(&self.target).unwrap_or_else(|| self.wanted.address.to_string()),
                self.service.options.engine,
                match suppressed {
                    0 => String::new(),
                    count => format!(" ({count} more like it since the last warning)"),
                }
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
        let Some(log) = &self.service.access_log else {
            return;
        };
        let moved = outcome.map(|outcome| outcome.moved).unwrap_or_default();
        let entry = Entry {
            time: Entry::now(),
            id: self.id,
            client: self
                .client
                .as_ref()
                .map(SocketAddress::to_string)
                .unwrap_or_default(),
            target: match &self.target {
                Some(address) => address.to_string(),
                None => self.wanted.address.to_string(),
            },
            // An engine that refused the connection has moved nothing, so none is named.
            engine: outcome
                .filter(|outcome| outcome.reason != Reason::Refused || moved.total() > 0)
                .map(|outcome| outcome.engine.as_str()),
            why_engine: outcome
                .map(|outcome| outcome.why_engine.to_string())
                .unwrap_or_default(),
            client_to_target_bytes: moved.a_to_b,
            target_to_client_bytes: moved.b_to_a,
            outcome: why.into(),
            duration_ms: Entry::milliseconds(self.accepted_at.elapsed()),
        };
        log.write(&entry);
    }
}
