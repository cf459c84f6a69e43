//! One side of a one-way splice.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{SocketType, ipproto, sockopt};
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};

use super::duplicate::Duplicate;
use crate::endpoint::Socket;

/// What an end's protocol lets the kernel do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp,
    /// A stream of another protocol.
    Stream,
    Datagram,
}

/// One side of the splice.
#[derive(Debug)]
pub(super) struct End {
    pub(super) fd: Duplicate,
    pub(super) transport: Transport,
}

impl End {
    pub(super) fn new(fd: Duplicate) -> Result<Self> {
        let unsupported = |why| Err(Error::new(ErrorKind::UnsupportedSocket, why));
        let transport = match sockopt::socket_type(&fd) {
            Ok(SocketType::DGRAM) => Transport::Datagram,
            Ok(SocketType::STREAM) => {
                let protocol = sockopt::socket_protocol(&fd);
                match protocol.context("cannot read the socket's protocol")? {
                    Some(ipproto::TCP) => Transport::Tcp,
                    _ => Transport::Stream,
                }
            }
            Ok(_) => return unsupported("the socket carries neither a stream nor datagrams"),
            Err(_) => return unsupported("the descriptor is not a socket"),
        };
        Ok(Self { fd, transport })
    }
}

impl AsFd for End {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Socket for End {
    fn is_emptied_by_short_read(&self) -> bool {
        self.transport == Transport::Tcp
    }
}
