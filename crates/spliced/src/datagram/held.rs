//! What a session has at a server of a backend, as long as it lives.

use std::sync::Arc;

use rustix::io::Errno;

use super::counters::Flow;
use super::outcome::{Outcome, words};
use crate::backend::{Backend, Lease, Tried};
use crate::connect_error::{self, Fault};
use crate::roster::Seat;
use crate::socket_address::SocketAddress;
use crate::tally::Tally;

/// A place at a server.
pub(crate) struct Held {
    /// The route that took the client: its number, from 1.
    route: usize,
    lease: Lease,
    seat: Seat,
    backend: Arc<Backend>,
    tally: Arc<Tally>,
    /// What the tally has of the datagrams to the target, and of those to the client.
    accounted: [Flow; 2],
}

impl Held {
    pub(crate) fn new(
        route: usize,
        lease: Lease,
        seat: Seat,
        backend: &Arc<Backend>,
        tally: &Arc<Tally>,
    ) -> Self {
        seat.join();
        tally.opened(1);
        tally.of_datagrams().began();
        Self {
            route,
            lease,
            seat,
            backend: Arc::clone(backend),
            tally: Arc::clone(tally),
            accounted: [Flow::default(); 2],
        }
    }

    pub(crate) fn route(&self) -> usize {
        self.route
    }

    pub(crate) fn backend_name(&self) -> &str {
        self.backend.name()
    }

    pub(crate) fn server_name(&self) -> Arc<str> {
        self.lease.server_name()
    }

    /// Why the session has to end, if it has.
    pub(crate) fn why_cut(&self) -> Option<Outcome> {
        match (self.seat.is_cut(), self.seat.is_purged()) {
            (true, _) => Some(Outcome::ServerRemoved),
            (_, true) => Some(Outcome::ServerDown),
            (false, false) => None,
        }
    }

    /// The server has sent something.
    pub(crate) fn answered(&self) {
        self.lease.connected();
    }

    /// Datagrams to `target` have failed. `has_answered`: the target had answered before.
    pub(crate) fn failed(&self, target: &SocketAddress, errno: Errno, has_answered: bool) {
        let is_of_server = connect_error::of_connect(errno, target) == Fault::Server;
        // Whatever the error says of a server that has not answered, another address may do.
        if is_of_server || !has_answered {
            self.lease.address_failed(target);
        }
        if is_of_server {
            self.lease.refused(&words(errno));
        }
    }

    /// A datagram that is sent again is not to come to this server.
    pub(crate) fn note_in(&self, tried: &mut Tried) {
        self.lease.note_in(tried);
    }

    /// Adds to the tally what has passed since the last time: `flows` are those to the target, and to the client.
    pub(crate) fn account(&mut self, flows: [&Flow; 2]) {
        let datagrams = self.tally.of_datagrams();
        let mut bytes = [0; 2];
        for (to, flow) in flows.into_iter().enumerate() {
            let before = std::mem::replace(&mut self.accounted[to], *flow);
            let dropped = [
                flow.dropped.full - before.dropped.full,
                flow.dropped.too_long - before.dropped.too_long,
                flow.dropped.nowhere - before.dropped.nowhere,
            ];
            datagrams.add(to, flow.datagrams - before.datagrams, dropped);
            bytes[to] = flow.bytes - before.bytes;
        }
        self.tally.moved(bytes);
    }

    /// The session has ended.
    pub(crate) fn ended(&self, outcome: Outcome) {
        self.tally
            .ended(Some(splice::EngineName::Copy), outcome.ending());
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tally.of_datagrams().ended();
    }
}
