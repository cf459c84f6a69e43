//! Connected sockets for a trial.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use splice_base::error::{Result, ResultExt as _};
use splice_base::loopback;

use crate::endpoint::Kind;

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
        Family::Tcp => {
            loopback::connection(deadline).map(|(one, other)| (one.into(), other.into()))
        }
        Family::Unix => UnixStream::pair()
            .map(|(one, other)| (one.into(), other.into()))
            .context("cannot make a pair of UNIX sockets"),
    }
}
