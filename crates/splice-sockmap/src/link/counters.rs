//! What a link has counted.

use std::fmt;

use splice_bpf::types::{Redirection, redirection_pass};

/// Why a message was not redirected, and left to the source's own reader instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PassReason {
    /// It is longer than the target takes in one piece.
    TooLong,
    /// The kernel had no memory to put it into one piece (`bpf_skb_pull_data`).
    NoMemory,
    /// The [lease](crate::Lease) is over.
    Lapsed,
    /// Too much is [outstanding](crate::Redirections::bounded) at the target, or was when an earlier message of the same stream was passed.
    Full,
    /// The kernel refuses the target: it is closed, or not in a state to take anything (`sock_map_redirect_allowed`).
    TargetGone,
}

impl PassReason {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::TooLong,
        Self::NoMemory,
        Self::Lapsed,
        Self::Full,
        Self::TargetGone,
    ];

    /// Its name, as in "target gone".
    pub fn name(self) -> &'static str {
        match self {
            Self::TooLong => "too long",
            Self::NoMemory => "no memory",
            Self::Lapsed => "lease lapsed",
            Self::Full => "target full",
            Self::TargetGone => "target gone",
        }
    }

    /// Where the program counts it.
    fn index(self) -> usize {
        let index = match self {
            Self::TooLong => redirection_pass::TOO_LONG,
            Self::NoMemory => redirection_pass::NO_MEMORY,
            Self::Lapsed => redirection_pass::LAPSED,
            Self::Full => redirection_pass::FULL,
            Self::TargetGone => redirection_pass::REFUSED,
        };
        index as usize
    }
}

impl fmt::Display for PassReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How many messages and bytes of a source went where. On a stream a message is what the kernel handed to the
/// program at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Redirected. By [`SendToEgress`](crate::Redirect::SendToEgress) also those that send(2) has refused, since the target's buffer was full.
    pub messages: u64,
    /// The bytes of them.
    pub bytes: u64,
    /// Left to the source's own reader; [`passed_for`](Self::passed_for) says why.
    pub passed_messages: u64,
    /// The bytes of them.
    pub passed_bytes: u64,
    /// Empty datagrams, which were dropped: the kernel can neither redirect nor pass them.
    pub empty_messages: u64,
    passed: [u64; PassReason::ALL.len()],
}

impl LinkCounters {
    pub(super) fn of(counts: &Redirection) -> Self {
        Self {
            messages: counts.messages,
            bytes: counts.bytes,
            passed_messages: counts.passed.iter().sum(),
            passed_bytes: counts.passed_bytes,
            empty_messages: counts.empty,
            passed: counts.passed,
        }
    }

    /// How many messages were passed for a reason.
    pub fn passed_for(&self, reason: PassReason) -> u64 {
        self.passed[reason.index()]
    }
}
