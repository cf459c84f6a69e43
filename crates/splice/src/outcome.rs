//! Why a pair ended.

use std::borrow::Cow;
use std::time::Duration;
use std::{fmt, io};

use splice_base::error::Error;

use crate::counters::Counters;
use crate::name::EngineName;

/// One of the two ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first socket.
    A,
    /// The second socket.
    B,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::A, Self::B];

    /// The other end.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }

    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

/// What the peers of a pair's two sockets are called in words for people, such as [`Outcome::why_engine`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerNames {
    /// The peer of the first socket.
    pub a: &'static str,
    /// The peer of the second socket.
    pub b: &'static str,
}

impl PeerNames {
    pub(crate) fn of(self, side: Side) -> &'static str {
        match side {
            Side::A => self.a,
            Side::B => self.b,
        }
    }
}

impl Default for PeerNames {
    /// A and B.
    fn default() -> Self {
        Self { a: "A", b: "B" }
    }
}

/// Why a pair ended.
///
/// With [`Reason::EndOfStream`] and [`Reason::ByteLimit`] both peers see EOF. Every other reason
/// truncates a stream, so a TCP peer sees a reset: EOF would let it mistake a part for the whole.
/// (A UNIX stream has no reset that its other end can send at will; its peer sees EOF.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Both streams reached EOF, and all bytes were delivered.
    EndOfStream,
    /// This side reset its connection, or closed it while bytes for it were in flight.
    Reset(Side),
    /// No byte moved for the idle timeout.
    Idle,
    /// One stream had ended, and no byte moved in the other direction for the timeout of that.
    HalfClosed,
    /// A direction has moved as many bytes as the limit allows.
    ByteLimit,
    /// The handle was dropped or the event loop ended.
    Shutdown,
    /// The engine that was chosen by name cannot take this pair; [`Outcome::why_engine`] has the
    /// reason.
    Refused,
    /// The caller has taken the sockets of a one-way splice back.
    Undone,
    /// The bytes of a ring of one-way splices have gone round too often.
    Looped,
    /// A message is longer than the send buffer of this side's UNIX socket may be: `net.core.wmem_max` bounds it without
    /// CAP_NET_ADMIN.
    MessageTooLong(Side),
    /// Another system call on this side's socket failed with this `errno`; `ETIMEDOUT` if
    /// keep-alive or retransmission found the peer gone.
    Failed {
        /// The side whose socket failed.
        side: Side,
        /// The operating system's error number.
        errno: i32,
    },
}

impl Reason {
    /// Whether a stream was truncated, so that the peers must see a reset.
    pub(crate) fn is_truncation(self) -> bool {
        !matches!(self, Self::EndOfStream | Self::ByteLimit)
    }

    /// The reason as an echo reports it, which has one side.
    pub(crate) fn of_echo(self) -> Self {
        match self {
            Self::Reset(_) => Self::Reset(Side::A),
            Self::MessageTooLong(_) => Self::MessageTooLong(Side::A),
            Self::Failed { errno, .. } => Self::Failed {
                side: Side::A,
                errno,
            },
            other => other,
        }
    }

    pub(crate) fn of_error(side: Side, error: &Error) -> Self {
        let errno = error.errno().map_or(0, rustix::io::Errno::raw_os_error);
        Self::Failed { side, errno }
    }

    pub(crate) fn of_errno(side: Side, errno: rustix::io::Errno) -> Self {
        match errno {
            // `ENOTCONN` comes if another system call has taken the reset.
            rustix::io::Errno::CONNRESET | rustix::io::Errno::PIPE | rustix::io::Errno::NOTCONN => {
                Self::Reset(side)
            }
            other => Self::Failed {
                side,
                errno: other.raw_os_error(),
            },
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EndOfStream => f.write_str("end of stream on both sides"),
            Self::Reset(side) => write!(f, "reset by {side:?}"),
            Self::Idle => f.write_str("idle"),
            Self::HalfClosed => f.write_str("half-closed for too long"),
            Self::ByteLimit => f.write_str("byte limit"),
            Self::Shutdown => f.write_str("shutdown"),
            Self::Refused => f.write_str("refused by the engine"),
            Self::Undone => f.write_str("undone"),
            Self::Looped => f.write_str("looped"),
            Self::MessageTooLong(side) => write!(
                f,
                "a message is too long for {side:?}: raise net.core.wmem_max or add CAP_NET_ADMIN"
            ),
            Self::Failed { side, errno } => {
                write!(
                    f,
                    "{side:?} failed: {}",
                    io::Error::from_raw_os_error(*errno)
                )
            }
        }
    }
}

/// How a pair ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Why it ended.
    pub reason: Reason,
    /// The exact number of bytes moved.
    pub moved: Counters,
    /// The messages of sockets that keep them apart ([`Kind::keeps_messages`](crate::Kind::keeps_messages)); 0 for streams.
    pub messages: Counters,
    /// The engine that moved the last bytes, or the kernel engine if it moved any. An engine that
    /// never took the pair, or took it and moved no byte, is not reported, even if it was chosen by
    /// name.
    pub engine: EngineName,
    /// Why that engine, in words. If a kernel engine took the pair, also how many bytes user space
    /// moved, and why.
    pub why_engine: Cow<'static, str>,
    /// From the join to the end.
    pub duration: Duration,
}
