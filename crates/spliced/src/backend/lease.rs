//! A connection at a server, and what it says about the server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use splice::Waker;

use super::health::Cause;
use super::pool::Tried;
use super::server::Server;
use super::{Backend, probe};
use crate::plan::Source;
use crate::roster::Seat;
use crate::socket_address::SocketAddress;

/// One connection at one server, which it counts until it is dropped.
pub(crate) struct Lease {
    server: Arc<Server>,
    backend: Arc<Backend>,
}

impl Lease {
    pub(super) fn new(server: Arc<Server>, backend: Arc<Backend>) -> Self {
        Self { server, backend }
    }

    pub(crate) fn addresses(&self) -> Arc<[SocketAddress]> {
        self.server.target.addresses()
    }

    /// The server has accepted the connection.
    pub(crate) fn connected(&self) {
        if self.server.connected(&self.backend.name) {
            self.backend.queue.call_next();
        }
    }

    /// None of its addresses could be connected to.
    pub(crate) fn failed(&self, why: &str) {
        if !self.server.connection_failed() {
            return;
        }
        match self.backend.plan().source {
            // The answers to this client's address may be what is missing.
            Source::Client => probe::start(&self.backend, &self.server),
            Source::Host | Source::Addresses(_) => {
                let why = format!("{why}, several times in a row");
                self.backend.take_out(&self.server, Cause::Refused, &why);
            }
        }
    }

    /// The connection, made at `began`, has ended, and the server has sent something.
    pub(crate) fn answered(&self, began: Instant) {
        self.server.answered(began);
    }

    /// The server has reset the connection before its first byte.
    pub(crate) fn reset_before_first_byte(&self) {
        if self.server.early_reset() {
            // What the client has sent may be the reason.
            probe::start(&self.backend, &self.server);
        }
    }

    /// The connection is not to come back to this server.
    pub(crate) fn note_in(&self, tried: &mut Tried) {
        tried.add(&self.server);
    }

    /// Has the connection closed when the server is cut.
    pub(crate) fn sit(&self, waker: Waker) -> Seat {
        self.server.roster.enter(waker)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Ordering::Release);
        self.backend.queue.call_next();
    }
}
