//! The connections of one listener or server, so that they can be cut together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;
use splice::Waker;

/// Who is connected. Shared by the threads.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    wakers: Mutex<Slab<Waker>>,
    cut: AtomicBool,
}

/// A place in a [`Roster`], given back on drop.
#[derive(Debug)]
pub(crate) struct Seat {
    roster: Arc<Roster>,
    index: usize,
}

impl Roster {
    /// Adds a connection, which `waker` closes. One that comes after the cut is closed at once.
    pub(crate) fn enter(self: &Arc<Self>, waker: Waker) -> Seat {
        let mut wakers = self.lock();
        // Under the lock, so that the cut finds everybody who has not seen it.
        if self.cut.load(Ordering::Relaxed) {
            waker.close();
        }
        let index = wakers.insert(waker);
        Seat {
            roster: Arc::clone(self),
            index,
        }
    }

    /// Closes every connection, those to come included.
    pub(crate) fn cut(&self) {
        let wakers = self.lock();
        self.cut.store(true, Ordering::Relaxed);
        wakers.iter().for_each(|(_, waker)| waker.close());
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Waker>> {
        // A panic cannot leave the slab half changed.
        self.wakers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Whether the roster has cut this connection.
    pub(crate) fn is_cut(&self) -> bool {
        self.roster.is_cut()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.roster.lock().try_remove(self.index);
    }
}
