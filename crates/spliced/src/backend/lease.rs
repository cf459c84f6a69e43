//! A connection at a server, and what it says about the server.

use std::net::IpAddr;
use std::sync::Arc;
use std::task;
use std::time::{Duration, Instant};

use super::health::Cause;
use super::pool::Tried;
use super::server::{Server, in_a_row};
use super::{Backend, lock, probe};
use crate::plan::Source;
use crate::roster::{Closer, Seat};
use crate::socket_address::SocketAddress;
use crate::target::{Lookup, Prospect};

/// What lasts this long is counted as answered, since nobody reads its bytes: a server that means to reset a
/// client does so sooner.
const HELD: Duration = Duration::from_secs(1);

/// One connection at one server, which it counts until it is dropped.
pub(crate) struct Lease {
    server: Arc<Server>,
    backend: Arc<Backend>,
}

impl Lease {
    pub(super) fn new(server: Arc<Server>, backend: Arc<Backend>) -> Self {
        Self { server, backend }
    }

    /// The server as the configuration names it, or a SRV record.
    pub(crate) fn server_name(&self) -> Arc<str> {
        self.server.shared_name()
    }

    /// The addresses of the server, or that they are waited for, as [`Target::look_up`](crate::target::Target::look_up).
    pub(crate) fn look_up(&self, latest: Instant, waker: impl FnOnce() -> task::Waker) -> Lookup {
        self.server.target.look_up(latest, waker)
    }

    /// The addresses of the server, for those that cannot wait, or why there are none.
    ///
    /// # Errors
    /// In words.
    pub(crate) fn addresses(&self) -> Result<Arc<[SocketAddress]>, String> {
        let addresses = self.server.target.addresses();
        match addresses.is_empty() {
            true => Err(self.server.target.why_nowhere()),
            false => Ok(addresses),
        }
    }

    /// Whether the answer about its name has been under way for some time.
    pub(crate) fn is_slow(&self) -> bool {
        self.server.target.prospect() == Prospect::Slow
    }

    /// The server has accepted the connection at `address`, of those in the order `tried`.
    pub(crate) fn reached(&self, address: &SocketAddress, tried: &[SocketAddress]) {
        self.server.target.answered(address, tried);
        self.connected();
    }

    /// The server has accepted the connection.
    pub(crate) fn connected(&self) {
        self.server.forget_shortage();
        if self.server.connected(&self.backend.name) {
            self.backend.queue.call_next();
        }
    }

    /// None of its addresses could be connected to.
    pub(crate) fn failed(&self, why: &str) {
        if !self.server.connection_failed(why) {
            return;
        }
        match self.backend.plan().source {
            // The answers to this client's address may be what is missing.
            Source::Client => probe::start(&self.backend, &self.server),
            Source::Host | Source::Addresses(_) => {
                let why = format!("{why}{}", in_a_row(self.server.fall()));
                self.backend.take_out(&self.server, Cause::Refused, &why);
            }
        }
    }

    /// New sessions try the server's other addresses before `address`, if it has several.
    pub(crate) fn address_failed(&self, address: &SocketAddress) {
        self.server.target.failed(address);
    }

    /// It refuses datagrams, which its host has said.
    pub(crate) fn refused(&self, why: &str) {
        if self.server.connection_failed(why) {
            let why = format!("{why}{}", in_a_row(self.server.fall()));
            self.backend.take_out(&self.server, Cause::Refused, &why);
        }
    }

    /// This host lacks something, so that nothing is known of the server.
    pub(crate) fn could_not_be_tried(&self, why: &str) {
        self.backend.tell_shortage(&self.server, why);
    }

    /// This host lacked something, and another try comes with a lease of its own.
    pub(crate) fn has_not_begun(&self) {
        self.server.uncount();
    }

    /// The connection of `client`, made at `began`, has ended, and the server has sent something.
    pub(crate) fn answered(&self, client: Option<IpAddr>, began: Instant) {
        self.server.answered(began);
        if !self.backend.plan().has_one_server() {
            let mut reports = lock(&self.backend.client_reports);
            reports.answered(client, self.server.id(), began, Instant::now());
        }
    }

    /// The server has reset the connection of `client` before its first byte. What the client has sent may
    /// be the reason.
    pub(crate) fn reset_before_first_byte(&self, client: Option<IpAddr>) {
        let is_suspect = self.server.early_reset();
        if self.backend.plan().has_one_server() {
            return;
        }
        let (id, now) = (self.server.id(), Instant::now());
        let count = {
            let mut reports = lock(&self.backend.client_reports);
            reports.reset(client, id, now);
            reports.of(id, now)
        };
        // One client is never enough.
        let needed = usize::from(self.server.fall()).max(2);
        if count.is_bad(needed, 0)
            && count.is_bad(needed, self.server.roster.held(now.checked_sub(HELD)))
        {
            let clients = count.reset;
            let why = format!(
                "it resets connections of {clients} clients before its first byte, and others do not"
            );
            self.backend.take_out(&self.server, Cause::Resets, &why);
        } else if is_suspect {
            probe::start(&self.backend, &self.server);
        }
    }

    /// The connection is not to come back to this server.
    pub(crate) fn note_in(&self, tried: &mut Tried) {
        tried.add(&self.server);
    }

    /// Has the connection closed when the server is cut.
    pub(crate) fn sit(&self, closer: impl Into<Closer>) -> Seat {
        self.server.roster.enter(closer)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.leave(&self.backend.name, 1);
        self.backend.queue.call_next();
    }
}

/// The connections at one server that have no socket here, which it counts until this is dropped.
pub(crate) struct Flows {
    server: Arc<Server>,
    backend: Arc<Backend>,
    open: u32,
}

impl Flows {
    pub(super) fn new(server: Arc<Server>, backend: Arc<Backend>) -> Self {
        Self {
            server,
            backend,
            open: 0,
        }
    }

    pub(crate) fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    /// The server, as the configuration names it.
    pub(crate) fn server_name(&self) -> Arc<str> {
        self.server.shared_name()
    }

    /// A connection was refused, or the server did not answer.
    pub(crate) fn failed(&self, why: &str) {
        // It is the only one, so it is not taken out.
        self.server.connection_failed(why);
    }

    /// The server was removed, and its connections have had their time.
    pub(crate) fn is_cut(&self) -> bool {
        self.server.is_cut()
    }

    /// Whether both are of the same server.
    pub(crate) fn is_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.server, &other.server)
    }

    /// So many are open now, and so many have begun since the last time.
    pub(crate) fn count(&mut self, open: usize, begun: u64) {
        let open = u32::try_from(open).unwrap_or(u32::MAX);
        self.server.enter(open.saturating_sub(self.open), begun);
        if let Some(fewer @ 1..) = self.open.checked_sub(open) {
            self.server.leave(&self.backend.name, fewer);
        }
        self.open = open;
    }
}

impl Drop for Flows {
    fn drop(&mut self) {
        self.count(0, 0);
    }
}
