//! Terms that a reload has changed, for the sessions that are there.

use std::sync::Arc;
use std::time::Instant;

use super::Relaying;
use super::room::{client_of, inet};
use crate::datagram::outcome::{Outcome, words};
use crate::plan::ClientLimits;

impl Relaying {
    /// Takes over the terms of the listener, if they have changed.
    pub(super) fn take_terms(&mut self) {
        let terms = self.service.terms();
        if Arc::ptr_eq(&terms, &self.terms) {
            return;
        }
        let before = std::mem::replace(&mut self.terms, terms);
        let (before, now) = (&before.sessions, &self.terms.sessions);
        let is_header_other = (before.ttl, before.dont_fragment) != (now.ttl, now.dont_fragment);
        let are_limits_other = before.per_client != now.per_client;
        if is_header_other {
            self.set_headers();
        }
        if are_limits_other {
            self.count_clients_anew();
        }
        self.shrink();
    }

    /// Has all sockets send with the headers of the terms.
    fn set_headers(&mut self) {
        let terms = Arc::clone(&self.terms);
        let mut failed = None;
        for listener in &mut self.listeners {
            if let Err(errno) = listener.follow(&terms.sessions) {
                failed = Some(errno);
            }
        }
        self.sessions.each(|session| {
            if let Err(errno) = session.socket.follow(&terms.sessions) {
                failed = Some(errno);
            }
        });
        if let Some(errno) = failed {
            tracing::warn!(
                "datagrams of sessions that are open keep the former ttl and dont_fragment: {}",
                words(errno)
            );
        }
    }

    /// Counts the sessions of each client under other limits, and ends what is beyond them.
    fn count_clients_anew(&mut self) {
        // They are not new.
        let limits = ClientLimits {
            new_per_second: None,
            ..self.terms.sessions.per_client
        };
        let clients = Arc::clone(&self.service.clients);
        let now = Instant::now();
        self.sessions.each(|session| {
            session.permit = None;
            if let Some(address) = inet(&session.client) {
                let permit = clients.acquire_beyond_limit(&limits, address, now);
                session.permit = permit.ok().flatten();
            }
        });
        self.sessions.regroup(|client| client_of(&limits, client));
        for client in self.sessions.limited_clients() {
            self.displace_of(&client, Outcome::BeyondLimit);
        }
    }

    /// While the listener has more sessions than it may, ends those of this thread that are cheapest to lose, down to the
    /// thread's part of them.
    fn shrink(&mut self) {
        let service = Arc::clone(&self.service);
        let most = self.terms.sessions.max_sessions;
        let part = most / service.threads().len().max(1);
        while self.sessions.len() > part {
            let _displacing = service.displacing();
            if service.sessions.count() <= most {
                return;
            }
            let Some(number) = self.sessions.to_displace(self.sessions.len()) else {
                return;
            };
            self.end(number, Outcome::BeyondLimit);
        }
    }
}
