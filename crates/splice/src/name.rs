//! The names of the engines, and the user's choice.

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
    /// `splice(2)` through a pipe: the pages of bulk data pass without a copy.
    Pipe,
    /// Linux AIO: one `io_submit(2)` reads a message and writes it. For comparison; `auto` never
    /// picks it.
    Aio,
    /// `io_uring(7)`: one system call submits receives and sends together and does the work of
    /// several. It needs Linux 5.19 and a system that does not forbid it. The thread that turns an
    /// [`EventLoop`](crate::EventLoop) with such pairs can have one system call interrupted
    /// (`EINTR`) after the last of them has ended.
    Uring,
    /// A BPF program forwards what arrives, and the process sleeps. For small messages between TCP
    /// sockets; needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON.
    Sockmap,
    /// A tc program translates the segments of one TCP connection into those of the other, and the
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

    /// The name as text.
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

    /// Whether the kernel moves the bytes of the engine's pairs without the process.
    pub(crate) fn is_in_kernel(self) -> bool {
        matches!(self, Self::Sockmap | Self::Segment)
    }

    /// The error of an engine that has an obstacle.
    pub(crate) fn unavailable(self, obstacle: Obstacle) -> Error {
        Error::new(ErrorKind::EngineRefused, obstacle.reason)
            .about(format!("engine {self} cannot be used"))
            .with_remedy(obstacle.remedy)
    }

    /// The error of an engine that does not take a pair of this kind.
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
    /// Begin with `copy`. A direction that moves bulk changes to `pipe`. A TCP pair that has lived
    /// for 50 ms or moved 64 KiB is tried with `segment`, if this process can load it
    /// ([`Options::segment_after`](crate::Options::segment_after)). A pair with kTLS stays with
    /// `copy`.
    #[default]
    Auto,
    /// This engine, or refuse the pair. `copy`, `pipe`, `aio` and `uring` move it from the first
    /// byte on. A kernel engine (`sockmap`, `segment`) takes a pair that has begun with `copy`, and
    /// a short pair may end before that; [`Outcome::why_engine`](crate::Outcome::why_engine) says
    /// how much was copied.
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
    fn an_unknown_engine_name_lists_the_known_ones() {
        let error = "fast".parse::<EngineChoice>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "there is no engine \"fast\"; choose auto, copy, pipe, aio, uring, sockmap or segment"
        );
    }
}
