//! A server for a client that does not wait in the queue: a datagram is dropped instead.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;

use super::{Backend, Lease, PickKey, Tried};
use crate::plural::counted;
use crate::socket_address::SocketAddress;

impl Backend {
    /// A server for a session that has tried `tried`.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(crate) fn pick_now(
        self: &Arc<Self>,
        key: &PickKey<'_>,
        tried: &Tried,
    ) -> Result<Lease, String> {
        let plan = self.plan();
        let now = Instant::now();
        let mut pool = self.pool();
        let mut free = pool.usable(tried, key.has_fallback, now);
        if free.is_empty() {
            return Err(pool.why_none(now));
        }
        let most = plan.max_connections_per_server.unwrap_or(u32::MAX);
        free.retain(|index| pool.has_room(*index, most));
        if free.is_empty() {
            return Err(format!(
                "each server has {} (max_connections_per_server)",
                counted(most, "session")
            ));
        }
        let index = pool.choose(&plan, &free, key, now);
        let server = Arc::clone(pool.server(index));
        // Counted under the lock, so that nobody gets the same place.
        server.enter(1, 1);
        drop(pool);
        Ok(Lease::new(server, Arc::clone(self)))
    }

    /// Gives a new datagram socket what the plan says of connections to a server.
    ///
    /// # Errors
    /// As [`Outgoing::prepare`](crate::outgoing::Outgoing::prepare).
    pub(crate) fn prepare_socket(
        &self,
        socket: &OwnedFd,
        address: &SocketAddress,
        client: Option<IpAddr>,
    ) -> Result<(), Errno> {
        self.outgoing.prepare(socket, &self.plan(), address, client)
    }
}
