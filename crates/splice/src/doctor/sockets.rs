//! Connected sockets for a trial.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use std::{io, thread};

use splice_base::error::{Result, ResultExt as _};

use crate::endpoint::Kind;

/// How soon to look again for a connection on its way over loopback.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The family of a trial's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    Tcp,
    Unix,
}

impl Family {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Tcp => Kind::Tcp4,
            Self::Unix => Kind::Unix,
        }
    }
}

/// Two ends of a connection within this process.
pub(super) fn connection(family: Family, deadline: Instant) -> Result<(OwnedFd, OwnedFd)> {
    match family {
        Family::Tcp => tcp(deadline).context("cannot make a TCP connection on loopback"),
        Family::Unix => UnixStream::pair()
            .map(|(one, other)| (one.into(), other.into()))
            .context("cannot make a pair of UNIX sockets"),
    }
}

fn tcp(deadline: Instant) -> io::Result<(OwnedFd, OwnedFd)> {
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
    // `connect_timeout` rejects a zero timeout.
    let patience = deadline
        .saturating_duration_since(Instant::now())
        .max(LOOK_AGAIN);
    let client = TcpStream::connect_timeout(&listener.local_addr()?, patience)?;
    let own_address = client.local_addr()?;
    listener.set_nonblocking(true)?;
    loop {
        match listener.accept() {
            Ok((server, address)) if address == own_address => {
                return Ok((client.into(), server.into()));
            }
            // A stranger has connected, as a port scan does.
            Ok(_) => {}
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() >= deadline => return Err(io::ErrorKind::TimedOut.into()),
            Err(_) => thread::sleep(LOOK_AGAIN),
        }
    }
}
