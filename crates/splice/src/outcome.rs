//! Why a pair ended.

use std::borrow::Cow;
use std::time::Duration;
use std::{fmt, io};

use crate::counters::Counters;
use crate::name::EngineName;

/// One of the two ends of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The first socket that was given.
    A,
    /// The second socket that was given.
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

/// Why a pair ended.
///
/// With [`Reason::EndOfStream`] and [`Reason::ByteLimit`] both peers see an orderly end of stream.
/// With every other reason a stream was cut before its end, so a TCP peer sees a reset: an end of
/// stream would let it take a part for the whole. (A UNIX stream has no reset that its other end
/// can send at will; its peer sees an end of stream.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// Both directions ended with all their bytes delivered.
    EndOfStream,
    /// This side reset its connection, or closed it while bytes for it were under way.
    Reset(Side),
    /// No byte moved for the idle timeout.
    Idle,
    /// A direction has moved as many bytes as the limit allows.
    ByteLimit,
    /// The handle was dropped or the event loop ended.
    Shutdown,
    /// The engine that was asked for by name cannot take this pair; [`Outcome::why_engine`] says
    /// why.
    Refused,
    /// The packet filters of this host have come to stop the pair, which an engine had moved past them;
    /// [`Outcome::why_engine`] names the rule.
    Filtered,
    /// A system call on this side's socket failed otherwise, with this `errno`; `ETIMEDOUT` when
    /// keep-alive or retransmission found the peer gone.
    Failed {
        /// The side whose socket failed.
        side: Side,
        /// The operating system's error number.
        errno: i32,
    },
}

impl Reason {
    /// Whether the streams were cut before their end, so that the peers must see a reset.
    pub(crate) fn cuts(self) -> bool {
        !matches!(self, Self::EndOfStream | Self::ByteLimit)
    }

    /// The same for an echo, which has one side.
    pub(crate) fn of_echo(self) -> Self {
        match self {
            Self::Reset(_) => Self::Reset(Side::A),
            Self::Failed { errno, .. } => Self::Failed {
                side: Side::A,
                errno,
            },
            other => other,
        }
    }

    pub(crate) fn fault(side: Side, errno: rustix::io::Errno) -> Self {
        match errno {
            // The last comes where the reset was told to another system call.
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
            Self::ByteLimit => f.write_str("byte limit"),
            Self::Shutdown => f.write_str("shutdown"),
            Self::Refused => f.write_str("refused by the engine"),
            Self::Filtered => f.write_str("stopped by the packet filters"),
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
    /// What it moved, exactly.
    pub moved: Counters,
    /// The engine that moved the last bytes, or the engine in the kernel that moved any. One that never
    /// took the pair, or took it and had no byte to move, does not stand here, also where it was asked
    /// for by name.
    pub engine: EngineName,
    /// Why that engine, in words; where an engine in the kernel took the pair, also how many bytes
    /// user space moved, and why.
    pub why_engine: Cow<'static, str>,
    /// From the join to the end.
    pub duration: Duration,
}
