//! The engines: ways of moving bytes from one socket to another.
//!
//! `copy`, `pipe` and `aio` move them in user space's hands: each has a carrier, and
//! [`Direction`](crate::direction::Direction) drives whichever a direction uses, and `uring`'s
//! [`Lane`](uring::Lane)s in the same way. `sockmap` and `segment` move them in the kernel: each is a
//! [`KernelEngine`](kernel::KernelEngine), which takes a pair over.

pub(crate) mod aio;
pub(crate) mod buffer;
mod copy;
pub(crate) mod kernel;
pub(crate) mod pipe;
pub(crate) mod segment;
pub(crate) mod sockmap;
pub(crate) mod uring;

use std::borrow::Cow;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::{fmt, iter};

use rustix::io::Errno;

use crate::endpoint::Kind;
use crate::error::{Error, ErrorKind, Result};
use crate::event_loop::Key;
use crate::obstacle::{Obstacle, listed};
use crate::task::Readiness;

/// One way of moving bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineName {
    /// `recv(2)` and `send(2)` with a buffer: cheap to set up, best for small messages.
    Copy,
    /// `splice(2)` through a pipe: the pages of bulk data pass without being copied.
    Pipe,
    /// Linux AIO: one `io_submit(2)` reads a message and writes it. For comparison; never picked
    /// by itself.
    Aio,
    /// `io_uring(7)`: receives and sends are submitted together, and one system call does the work
    /// of several. Needs Linux 5.19 and a system that does not forbid it. The thread that turns an
    /// [`EventLoop`](crate::EventLoop) with such pairs can have one system call interrupted
    /// (`EINTR`) after the last of them has ended.
    Uring,
    /// A BPF program sends what arrives on: the process sleeps. For small messages between
    /// TCP sockets; needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    Sockmap,
    /// A tc program translates the segments of one TCP connection into those of the other; the
    /// relay's sockets sleep. Needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; docs/segment.md has its
    /// limits.
    Segment,
}

impl EngineName {
    /// All engines, the cheapest to set up first.
    pub const ALL: [Self; 6] = [
        Self::Copy,
        Self::Pipe,
        Self::Aio,
        Self::Uring,
        Self::Sockmap,
        Self::Segment,
    ];

    /// The name as it is written.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Pipe => "pipe",
            Self::Aio => "aio",
            Self::Uring => "uring",
            Self::Sockmap => "sockmap",
            Self::Segment => "segment",
        }
    }

    /// Tries whether this process can use the engine at all; whether it can take a certain pair
    /// shows when that is joined.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason and what to do about it.
    pub fn probe(self) -> Result<()> {
        match self {
            Self::Copy => Ok(()),
            Self::Pipe => pipe::probe(),
            Self::Aio => aio::Context::new().map(drop),
            Self::Uring => uring::probe(),
            Self::Sockmap => sockmap::probe(),
            Self::Segment => segment::ground::Ground::found()
                .map(drop)
                .map_err(|obstacle| self.hindered(obstacle)),
        }
    }

    /// An obstacle is in the engine's way.
    pub(crate) fn hindered(self, obstacle: Obstacle) -> Error {
        self.refused(obstacle.reason).with_remedy(obstacle.remedy)
    }

    pub(crate) fn refused(self, why: impl fmt::Display) -> Error {
        Error::new(
            ErrorKind::EngineRefused,
            format!("engine {self} cannot be used: {why}"),
        )
    }
}

impl EngineName {
    /// Whether the engine can splice a socket to itself, whatever this process may do.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason.
    pub fn can_echo(self) -> Result<()> {
        let why = match self {
            Self::Copy | Self::Pipe | Self::Aio | Self::Uring | Self::Sockmap => {
                return Ok(());
            }
            Self::Segment => "it translates the segments of one connection into those of another",
        };
        Err(Error::new(
            ErrorKind::EngineRefused,
            format!("engine {self} cannot splice a socket to itself: {why}; choose another"),
        ))
    }

    /// Whether the engine takes pairs with such sockets, whatever this process may do.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the reason.
    pub fn can_take(self, kind: Kind) -> Result<()> {
        let why = match (self, kind) {
            // `unix_shutdown` takes the socket at the other end out of every map, together with
            // what was redirected to it and not yet sent.
            (Self::Sockmap, Kind::Unix) => {
                "a UNIX socket loses what is under way to it when its peer half-closes"
            }
            (Self::Sockmap, Kind::Mptcp) => {
                "the kernel does not take Multipath TCP into a map of sockets"
            }
            (Self::Segment, Kind::Unix | Kind::Mptcp) => {
                "it translates the segments of plain TCP connections"
            }
            _ => return Ok(()),
        };
        Err(Error::new(
            ErrorKind::EngineRefused,
            format!("engine {self} cannot take this pair: {why}; use copy or pipe"),
        ))
    }
}

