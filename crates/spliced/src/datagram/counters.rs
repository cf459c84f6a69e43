//! Counts of datagrams.

use std::fmt;

use crate::plural::counted;

/// What went from one side to the other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) datagrams: u64,
    pub(crate) bytes: u64,
    pub(crate) dropped: Dropped,
}

/// Datagrams that did not arrive at the other side, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// A buffer of the kernel was full.
    pub(crate) full: u64,
    /// Longer than the other side's kind of socket or its path takes.
    pub(crate) too_long: u64,
    /// No session, or no way to the receiver.
    pub(crate) nowhere: u64,
}

/// The sum of a thread, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) sessions: u64,
    /// Sessions that made room for others.
    pub(crate) displaced: u64,
    pub(crate) to_target: Flow,
    pub(crate) to_client: Flow,
}

impl Dropped {
    pub(crate) fn sum(&self) -> u64 {
        self.full + self.too_long + self.nowhere
    }
}

impl Flow {
    /// All datagrams that have come.
    pub(crate) fn seen(&self) -> u64 {
        self.datagrams + self.dropped.sum()
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.datagrams += other.datagrams;
        self.bytes += other.bytes;
        self.dropped.full += other.dropped.full;
        self.dropped.too_long += other.dropped.too_long;
        self.dropped.nowhere += other.dropped.nowhere;
    }
}

impl Counters {
    pub(crate) fn add(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.displaced += other.displaced;
        self.to_target.add(&other.to_target);
        self.to_client.add(&other.to_client);
    }
}

impl fmt::Display for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dropped = &self.dropped;
        write!(
            f,
            "{}, dropped {} (no room {}, too long {}, no way {})",
            counted(self.datagrams, "datagram"),
            dropped.sum(),
            dropped.full,
            dropped.too_long,
            dropped.nowhere
        )
    }
}
