//! Room for a new session: within the bounds of its client, of the listener and of the process.
//!
//! A thread displaces its own sessions. If it has none to displace, the session opens beyond the bound, and other threads are
//! asked: so there are at most as many sessions beyond a bound as there are threads, and only for a moment.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use splice_route::Prefix;

use super::Relaying;
use crate::client_limit::ClientPermit;
use crate::datagram::outcome::Outcome;
use crate::datagram::routes::Nowhere;
use crate::datagram::sender::Sender;
use crate::plan::ClientLimits;
use crate::rate_limited_warning::more;

impl Relaying {
    /// Counts a session of `client`, also beyond its limit: see [`make_room_of_client`](Self::make_room_of_client).
    pub(super) fn permit(
        &self,
        client: &Sender,
        now: Instant,
    ) -> Result<Option<ClientPermit>, String> {
        let Some(address) = inet(client) else {
            return Ok(None);
        };
        let limits = &self.terms.sessions.per_client;
        let clients = &self.service.clients;
        let permit = clients.acquire_beyond_limit(limits, address, now);
        permit.map_err(|excess| excess.to_string())
    }

    /// The addresses that count as one client, if its sessions are limited.
    pub(super) fn client_of(&self, client: &Sender) -> Option<Prefix> {
        client_of(&self.terms.sessions.per_client, client)
    }

    /// One more session of `client` was counted. If it has more than it may, those that were idle longest end.
    pub(super) fn make_room_of_client(&mut self, client: &Sender) {
        if let Some(client) = self.client_of(client)
            && !self.displace_of(&client, Outcome::DisplacedByOwn)
        {
            self.service.tell_crowded(&self.control, client);
        }
    }

    /// Ends sessions of `client` while it has more than it may. Returns false if others have to.
    pub(super) fn displace_of(&mut self, client: &Prefix, outcome: Outcome) -> bool {
        let limits = self.terms.sessions.per_client;
        if !self.service.clients.is_exceeded(&limits, client) {
            return true;
        }
        let service = Arc::clone(&self.service);
        let _displacing = service.displacing();
        while service.clients.is_exceeded(&limits, client) {
            let Some(number) = self.sessions.oldest_of(client) else {
                return false;
            };
            self.end(number, outcome);
        }
        true
    }

    /// One more session was counted. Beyond the bound of the listener, one that is cheap to lose ends.
    pub(super) fn make_room(&mut self) {
        let most = self.terms.sessions.max_sessions;
        if self.service.sessions.count() <= most {
            return;
        }
        self.service.full.emit(|suppressed| {
            tracing::warn!(
                "as many sessions are open as may be (max-sessions: {most}); a new client displaces one that has no \
                 conversation, or the one that has been idle longest{}",
                more(suppressed)
            );
        });
        self.displace_beyond();
    }

    /// Makes room by the loss of a session, if no descriptor or port is free for a new one. Returns whether there is room.
    pub(super) fn make_room_for_socket(&mut self, nowhere: &Nowhere) -> bool {
        const USED_UP: [Errno; 3] = [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL];
        let is_used_up = nowhere.errno.is_some_and(|errno| USED_UP.contains(&errno));
        if !is_used_up || !nowhere.is_shortage() {
            return false;
        }
        let why = &nowhere.why;
        self.service.short.emit(|suppressed| {
            tracing::warn!(
                "{why}; a new client displaces one that has no conversation, or the one that has been idle longest{}",
                more(suppressed)
            );
        });
        let has_displaced = self.free_socket();
        if !has_displaced && let Some(other) = self.service.fullest_beside(&self.control) {
            other.ask_for_descriptor();
        }
        has_displaced
    }

    /// Ends sessions that other threads need.
    pub(super) fn displace_for_others(&mut self) {
        for _ in 0..self.control.take_to_displace() {
            self.displace_beyond();
        }
        if self.control.take_descriptor_wanted() {
            self.free_socket();
        }
        for client in self.control.take_crowded() {
            self.displace_of(&client, Outcome::DisplacedByOwn);
        }
    }

    /// Ends a session, or has another thread end one, if the listener has more than it may.
    fn displace_beyond(&mut self) {
        // For each session beyond the bound there is one who ends one, so that they need not wait for one another.
        if self.service.sessions.count() > self.terms.sessions.max_sessions
            && !self.displace()
            && let Some(other) = self.service.fullest_beside(&self.control)
        {
            other.ask_to_displace();
        }
    }

    /// Closes a socket, by the loss of a session if none rests. Returns false if there is neither.
    fn free_socket(&mut self) -> bool {
        let is_free = self.resting.close_oldest() || self.displace();
        // The socket of a session that was displaced may rest.
        self.resting.close_oldest();
        is_free
    }

    /// Ends the session that is cheapest to lose. Returns false if there is none.
    fn displace(&mut self) -> bool {
        let number = self.sessions.to_displace(self.sessions.len());
        if let Some(number) = number {
            self.end(number, Outcome::Displaced);
        }
        number.is_some()
    }
}

/// The addresses that count as one client, if its sessions are limited.
pub(super) fn client_of(limits: &ClientLimits, client: &Sender) -> Option<Prefix> {
    limits.max_connections?;
    let address = inet(client)?;
    let bits = match address {
        IpAddr::V4(_) => limits.ipv4_bits,
        IpAddr::V6(_) => limits.ipv6_bits,
    };
    Some(Prefix::of(address, bits))
}

pub(super) fn inet(client: &Sender) -> Option<IpAddr> {
    match client {
        Sender::Udp { client, .. } => Some(client.ip().to_canonical()),
        Sender::Unix(_) | Sender::Unnamed => None,
    }
}