impl fmt::Display for EngineName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Which engine a pair is to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum EngineChoice {
    /// Start on `copy`; a direction that moves bulk goes to `pipe`; a TCP pair that lives for 50 ms or
    /// has moved 64 KiB is tried with `segment`, where this process may load it
    /// ([`Options::segment_after`](crate::Options::segment_after)).
    #[default]
    Auto,
    /// This one, or a refusal: `copy`, `pipe`, `aio` and `uring` from the first byte on. An engine in
    /// the kernel, `sockmap` or `segment`, takes a pair that has begun with `copy`, and a short pair
    /// may end before that; [`Outcome::why_engine`](crate::Outcome::why_engine) tells how much was
    /// copied.
    Only(EngineName),
}

impl FromStr for EngineChoice {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::EngineRefused`] with the names that exist.
    fn from_str(text: &str) -> Result<Self> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        EngineName::ALL
            .into_iter()
            .find(|name| name.as_str() == text)
            .map(Self::Only)
            .ok_or_else(|| {
                let names: Vec<_> = iter::once("auto")
                    .chain(EngineName::ALL.map(EngineName::as_str))
                    .collect();
                Error::new(
                    ErrorKind::EngineRefused,
                    format!(
                        "there is no engine {text:?}; choose {}",
                        listed(&names, "or")
                    ),
                )
            })
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Only(name) => name.fmt(f),
        }
    }
}

/// What a read from the source brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// This many bytes are in hand now, and the source may have more.
    Some(usize),
    /// This many bytes are in hand now, and the source was found empty behind them, unless an
    /// end of stream or an urgent mark stands there.
    Last(usize),
    /// Nothing, for now.
    Empty,
    /// Nothing: an urgent mark stands in the way, which only recv(2) gets past.
    Mark,
    /// The end of the stream.
    End,
}

impl Filled {
    /// What a read of a socket brought that asked for `wanted` bytes.
    pub(crate) fn by_read(count: usize, wanted: usize) -> Self {
        match count {
            0 => Self::End,
            count if count < wanted => Self::Last(count),
            count => Self::Some(count),
        }
    }
}

/// Carries bytes from a source to a destination; what it has taken and not yet given is "in
/// hand".
pub(crate) trait Carrier {
    /// Takes at most `at_most` bytes (not zero) from the source. Called with nothing in hand.
    fn fill(
        &mut self,
        source: BorrowedFd<'_>,
        at_most: usize,
    ) -> std::result::Result<Filled, Errno>;

    /// Gives bytes in hand to the destination; returns how many it took, or `EAGAIN`.
    fn drain(&mut self, destination: BorrowedFd<'_>) -> std::result::Result<usize, Errno>;

    /// How many bytes are in hand.
    fn held(&self) -> usize;
}

/// What the pairs of one loop share.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    pub(crate) buffers: buffer::Buffers,
    pub(crate) pipes: pipe::Pipes,
    pub(crate) segments: segment::ground::Standing,
    /// Made for the first pair of the engine `aio`, and kept: see there.
    pub(crate) aio: Option<aio::Context>,
    /// Exists while pairs of the engine `uring` do, and a little longer.
    pub(crate) ring: Option<uring::Ring>,
    pairs: usize,
}

impl Carriers {
    /// What the ring has to tell a task.
    pub(crate) fn next_news(&mut self) -> Option<(Key, u8, Readiness)> {
        self.ring.as_mut().and_then(uring::Ring::next_news)
    }

    pub(crate) fn has_news(&self) -> bool {
        self.ring.as_ref().is_some_and(uring::Ring::has_news)
    }

    /// A pair begins to use them.
    pub(crate) fn enter(&mut self) {
        self.pairs += 1;
    }

    /// A pair has given back what it had. When it was the last one no buffer or pipe is
    /// kept, whatever other tasks the loop goes on with: pipes are a scarce good of the whole user.
    pub(crate) fn leave(&mut self) {
        self.pairs -= 1;
        if self.pairs == 0 {
            *self = Self {
                segments: std::mem::take(&mut self.segments),
                aio: self.aio.take(),
                ring: self.ring.take(),
                ..Self::default()
            };
        }
    }
}

/// An engine and why it is the one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) name: EngineName,
    pub(crate) why: Cow<'static, str>,
}

impl Chosen {
    pub(crate) fn new(name: EngineName, why: &'static str) -> Self {
        Self {
            name,
            why: Cow::Borrowed(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::EngineChoice;

    #[test]
    fn an_engine_that_does_not_exist_is_answered_with_those_that_do() {
        let error = "fast".parse::<EngineChoice>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no engine \"fast\"; choose auto, copy, pipe, aio, uring, sockmap or segment"
        );
    }
}
