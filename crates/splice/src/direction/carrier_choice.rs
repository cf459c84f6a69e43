//! How a direction picks its carrier.

use rustix::io::Errno;

use super::Conduit;
use crate::carrier::datagram::Datagrams;
use crate::carrier::message::Messages;
use crate::carrier::peek::Peeking;

/// How a direction picks its carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum CarrierChoice {
    /// Always a buffer.
    #[default]
    Copy,
    /// Always a pipe.
    Pipe,
    /// Always requests to the loop's AIO context.
    Aio,
    /// Always a lane of the loop's ring.
    Ring,
    /// A pipe while reads bring bulk, once [`Conduit::pipe_after_bytes`] have moved; otherwise a
    /// buffer.
    Adaptive,
    /// What leaves each byte in the source until it is sent.
    Peek(Peeking),
    /// A datagram at a time.
    Datagrams(Datagrams),
    /// A buffer, for a message at a time.
    Messages(Messages),
}

impl CarrierChoice {
    /// Whether the next read may go through a pipe, and the most that it may take, in bytes: 0 if
    /// the destination has no room.
    pub(super) fn next_read(
        self,
        conduit: &Conduit<'_>,
        is_bulk: bool,
        given_bytes: u64,
    ) -> (bool, usize) {
        let by_pipe = match self {
            Self::Copy | Self::Aio | Self::Ring | Self::Datagrams(_) | Self::Messages(_) => false,
            Self::Pipe => true,
            Self::Adaptive => is_bulk && given_bytes >= conduit.pipe_after_bytes,
            Self::Peek(peeking) => {
                let destination = conduit.destination.as_fd();
                return peeking.next_read(conduit.source.as_fd(), destination, is_bulk);
            }
        };
        (by_pipe, usize::MAX)
    }

    /// Whether a read of it writes, so that it needs room in the destination.
    pub(super) fn writes_at_once(self) -> bool {
        matches!(self, Self::Peek(_) | Self::Datagrams(_))
    }

    /// Whether the first read and write show what the sockets are ready for: epoll does not, or not
    /// yet.
    pub(super) fn tries_first(self) -> bool {
        self == Self::Ring || self.writes_at_once()
    }

    /// The thread that moves bytes from now on may use splice(2), which raises `SIGPIPE`.
    pub(crate) fn may_pipe(&mut self) {
        if let Self::Peek(peeking) = self {
            peeking.may_pipe = true;
        }
    }

    /// Another process may read the source from now on.
    pub(crate) fn share_source(&mut self) {
        match self {
            Self::Peek(peeking) => peeking.is_shared = true,
            Self::Datagrams(datagrams) => datagrams.is_shared = true,
            _ => {}
        }
    }
}

/// Which carriers have moved a direction's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarriersUsed {
    /// A pipe has moved some of them.
    pub(crate) piped: bool,
    /// Why bytes were copied that should have gone through a pipe.
    pub(crate) no_pipe: Option<Errno>,
}
