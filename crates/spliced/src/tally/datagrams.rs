//! What is counted of datagrams.

use std::sync::atomic::{AtomicU64, Ordering};

/// Of the sessions of one listener of datagrams with one backend, or with none: those that are alive, and the
/// datagrams to the target, and to the client.
#[derive(Debug, Default)]
pub(crate) struct DatagramTally {
    alive: AtomicU64,
    passed: [AtomicU64; 2],
    dropped: [[AtomicU64; Dropped::ALL.len()]; 2],
}

super::words! {
    /// Why a datagram did not arrive at the other side.
    Dropped {
        /// A buffer of the kernel was full.
        Full = "full",
        /// Longer than the other side's kind of socket or its path takes.
        TooLong = "too_long",
        /// No session, or no way to the receiver.
        Nowhere = "nowhere",
    }
}

impl DatagramTally {
    /// A session has begun.
    pub(crate) fn began(&self) {
        self.alive.fetch_add(1, Ordering::Relaxed);
    }

    /// A session has ended.
    pub(crate) fn ended(&self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }

    /// The sessions that are alive.
    pub(crate) fn alive(&self) -> u64 {
        self.alive.load(Ordering::Relaxed)
    }

    /// So many more were passed on, to the target (0) or to the client (1), and dropped, in the order of
    /// [`Dropped::ALL`].
    pub(crate) fn add(&self, to: usize, passed: u64, dropped: [u64; Dropped::ALL.len()]) {
        self.passed[to].fetch_add(passed, Ordering::Relaxed);
        for (count, more) in self.dropped[to].iter().zip(dropped) {
            if more > 0 {
                count.fetch_add(more, Ordering::Relaxed);
            }
        }
    }

    /// Those that were passed on to the target, and to the client.
    pub(crate) fn passed(&self) -> [u64; 2] {
        self.passed.each_ref().map(|it| it.load(Ordering::Relaxed))
    }

    /// Those that were dropped on the way to the target (0) or to the client (1), by the reason.
    pub(crate) fn all_dropped(&self, to: usize) -> impl Iterator<Item = (Dropped, u64)> {
        let counts = Dropped::ALL.iter().zip(&self.dropped[to]);
        counts.map(|(why, count)| (*why, count.load(Ordering::Relaxed)))
    }
}
