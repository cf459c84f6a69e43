//! What a turn of the mesh reports.

use super::member::{Departure, MemberCounters};

/// Why a frame was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// There is no such destination.
    Unknown,
    /// Too much is on its way to the destination.
    Full,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A frame was not delivered. Its sender gets a notice.
    Refused {
        /// Who sent it.
        sender: u64,
        /// Whom it was for.
        destination: u64,
        /// Why it was not delivered.
        reason: Refusal,
    },
    /// A member has left, and its socket is closed.
    Left {
        /// Who.
        member: u64,
        /// Why.
        why: Departure,
        /// What it has sent and got.
        counters: MemberCounters,
    },
}
