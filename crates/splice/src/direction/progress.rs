//! How a direction's turn has ended.

use rustix::io::Errno;

/// Why a direction has stopped for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The direction waits for one of its sockets, or has ended.
    Waits,
    /// The direction could go on, but its turn is over.
    TurnOver,
}

/// A fatal error of a system call on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketError {
    /// The error is on the destination's socket; otherwise on the source's.
    pub(crate) at_destination: bool,
    pub(crate) errno: Errno,
}

impl SocketError {
    pub(super) fn at_source(errno: Errno) -> Self {
        Self {
            at_destination: false,
            errno,
        }
    }

    pub(super) fn at_destination(errno: Errno) -> Self {
        Self {
            at_destination: true,
            errno,
        }
    }
}
