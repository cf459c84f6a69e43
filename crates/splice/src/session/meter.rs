//! The live side of [`Counters`]: the pair's loop writes, anyone reads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::counters::Counters;
use crate::kernel::KernelCounters;

/// The live side of [`Counters`]: the pair's loop writes, anyone reads.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// What user space has moved; after the end, everything.
    moved_bytes: [AtomicU64; 2],
    /// What the kernel has moved while an engine there has the pair. Readers read it in place, so
    /// the loop does not wake up to copy figures.
    kernel: Mutex<Option<Arc<dyn KernelCounters>>>,
    /// For tests: what the kernel had carried at the end, retransmissions included.
    #[cfg(test)]
    pub(crate) carried_bytes: AtomicU64,
}

impl Meter {
    /// Only the loop that owns the pair calls this.
    pub(crate) fn set(&self, direction: usize, bytes: u64) {
        self.moved_bytes[direction].store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_kernel(&self, kernel: Arc<dyn KernelCounters>) {
        *self.lock() = Some(kernel);
    }

    #[cfg(test)]
    pub(crate) fn has_kernel(&self) -> bool {
        self.lock().is_some()
    }

    /// The part that user space has moved, while the pair runs.
    #[cfg(test)]
    pub(crate) fn by_user_space(&self) -> u64 {
        let each = self.moved_bytes.iter();
        each.map(|moved| moved.load(Ordering::Relaxed)).sum()
    }

    /// Replaces the kernel's counters by the final figures.
    pub(crate) fn settle(&self, bytes: [u64; 2]) {
        let mut kernel = self.lock();
        for (moved, bytes) in self.moved_bytes.iter().zip(bytes) {
            moved.store(bytes, Ordering::Relaxed);
        }
        *kernel = None;
    }

    pub(crate) fn read(&self) -> Counters {
        let kernel = self.lock();
        let in_kernel = kernel
            .as_ref()
            .map_or([0, 0], |kernel| kernel.moved_bytes());
        let [a_to_b, b_to_a] = [0, 1]
            .map(|index: usize| self.moved_bytes[index].load(Ordering::Relaxed) + in_kernel[index]);
        Counters { a_to_b, b_to_a }
    }

    /// The part that an engine in the kernel has moved.
    pub(crate) fn in_kernel(&self) -> Counters {
        let moved = self.lock().as_ref().map(|kernel| kernel.moved_bytes());
        let [a_to_b, b_to_a] = moved.unwrap_or_default();
        Counters { a_to_b, b_to_a }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn KernelCounters>>> {
        // The value is replaced as a whole, so a panic cannot leave it half updated.
        self.kernel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
