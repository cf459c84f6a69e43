//! How far a session has come.

use serde::{Deserialize, Serialize};

/// How far a session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Its route is not known: what the client asks for has to come, or to be resolved.
    Deciding,
    /// Every server is at its limit of connections.
    Queued,
    /// It has a server, which is being reached, or gets the first bytes.
    Connecting,
    /// Both peers may send.
    Relaying,
    /// One peer has ended its stream, and bytes before its end are on their way.
    Draining,
    /// The end of one stream was passed on; the other one goes on.
    HalfClosed,
    /// Both streams have ended.
    Ended,
}

impl Phase {
    pub(crate) const ALL: [Self; 7] = [
        Self::Deciding,
        Self::Queued,
        Self::Connecting,
        Self::Relaying,
        Self::Draining,
        Self::HalfClosed,
        Self::Ended,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Deciding => "deciding",
            Self::Queued => "queued",
            Self::Connecting => "connecting",
            Self::Relaying => "relaying",
            Self::Draining => "draining",
            Self::HalfClosed => "half-closed",
            Self::Ended => "ended",
        }
    }
}
