//! Sockets that are made for a moment. Connections may have used up all descriptors, so the reserve has one for each.

use std::net::SocketAddr;

use rustix::io::Errno;
use splice_base::repair::{self, Refusal};

use super::Datapath;

impl Datapath {
    /// Tries whether a socket would be refused a connection that it has to take up; see [`repair::may_take_up`].
    pub(in super::super) fn may_take_up(
        &self,
        local: &SocketAddr,
        peer: &SocketAddr,
        is_transparent: bool,
    ) -> Result<(), Refusal> {
        let socket = self.reserve.lend(|| repair::stream_socket(local));
        let socket = socket.map_err(Refusal::Now)?;
        let tried = repair::may_take_up(&socket, local, peer, is_transparent);
        self.reserve.take(socket);
        self.reserve.fill();
        tried
    }

    /// Resets a connection that has no socket any more. `seq` is what the peer expects next.
    pub(in super::super) fn reset(
        &self,
        (local, peer): (SocketAddr, SocketAddr),
        seq: u32,
        ack: u32,
    ) -> Result<(), Errno> {
        let socket = self.reserve.lend(|| repair::stream_socket(&local))?;
        let has_taken_up = repair::reset_on_close(&socket, &local, &peer, seq, ack);
        self.reserve.take(socket);
        self.reserve.fill();
        has_taken_up
    }
}
