//! Telling a client of UDP what has become of its datagram.

use std::net::SocketAddr;
use std::time::Instant;

use rustix::io::Errno;

use super::{Relaying, words};
use crate::datagram::icmp::{Quoted, Trouble, most_of_path};
use crate::datagram::sender::Sender;
use crate::datagram::socket::Piece;

impl Relaying {
    /// Tells the client that a datagram of its is longer than the path to the target takes: one of `piece`, or one
    /// that a router has reported.
    pub(super) fn tell_too_big(&mut self, number: usize, piece: Option<&Piece<'_>>, now: Instant) {
        let Some(session) = self.sessions.get(number) else {
            return;
        };
        let Some((mtu, is_ipv6)) = session.socket.path_mtu() else {
            return;
        };
        let most = most_of_path(mtu, is_ipv6);
        let is_longer = |length: usize| length > most as usize;
        // The kernel may have reported to a datagram that fits what has become of one before.
        let first = piece.and_then(|piece| piece.singles().next());
        let bytes = first.map_or(&[][..], |first| first.bytes);
        let (length, bytes) = match is_longer(bytes.len()) {
            true => (bytes.len(), bytes),
            false => (session.longest, &[][..]),
        };
        if !is_longer(length) {
            return;
        }
        let told = self.tell(number, Trouble::TooBig { most }, length, bytes, now);
        let Some(session) = self.sessions.get(number) else {
            return;
        };
        let told = match told {
            Some(Ok(true)) => "the client was told by ICMP".into(),
            Some(Ok(false)) => "too many clients were told by ICMP of late".into(),
            Some(Err(Errno::PERM | Errno::ACCESS)) => {
                "the client cannot be told by ICMP without CAP_NET_RAW".into()
            }
            Some(Err(errno)) => format!("the client cannot be told by ICMP: {}", words(errno)),
            None => "the client has no address to be told at".into(),
        };
        self.shared.too_big.emit(|suppressed| {
            tracing::warn!(
                "session {}: a datagram of {length} bytes was dropped, since the path to {} takes {most} bytes; \
                 {told} ({suppressed} more since the last such line)",
                session.id,
                session.target,
            );
        });
    }

    /// Tells the client that its session ends with an error of the target's.
    pub(super) fn tell_failed(&mut self, number: usize, errno: Errno, now: Instant) {
        let trouble = match errno {
            Errno::CONNREFUSED | Errno::NOENT => Trouble::PortUnreachable,
            Errno::HOSTUNREACH | Errno::ACCESS => Trouble::Prohibited,
            _ => return,
        };
        let Some(session) = self.sessions.get(number) else {
            return;
        };
        let length = session.longest;
        if let Some(Err(errno)) = self.tell(number, trouble, length, &[], now) {
            tracing::debug!("a client cannot be told by ICMP: {}", words(errno));
        }
    }

    /// Sends a message about a datagram of `length` bytes. `None` for a client without an IP address.
    fn tell(
        &mut self,
        number: usize,
        trouble: Trouble,
        length: usize,
        bytes: &[u8],
        now: Instant,
    ) -> Option<Result<bool, Errno>> {
        let session = self.sessions.get(number)?;
        let Sender::Udp { client, own } = session.client else {
            return None;
        };
        let listener = self.shared.addresses[session.listener].inet()?;
        let own = own.unwrap_or_else(|| listener.ip());
        let quoted = Quoted {
            client,
            own: SocketAddr::new(own, listener.port()),
            length,
            bytes,
        };
        Some(self.notices.tell(trouble, &quoted, now))
    }
}
