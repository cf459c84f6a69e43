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
    forwarded_bytes: AtomicU64,
}

impl Meter {
    /// Only the loop that owns the pair calls this.
    pub(crate) fn set(&self, direction: usize, bytes: u64) {
        self.moved_bytes[direction].store(bytes, Ordering::Relaxed);
    }

    /// What the kernel has forwarded by itself, repetitions included, in bytes.
    pub(crate) fn set_forwarded(&self, bytes: u64) {
        self.forwarded_bytes.store(bytes, Ordering::Relaxed);
    }

    /// As set by [`set_forwarded`](Self::set_forwarded).
    #[cfg(test)]
    pub(crate) fn forwarded_bytes(&self) -> u64 {
        self.forwarded_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Counters {
        let [a_to_b, b_to_a] =
            [0, 1].map(|index: usize| self.moved_bytes[index].load(Ordering::Relaxed));
        Counters { a_to_b, b_to_a }
    }
}
