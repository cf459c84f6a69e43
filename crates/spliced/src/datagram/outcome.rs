//! Why a session has ended.

use std::fmt;

use rustix::io::Errno;

use crate::sessions::KILLED;
use crate::tally::Ending;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Idle,
    /// As often as the relay expects.
    Answered,
    TargetFailed(Errno),
    ClientFailed(Errno),
    /// By another client, at the limit.
    Displaced,
    /// By another session of its client, at that limit.
    DisplacedByOwn,
    /// By a reload that has lowered a limit.
    BeyondLimit,
    Killed,
    /// No datagram came for a moment, and the relay ends.
    QuietAtEnd,
    /// No datagram came for a moment, and its listener takes no more clients.
    Quiet,
    /// By the end of the relay.
    CutShort,
    ListenerRemoved,
    ServerRemoved,
    ServerDown,
}

impl Outcome {
    /// As it is counted.
    pub(crate) fn ending(self) -> Ending {
        match self {
            Self::Idle => Ending::Idle,
            Self::Answered => Ending::Answered,
            Self::TargetFailed(_) => Ending::TargetFailed,
            Self::ClientFailed(_) => Ending::ClientFailed,
            Self::Displaced | Self::DisplacedByOwn | Self::BeyondLimit => Ending::Displaced,
            Self::Killed => Ending::Killed,
            Self::QuietAtEnd | Self::Quiet => Ending::Quiet,
            Self::CutShort => Ending::CutShort,
            Self::ListenerRemoved => Ending::ListenerRemoved,
            Self::ServerRemoved => Ending::ServerRemoved,
            Self::ServerDown => Ending::ServerDown,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Idle => f.write_str("idle"),
            Self::Answered => f.write_str("answered"),
            Self::TargetFailed(errno) => write!(f, "the target failed: {}", words(*errno)),
            Self::ClientFailed(errno) => {
                write!(f, "the client cannot be answered: {}", words(*errno))
            }
            Self::Displaced => f.write_str("displaced by a new client"),
            Self::DisplacedByOwn => f.write_str("displaced by a new session of its client"),
            Self::BeyondLimit => f.write_str("displaced by a lower limit"),
            Self::Killed => f.write_str(KILLED),
            Self::QuietAtEnd => f.write_str("quiet, and the relay ends"),
            Self::Quiet => f.write_str("quiet, and its listener takes no more clients"),
            Self::CutShort => f.write_str("cut short at the end of the relay"),
            Self::ListenerRemoved => f.write_str("its listener was removed"),
            Self::ServerRemoved => f.write_str("its server was removed"),
            Self::ServerDown => f.write_str("its server went down"),
        }
    }
}

/// What the kernel says.
pub(super) fn words(errno: Errno) -> String {
    std::io::Error::from(errno).to_string()
}
