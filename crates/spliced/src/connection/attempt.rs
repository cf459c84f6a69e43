//! A server that is being tried, at one or several of its addresses at a time.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;

use super::SERVER;
use crate::backend::{Backend, Lease};
use crate::connect_error::Fault;
use crate::race::Race;
use crate::roster::Seat;
use crate::socket_address::SocketAddress;

pub(super) struct Attempt {
    /// `None` if the client has asked for its destination.
    pub(super) place: Option<Place>,
    /// In the order in which they are tried.
    pub(super) addresses: Arc<[SocketAddress]>,
    pub(super) race: Race,
    under_way: Vec<UnderWay>,
    /// The end of its time, once it has begun.
    pub(super) until: Option<Instant>,
    /// From then on an old answer about its name is used, once it is asked for.
    old_answer_at: Option<Instant>,
    /// The address that has taken the connection.
    winner: Option<usize>,
    /// Why the rules forbid the last address that was tried.
    pub(super) denied: Option<String>,
    /// An address could not be tried, or only after a wait, for want of something on this host.
    pub(super) shortage: Option<Errno>,
    /// An address does not take the connection.
    pub(super) met_refusal: bool,
    /// One has taken it, and reset it.
    pub(super) was_reset: bool,
}

/// A place at a server of a backend.
pub(super) struct Place {
    pub(super) backend: Arc<Backend>,
    pub(super) lease: Lease,
    /// In the roster of the server.
    pub(super) seat: Seat,
}

/// A connection that is being made.
pub(super) struct UnderWay {
    /// The index of its address.
    pub(super) index: usize,
    /// What its socket is registered as.
    source: u8,
    socket: Opening,
}

/// Its socket, which is reset on drop: the connection may be established by then, and the server must not see an end
/// of stream.
struct Opening(Option<OwnedFd>);

impl Attempt {
    pub(super) fn new(addresses: Arc<[SocketAddress]>, place: Option<Place>) -> Self {
        Self {
            place,
            race: Race::new(addresses.len()),
            addresses,
            under_way: Vec::new(),
            until: None,
            old_answer_at: None,
            winner: None,
            denied: None,
            shortage: None,
            met_refusal: false,
            was_reset: false,
        }
    }

    /// The address that has taken the connection.
    pub(super) fn address(&self) -> Option<&SocketAddress> {
        self.addresses.get(self.winner?)
    }

    /// What its name has turned out to be.
    pub(super) fn enter(&mut self, addresses: Arc<[SocketAddress]>) {
        self.race = Race::new(addresses.len());
        self.addresses = addresses;
    }

    /// An old answer about its name leaves half of the time until `until` for its addresses.
    pub(super) fn old_answer_at(&mut self, now: Instant, until: Instant) -> Instant {
        let half = until.saturating_duration_since(now) / 2;
        *self.old_answer_at.get_or_insert(now + half)
    }

    /// Whether its time has begun, and is over.
    pub(super) fn is_out_of_time(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| now >= until)
    }

    pub(super) fn began(&mut self, index: usize, source: u8, socket: OwnedFd) {
        self.under_way.push(UnderWay {
            index,
            source,
            socket: Opening(Some(socket)),
        });
    }

    /// What the next socket is registered as, where the last one was `last`. No socket under way has that number, and
    /// the numbers take turns, so that a late event of a closed socket is for nobody.
    pub(super) fn source_after(&self, last: u8) -> u8 {
        let mut source = last;
        loop {
            source = source.checked_add(1).unwrap_or(SERVER + 1);
            if self.under_way(source).is_none() {
                return source;
            }
        }
    }

    /// The one whose socket is registered as `source`.
    pub(super) fn under_way(&self, source: u8) -> Option<&UnderWay> {
        self.under_way.iter().find(|one| one.source == source)
    }

    /// The socket of an address, and what it is registered as.
    pub(super) fn socket(&self, index: usize) -> Option<(u8, &OwnedFd)> {
        let one = self.under_way.iter().find(|one| one.index == index)?;
        Some((one.source, one.socket()?))
    }

    /// Closes the connection to an address, if there is one. The next one has its turn.
    pub(super) fn failed(&mut self, index: usize) {
        self.under_way.retain(|one| one.index != index);
        self.race.failed(index);
    }

    pub(super) fn abandon_all(&mut self) {
        self.under_way.clear();
    }

    /// Takes the socket of the address that has taken the connection, and closes the others.
    pub(super) fn won(&mut self, index: usize) -> Option<OwnedFd> {
        self.winner = Some(index);
        let one = self.under_way.iter_mut().find(|one| one.index == index);
        let socket = one.and_then(|one| one.socket.0.take());
        self.abandon_all();
        socket
    }

    pub(super) fn note(&mut self, errno: Errno, fault: Fault) {
        match fault {
            Fault::Server => self.met_refusal = true,
            Fault::Shortage => self.shortage = Some(errno),
            Fault::NoWay | Fault::Reset => {}
        }
    }
}

impl UnderWay {
    pub(super) fn socket(&self) -> Option<&OwnedFd> {
        self.socket.0.as_ref()
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(socket) = &self.0 {
            // This fails only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(socket, Some(Duration::ZERO));
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    #[test]
    fn no_number_is_given_to_two_sockets_under_way() {
        let mut attempt = Attempt::new(Arc::default(), None);
        let new = || socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        let silent = [SERVER, SERVER + 2, u8::MAX];
        for (index, source) in silent.into_iter().enumerate() {
            attempt.began(index, source, new());
        }
        let mut source = SERVER;
        for _ in 0..1000 {
            let before = source;
            source = attempt.source_after(before);
            assert!(source > SERVER && source != before, "{source}");
            assert!(!silent.contains(&source), "{source}");
        }
    }
}
