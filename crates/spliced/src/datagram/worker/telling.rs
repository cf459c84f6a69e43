//! Telling a client of UDP what has become of its datagram.

use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use rustix::io::Errno;

use super::Relaying;
use crate::datagram::icmp::{Quoted, Trouble, most_of_family, most_of_path};
use crate::datagram::outcome::words;
use crate::datagram::piece::Piece;
use crate::datagram::plan::shown;
use crate::datagram::sender::Sender;
use crate::ip_header::DontFragment;
use crate::rate_limited_warning::more;

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
        let most_of_family = most_of_family(is_ipv6);
        // The kernel may have reported to a datagram that fits what has become of one before.
        let bytes = piece.map_or(&[][..], |piece| piece.split_first().0.bytes);
        // This one does not even go as fragments; it says nothing about the path.
        let most = match bytes.len() > most_of_family as usize {
            true if self.terms.sessions.dont_fragment != DontFragment::Yes => most_of_family,
            _ => most_of_path(mtu, is_ipv6),
        };
        let is_longer = |length: usize| length > most as usize;
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
            None => "there is no ICMP for such a client".into(),
        };
        self.service.too_big.emit(|suppressed| {
            tracing::warn!(
                "session {}: a datagram of {length} bytes was dropped, since the path to {} takes {most} bytes; \
                 {told}{}",
                session.id,
                shown(&session.target),
                more(suppressed),
            );
        });
    }

    /// Tells the client that its session ends with an error of the target's.
    pub(super) fn tell_failed(&mut self, number: usize, errno: Errno, now: Instant) {
        let Some(session) = self.sessions.get(number) else {
            return;
        };
        let length = session.longest;
        if let Some(trouble) = Trouble::of(errno)
            && let Some(Err(errno)) = self.tell(number, trouble, length, &[], now)
        {
            self.service.warn_untold(errno);
        }
    }

    /// Tells a client that its datagram has opened no session, since the target has refused it.
    pub(super) fn tell_nowhere(
        &mut self,
        listener: usize,
        client: &Sender,
        errno: Errno,
        piece: &Piece<'_>,
        now: Instant,
    ) {
        let Some(trouble) = Trouble::of(errno) else {
            return;
        };
        let bytes = piece.split_first().0.bytes;
        let answers_from = client.own().and_then(|own| self.host.answers_from(own));
        if let Some(quoted) = self.quoted(listener, client, answers_from, bytes.len(), bytes)
            && let Err(errno) = self.notices.tell(trouble, &quoted, now)
        {
            self.service.warn_untold(errno);
        }
    }

    /// Sends a message about a datagram of `length` bytes. `None` for a client that ICMP is not for.
    fn tell(
        &mut self,
        number: usize,
        trouble: Trouble,
        length: usize,
        bytes: &[u8],
        now: Instant,
    ) -> Option<Result<bool, Errno>> {
        let session = self.sessions.get(number)?;
        let (listener, client) = (session.listener, &session.client);
        let quoted = self.quoted(listener, client, session.answers_from, length, bytes)?;
        Some(self.notices.tell(trouble, &quoted, now))
    }

    /// A datagram of `client`.
    fn quoted<'a>(
        &self,
        listener: usize,
        client: &Sender,
        answers_from: Option<IpAddr>,
        length: usize,
        bytes: &'a [u8],
    ) -> Option<Quoted<'a>> {
        let Sender::Udp { client, own } = *client else {
            return None;
        };
        // RFC 1122, 3.2.2: nobody is told about what was sent to a broadcast or multicast address.
        if own != answers_from {
            return None;
        }
        let listener = self.service.addresses()[listener].inet()?;
        let own = own.unwrap_or_else(|| listener.ip());
        Some(Quoted {
            client,
            own: SocketAddr::new(own, listener.port()),
            length,
            bytes,
        })
    }
}
