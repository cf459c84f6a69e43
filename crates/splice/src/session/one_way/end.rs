//! One side of a one-way splice.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::net::{SocketType, ipproto, sockopt};
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};

use super::rules::Rules;
use crate::endpoint::Socket;

/// What an end's protocol lets the kernel do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    /// A stream of another protocol.
    Stream,
    Datagram,
}

/// One side of the splice: a duplicate of a descriptor that stays the caller's.
pub(super) struct End {
    /// `None` only while it is dropped.
    duplicate: Option<OwnedFd>,
    pub(super) rules: Arc<dyn Rules>,
    pub(super) transport: Transport,
}

impl End {
    /// # Errors
    /// [`ErrorKind::System`] if the descriptor cannot be duplicated;
    /// [`ErrorKind::UnsupportedSocket`].
    pub(super) fn new(fd: BorrowedFd<'_>, rules: &Arc<dyn Rules>) -> Result<Self> {
        let unsupported = |why| Err(Error::new(ErrorKind::UnsupportedSocket, why));
        let transport = match sockopt::socket_type(fd) {
            Ok(SocketType::DGRAM) => Transport::Datagram,
            Ok(SocketType::STREAM) => {
                let protocol = sockopt::socket_protocol(fd);
                match protocol.context("cannot read the socket's protocol")? {
                    Some(ipproto::TCP) => Transport::Tcp,
                    _ => Transport::Stream,
                }
            }
            Ok(_) => return unsupported("the socket carries neither a stream nor datagrams"),
            Err(_) => return unsupported("the descriptor is not a socket"),
        };
        let duplicate = rules.duplicate(fd);
        let duplicate = duplicate.context("cannot duplicate the socket's descriptor")?;
        Ok(Self {
            duplicate: Some(duplicate),
            rules: Arc::clone(rules),
            transport,
        })
    }

    /// Gives the descriptor to a pair.
    pub(super) fn hand_over(mut self) -> Option<OwnedFd> {
        let duplicate = self.duplicate.take()?;
        Some(self.rules.hand_over(duplicate))
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.duplicate
            .as_ref()
            .map(OwnedFd::as_fd)
            .unwrap_or_else(|| unreachable!("only `drop` and `hand_over` take it"))
    }
}

impl Drop for End {
    fn drop(&mut self) {
        if let Some(duplicate) = self.duplicate.take() {
            self.rules.close(duplicate);
        }
    }
}

impl Socket for End {
    fn is_emptied_by_short_read(&self) -> bool {
        self.transport == Transport::Tcp
    }
}
