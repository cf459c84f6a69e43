//! The names of the engines, and how a person chooses one.

use std::str::FromStr;
use std::{fmt, iter};

use splice_base::error::{Error, ErrorKind};
use splice_base::obstacle::{Obstacle, listed};

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

    /// Whether the kernel moves the bytes of the engine's pairs by itself.
    pub(crate) fn is_in_kernel(self) -> bool {
        matches!(self, Self::Sockmap | Self::Segment)
    }

    /// Something is in the engine's way.
    pub(crate) fn hindered(self, obstacle: Obstacle) -> Error {
        Error::new(ErrorKind::EngineRefused, obstacle.reason)
            .about(format!("engine {self} cannot be used"))
            .with_remedy(obstacle.remedy)
    }

    /// The engine does not take a pair of this kind.
    pub(crate) fn declines(self, why: &'static str, remedy: &'static str) -> Error {
        Error::new(ErrorKind::EngineRefused, why)
            .about(format!("engine {self} cannot take this pair"))
            .with_remedy(remedy)
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
    fn from_str(text: &str) -> Result<Self, Error> {
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
