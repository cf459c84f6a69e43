//! How much a pair has moved.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::engine::kernel::Gauge;

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
    /// What user space has moved, and after the end everything.
    moved_bytes: [AtomicU64; 2],
    /// What the kernel has moved, as long as an engine there has the pair. Read in place, so that
    /// nobody has to be woken to carry figures over.
    gauge: Mutex<Option<Arc<dyn Gauge>>>,
    /// For tests: what the kernel had carried by itself at the end, repetitions included.
    #[cfg(test)]
    pub(crate) carried_bytes: AtomicU64,
}

impl Meter {
    /// Only the loop that owns the pair calls this.
    pub(crate) fn set(&self, direction: usize, bytes: u64) {
        self.moved_bytes[direction].store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_gauge(&self, gauge: Arc<dyn Gauge>) {
        *self.lock() = Some(gauge);
    }

    #[cfg(test)]
    pub(crate) fn has_gauge(&self) -> bool {
        self.lock().is_some()
    }

    /// The part that user space has moved, while the pair runs.
    #[cfg(test)]
    pub(crate) fn by_hand(&self) -> u64 {
        let each = self.moved_bytes.iter();
        each.map(|moved| moved.load(Ordering::Relaxed)).sum()
    }

    /// Puts the last figures in place of the gauge.
    pub(crate) fn settle(&self, bytes: [u64; 2]) {
        let mut gauge = self.lock();
        for (moved, bytes) in self.moved_bytes.iter().zip(bytes) {
            moved.store(bytes, Ordering::Relaxed);
        }
        *gauge = None;
    }

    pub(crate) fn read(&self) -> Counters {
        let gauge = self.lock();
        let in_kernel = gauge.as_ref().map_or([0, 0], |gauge| gauge.moved_bytes());
        let [a_to_b, b_to_a] = [0, 1]
            .map(|index: usize| self.moved_bytes[index].load(Ordering::Relaxed) + in_kernel[index]);
        Counters { a_to_b, b_to_a }
    }

    /// The part that an engine in the kernel has moved.
    pub(crate) fn in_kernel(&self) -> Counters {
        let moved = self.lock().as_ref().map(|gauge| gauge.moved_bytes());
        let [a_to_b, b_to_a] = moved.unwrap_or_default();
        Counters { a_to_b, b_to_a }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Gauge>>> {
        // It is replaced as a whole, so a panic cannot leave it half made.
        self.gauge.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
