//! Passing datagrams on to the target, and back to the client.

use std::time::Instant;

use rustix::io::Errno;

use super::Relaying;
use crate::backend::Tried;
use crate::datagram::batch::Batch;
use crate::datagram::outcome::Outcome;
use crate::datagram::piece::Piece;
use crate::datagram::sender::Sender;
use crate::datagram::sending::{Unsent, send_all};
use crate::tally::Dropped;
use crate::target::is_from_listener;

/// How often a listener is read before the sessions have their turn.
const BATCHES_AT_ONCE: usize = 4;

impl Relaying {
    /// Passes on what clients have sent to a listener.
    pub(super) fn pass_on(&mut self, listener: usize, now: Instant) {
        for _ in 0..BATCHES_AT_ONCE {
            let mut batch = std::mem::replace(&mut self.batch, Batch::empty());
            // An error of an unconnected socket belongs to no session.
            let received = self.listeners[listener].receive(&self.host, &mut batch);
            if received.is_ok() {
                for (message, piece) in batch.received() {
                    if message.is_cut {
                        self.lose_truncated(listener, &message.sender);
                    } else if message.ttl == Some(0) {
                        self.lose(&piece);
                    } else {
                        self.send_on(listener, &message.sender, piece, now);
                    }
                }
            }
            let is_full = received.is_ok() && batch.messages.len() == Batch::MESSAGES;
            self.batch = batch;
            if !is_full {
                return;
            }
        }
    }

    /// Sends what a client has sent, and opens its session if it has none.
    fn send_on(&mut self, listener: usize, sender: &Sender, mut piece: Piece<'_>, now: Instant) {
        // An error that came before belongs to what was sent before: this datagram has another try, in
        // a session of its own, with another server if there is one.
        let mut tried = Tried::default();
        // But a UNIX socket says at once what becomes of a datagram.
        let mut refused = None;
        for _ in 0..2 {
            let found = self.sessions.find(listener, sender);
            if found.is_none() {
                if self.is_copy(listener, sender) {
                    return;
                }
                if let Sender::Udp { client, .. } = sender
                    && is_from_listener(*client, self.service.addresses())
                {
                    self.lose(&piece);
                    return self.warn_dropped(&format!(
                        "it is said to come from {client}, where this relay listens"
                    ));
                }
            }
            let open = || self.open(listener, sender, &tried, now);
            let number = match found.map_or_else(open, Ok) {
                Ok(number) => number,
                Err(nowhere) => {
                    self.lose(&piece);
                    self.warn_dropped(&nowhere.why);
                    if let Some(errno) = nowhere.refusal().or(refused) {
                        self.tell_nowhere(listener, sender, errno, &piece, now);
                    }
                    return;
                }
            };
            let Some(session) = self.sessions.get_mut(number) else {
                return;
            };
            session.used = now;
            self.is_behind = true;
            session.is_assured |= session.to_client.seen() > 0;
            session.longest = session.longest.max(piece.stride);
            let too_long = session.to_target.dropped.too_long;
            let socket = &session.socket;
            let takes_trains = &mut session.target_takes_trains;
            let sent = send_all(
                piece.clone(),
                takes_trains,
                &mut session.to_target,
                |piece| socket.send(piece),
            );
            match sent {
                Ok(()) => {
                    if session.to_target.dropped.too_long > too_long {
                        self.tell_too_big(number, Some(&piece), now);
                    }
                    self.sessions.touch(number, &self.terms.sessions);
                    return;
                }
                Err(Unsent { errno, rest }) => {
                    piece = rest;
                    session.held.note_in(&mut tried);
                    if session.socket.is_udp() {
                        self.tell_failed(number, errno, now);
                    } else {
                        refused = Some(errno);
                    }
                    self.fail(number, errno);
                }
            }
        }
        self.lose(&piece);
        if let Some(errno) = refused {
            self.tell_nowhere(listener, sender, errno, &piece, now);
        }
    }

    /// Whether this is a copy, which the kernel gives to each thread, of a datagram that another thread passes on.
    fn is_copy(&self, listener: usize, sender: &Sender) -> bool {
        if self.control.passes_on_copies() {
            return false;
        }
        let bound = self.service.addresses()[listener].inet();
        let bound = bound.map(|bound| bound.ip());
        let to = sender.own().or(bound);
        to.is_some_and(|to| self.host.is_of_many(to))
    }

    /// Counts a datagram that was longer than the buffer.
    fn lose_truncated(&mut self, listener: usize, sender: &Sender) {
        let session = self.sessions.find(listener, sender);
        if let Some(session) = session.and_then(|number| self.sessions.get_mut(number)) {
            session.to_target.dropped.too_long += 1;
            return session.account();
        }
        self.counters.to_target.dropped.too_long += 1;
        self.account_dropped(Dropped::TooLong, 1);
    }

    /// Counts what has no session.
    fn lose(&mut self, piece: &Piece<'_>) {
        let count = piece.datagrams() as u64;
        self.counters.to_target.dropped.nowhere += count;
        self.account_dropped(Dropped::Nowhere, count);
    }

    /// Counts datagrams of clients that belong to no session.
    fn account_dropped(&self, why: Dropped, count: u64) {
        let dropped = std::array::from_fn(|at| match Dropped::ALL[at] == why {
            true => count,
            false => 0,
        });
        let tally = self.terms.routes.without_session();
        tally.of_datagrams().add(0, 0, dropped);
    }

    /// Passes on what the target has sent to a session.
    pub(super) fn pass_back(&mut self, number: usize, now: Instant) {
        let Some(session) = self.sessions.get_mut(number) else {
            return;
        };
        match session.socket.receive(&self.host, &mut self.batch) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return,
            Err(Errno::MSGSIZE) => {
                session.to_target.dropped.too_long += 1;
                session.account();
                return self.tell_too_big(number, None, now);
            }
            Err(errno) => {
                self.tell_failed(number, errno, now);
                return self.fail(number, errno);
            }
        }
        session.used = now;
        self.is_behind = true;
        if session.to_client.seen() == 0 {
            session.held.answered();
        }
        let listener = &self.listeners[session.listener];
        let client = &session.client;
        let mut gone = None;
        for (message, piece) in self.batch.received() {
            if message.is_cut {
                session.to_client.dropped.too_long += 1;
                continue;
            }
            if message.ttl == Some(0) {
                session.to_client.dropped.nowhere += piece.datagrams() as u64;
                continue;
            }
            let (takes_trains, flow) = (&mut session.client_takes_trains, &mut session.to_client);
            let sent = send_all(piece, takes_trains, flow, |piece| {
                listener.answer(piece, client, session.answers_from)
            });
            if let Err(Unsent { errno, rest }) = sent {
                flow.dropped.nowhere += rest.datagrams() as u64;
                // Nobody can answer such a client, and it may go on sending. A UDP client is never gone: nothing tells, and a
                // route to it may come back.
                if errno != Errno::DESTADDRREQ && !listener.is_udp() {
                    gone = Some(errno);
                }
            }
        }
        self.sessions.touch(number, &self.terms.sessions);
        if let Some(errno) = gone {
            self.end(number, Outcome::ClientFailed(errno));
        }
    }
}
