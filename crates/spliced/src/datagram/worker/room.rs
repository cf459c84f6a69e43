//! Room for a new session: within the bounds of its client and of the listener.

use std::net::IpAddr;
use std::sync::atomic::Ordering;
use std::time::Instant;

use splice_route::Prefix;

use super::Relaying;
use crate::client_limit::{ClientPermit, Excess};
use crate::datagram::sender::Sender;

impl Relaying {
    /// Counts a session of `client`. If it has as many as it may have, the one that was idle longest ends.
    pub(super) fn permit(
        &mut self,
        client: &Sender,
        now: Instant,
    ) -> Result<Option<ClientPermit>, String> {
        let Some(address) = inet(client) else {
            return Ok(None);
        };
        let mut has_displaced = false;
        loop {
            let limits = &self.shared.plan.terms.per_client;
            let excess = match self.shared.clients.acquire(limits, address, now) {
                Ok(permit) => return Ok(permit),
                Err(excess) => excess,
            };
            let oldest = match excess {
                Excess::Connections(_) if !has_displaced => self
                    .client_of(client)
                    .and_then(|prefix| self.sessions.oldest_of(&prefix)),
                _ => None,
            };
            let Some(number) = oldest else {
                return Err(match excess {
                    Excess::Connections(most) => format!(
                        "its client has {most} sessions, the limit, and other threads have them"
                    ),
                    Excess::NewPerSecond(_) => excess.to_string(),
                });
            };
            has_displaced = true;
            self.counters.displaced += 1;
            self.end(number, "displaced by a new session of its client".into());
        }
    }

    /// The addresses that count as one client, if its sessions are limited.
    pub(super) fn client_of(&self, client: &Sender) -> Option<Prefix> {
        let limits = &self.shared.plan.terms.per_client;
        limits.max_connections?;
        let address = inet(client)?;
        let bits = match address {
            IpAddr::V4(_) => limits.ipv4_bits,
            IpAddr::V6(_) => limits.ipv6_bits,
        };
        Some(Prefix::of(address, bits))
    }

    /// At the bound of the listener, ends a session that is cheap to lose.
    pub(super) fn make_room(&mut self) -> Result<(), String> {
        let most = self.shared.plan.terms.max_sessions;
        if self.shared.open.load(Ordering::Relaxed) < most {
            return Ok(());
        }
        self.shared.full.emit(|suppressed| {
            tracing::warn!(
                "{most} sessions are open (--max-sessions); a new client displaces one that has no \
                 conversation, or the one that has been idle longest ({suppressed} more since the last such line)"
            );
        });
        match self.sessions.to_displace(self.sessions.len()) {
            Some(number) => {
                self.counters.displaced += 1;
                self.end(number, "displaced by a new client".into());
                Ok(())
            }
            None => Err("all sessions belong to other threads".into()),
        }
    }
}

fn inet(client: &Sender) -> Option<IpAddr> {
    match client {
        Sender::Udp { client, .. } => Some(client.ip().to_canonical()),
        Sender::Unix(_) | Sender::Unnamed => None,
    }
}
