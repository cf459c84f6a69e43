//! How much a pair has moved.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that a pair has delivered to the receiving socket, each way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes from `a` to `b`.
    pub a_to_b: u64,
    /// Bytes from `b` to `a`.
    pub b_to_a: u64,
}

impl Counters {
    /// The sum of both directions, in bytes.
    pub fn total(&self) -> u64 {
        self.a_to_b + self.b_to_a
    }
}

/// The live side of [`Counters`]: the pair's loop writes, anyone reads.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    moved_bytes: [AtomicU64; 2],
}

impl Meter {
    /// Only the loop that owns the pair calls this.
    pub(crate) fn set(&self, direction: usize, bytes: u64) {
        self.moved_bytes[direction].store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Counters {
        let [a_to_b, b_to_a] =
            [0, 1].map(|index: usize| self.moved_bytes[index].load(Ordering::Relaxed));
        Counters { a_to_b, b_to_a }
    }
}
