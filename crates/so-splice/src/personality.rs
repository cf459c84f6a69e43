//! The systems whose `SO_SPLICE` there is, and what each leaves behind at the end of a splice.

use rustix::io::Errno;
use splice::{OneWayOptions, Reason, Side};

use crate::request::Request;

/// Whose rules a splice follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Personality {
    /// The library's own: every stream socket and UDP, a true idle timer, EOF passed on.
    Linux,
    /// FreeBSD 15.
    FreeBsd,
    /// OpenBSD 7.
    OpenBsd,
}

/// The errors that a splice leaves with its sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Left {
    pub(crate) source: Option<Errno>,
    pub(crate) drain: Option<Errno>,
}

impl Personality {
    pub(crate) fn options(self, request: &Request) -> OneWayOptions {
        OneWayOptions {
            byte_limit: request.byte_limit(),
            idle: request.idle_timer(self != Self::FreeBsd),
            // Neither BSD sends a FIN when a splice ends (`so_splice_xfer`, `somove`).
            passes_on_end: self == Self::Linux,
            passes_on_urgent: self == Self::OpenBsd,
        }
    }

    /// Why a splice has ended that has moved `moved_bytes`, as an error number.
    pub(crate) fn error(reason: Reason, moved_bytes: u64, request: &Request) -> Option<Errno> {
        let left = Self::Linux.left(reason, moved_bytes, request);
        left.source.or(left.drain)
    }

    /// What a splice leaves that has ended for `reason` after `moved_bytes`.
    pub(crate) fn left(self, reason: Reason, moved_bytes: u64, request: &Request) -> Left {
        let source = |errno| Left {
            source: Some(errno),
            drain: None,
        };
        match (self, reason) {
            // A limit, a timeout and a loop are no errors there.
            (Self::FreeBsd, Reason::ByteLimit | Reason::Idle | Reason::Looped) => Left::default(),
            // Less than the limit, if the next datagram exceeds it.
            (_, Reason::ByteLimit) if request.byte_limit() != Some(moved_bytes) => Left::default(),
            (_, Reason::ByteLimit) => source(Errno::FBIG),
            (_, Reason::Idle) => source(Errno::TIMEDOUT),
            (_, Reason::Looped) => source(Errno::LOOP),
            (_, Reason::Failed { side, errno }) => {
                let errno = Errno::from_raw_os_error(errno);
                match side {
                    Side::A => source(errno),
                    Side::B => self.left_by_drain(errno),
                }
            }
            _ => Left::default(),
        }
    }

    /// What a drain leaves that takes nothing more. The send that found out has consumed the
    /// socket's error.
    fn left_by_drain(self, errno: Errno) -> Left {
        let own = (errno != Errno::PIPE && errno != Errno::MSGSIZE).then_some(errno);
        let of_source = match (self, errno) {
            (Self::FreeBsd, _) => None,
            // `somove` asks first whether the drain can still send.
            (Self::OpenBsd, Errno::CONNRESET | Errno::TIMEDOUT) => Some(Errno::PIPE),
            _ => Some(errno),
        };
        Left {
            source: of_source,
            drain: own,
        }
    }
}
