//! To whom the sessions of a relay go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::net::{SocketAddrUnix, bind};

use super::session::Session;
use super::socket::DatagramSocket;
use crate::resource_limit::limit_met;
use crate::socket_address::SocketAddress;
use crate::target::Target;

/// The one target of a relay.
pub(crate) struct Destination {
    target: Arc<Target>,
    /// Which of the target's addresses a session takes: the next one, once one has refused.
    next_address: AtomicUsize,
}

/// What a session sends to.
#[derive(Debug)]
pub(crate) struct Place {
    /// Connected to `target`.
    pub(crate) socket: DatagramSocket,
    pub(crate) target: SocketAddress,
}

impl Destination {
    pub(crate) fn of_target(target: Arc<Target>) -> Self {
        Self {
            target,
            next_address: AtomicUsize::new(0),
        }
    }

    /// A place for a new session. Returns why there is none.
    pub(crate) fn place(&self) -> Result<Place, String> {
        let addresses = self.target.addresses();
        if addresses.is_empty() {
            return Err(self.target.why_nowhere());
        }
        let first = self.next_address.load(Ordering::Relaxed);
        let mut why = String::new();
        for turn in 0..addresses.len() {
            let target = &addresses[first.wrapping_add(turn) % addresses.len()];
            match connect(target) {
                Ok(socket) => {
                    let target = target.clone();
                    return Ok(Place { socket, target });
                }
                Err(errno) => why = why_unreachable(target, errno),
            }
        }
        Err(why)
    }

    /// The target's side of a session has failed.
    pub(crate) fn failed(&self, session: &Session) {
        if session.to_client.datagrams == 0 {
            // The next session tries the next address, if the target has several.
            self.next_address.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A socket of a session's own to `target`.
fn connect(target: &SocketAddress) -> Result<DatagramSocket, Errno> {
    let socket = DatagramSocket::new(target)?;
    if matches!(target, SocketAddress::Unix(_)) {
        // The kernel picks a name, to which the target can send its answers (unix(7), autobind).
        bind(socket.fd(), &SocketAddrUnix::new_unnamed())?;
    }
    target.connect(socket.fd())?;
    Ok(socket)
}

fn why_unreachable(target: &SocketAddress, errno: Errno) -> String {
    let reason = limit_met(errno).unwrap_or_else(|| words(errno));
    format!("{target} cannot be reached: {reason}")
}

/// What the kernel says.
pub(super) fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
