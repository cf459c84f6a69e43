//! The live side of [`Counters`]: the pair's loop writes, anyone reads.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::counters::Counters;
use crate::kernel::KernelCounters;

/// The live side of [`Counters`]: the pair's loop writes, anyone reads.
#[derive(Debug)]
pub(crate) struct Meter {
    began_at: Instant,
    /// When user space last moved a byte: so long after the beginning.
    moved_after_ns: AtomicU64,
    /// When a byte that the second end has sent was first moved: so long after the beginning; `u64::MAX` before that.
    first_after_ns: AtomicU64,
    /// How far each stream has come, as a [`Stream`].
    streams: [AtomicU8; 2],
    /// What user space has moved; after the end, everything.
    moved_bytes: [AtomicU64; 2],
    /// Of sockets that keep them apart: the messages that user space has moved.
    messages: [AtomicU64; 2],
    /// What the kernel has moved while an engine there has the pair. Readers read it in place, so
    /// the loop does not wake up to copy figures.
    kernel: Mutex<Option<Arc<dyn KernelCounters>>>,
    /// For tests: what the kernel had carried at the end, retransmissions included.
    #[cfg(test)]
    pub(crate) carried_bytes: AtomicU64,
}

/// How far the stream of one side has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Its sender may send more.
    #[default]
    Open,
    /// Its sender has ended it, and bytes before its end are on their way.
    Draining,
    /// Its end was passed on.
    Ended,
}

impl Meter {
    pub(crate) fn new() -> Self {
        Self {
            began_at: Instant::now(),
            moved_after_ns: AtomicU64::new(0),
            first_after_ns: AtomicU64::new(u64::MAX),
            streams: Default::default(),
            moved_bytes: Default::default(),
            messages: Default::default(),
            kernel: Mutex::default(),
            #[cfg(test)]
            carried_bytes: AtomicU64::new(0),
        }
    }

    /// How long ago the pair began.
    pub(crate) fn lasted(&self) -> Duration {
        self.began_at.elapsed()
    }

    /// Only the loop that owns the pair calls this.
    pub(crate) fn set(&self, direction: usize, bytes: u64) {
        self.moved_bytes[direction].store(bytes, Ordering::Relaxed);
    }

    /// Where the loop that owns the pair counts messages.
    pub(crate) fn messages(&self, direction: usize) -> &AtomicU64 {
        &self.messages[direction]
    }

    /// The messages so far, per direction.
    pub(crate) fn read_messages(&self) -> Counters {
        let [a_to_b, b_to_a] = self.messages.each_ref();
        Counters {
            a_to_b: a_to_b.load(Ordering::Relaxed),
            b_to_a: b_to_a.load(Ordering::Relaxed),
        }
    }

    /// User space has moved bytes at that time, the last ones so far.
    pub(crate) fn moved(&self, at: Instant) {
        let after = at.saturating_duration_since(self.began_at);
        self.moved_after_ns
            .store(after.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A byte that the second end has sent was moved at that time. Only the first counts.
    pub(crate) fn moved_first(&self, at: Instant) {
        let after = at.saturating_duration_since(self.began_at);
        self.first_after_ns
            .fetch_min(after.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Only the loop that owns the pair calls this.
    pub(crate) fn set_stream(&self, direction: usize, stream: Stream) {
        self.streams[direction].store(stream as u8, Ordering::Relaxed);
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
        let first = kernel
            .as_ref()
            .and_then(|kernel| kernel.first_moved_at(Instant::now()));
        if let Some(first) = first {
            self.moved_first(first);
        }
        for (moved, bytes) in self.moved_bytes.iter().zip(bytes) {
            moved.store(bytes, Ordering::Relaxed);
        }
        let ended = kernel.as_ref().map(|kernel| kernel.ended_streams());
        for (direction, has_ended) in ended.into_iter().flatten().enumerate() {
            if has_ended {
                self.set_stream(direction, Stream::Ended);
            }
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

    /// When a byte last moved; when the pair began, if none has.
    pub(crate) fn moved_at(&self) -> Instant {
        let after = self.moved_after_ns.load(Ordering::Relaxed);
        let by_user_space = self.began_at + Duration::from_nanos(after);
        let kernel = self.lock();
        let in_kernel = kernel
            .as_ref()
            .and_then(|kernel| kernel.moved_at(Instant::now()));
        in_kernel.map_or(by_user_space, |at| at.max(by_user_space))
    }

    /// When a byte that the second end has sent was first moved.
    pub(crate) fn first_moved_at(&self) -> Option<Instant> {
        let kernel = self.lock();
        let in_kernel = kernel
            .as_ref()
            .and_then(|kernel| kernel.first_moved_at(Instant::now()));
        let by_user_space = match self.first_after_ns.load(Ordering::Relaxed) {
            u64::MAX => None,
            after => Some(self.began_at + Duration::from_nanos(after)),
        };
        [by_user_space, in_kernel].into_iter().flatten().min()
    }

    /// Why segments of the pair get lost now, if they do.
    pub(crate) fn why_lost(&self) -> Option<String> {
        self.lock().as_ref()?.why_lost()
    }

    /// How far the streams of both sides have come.
    pub(crate) fn streams(&self) -> [Stream; 2] {
        let kernel = self.lock();
        let ended = kernel
            .as_ref()
            .map_or([false; 2], |kernel| kernel.ended_streams());
        [0, 1].map(
            |side: usize| match self.streams[side].load(Ordering::Relaxed) {
                _ if ended[side] => Stream::Ended,
                0 => Stream::Open,
                1 => Stream::Draining,
                _ => Stream::Ended,
            },
        )
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
