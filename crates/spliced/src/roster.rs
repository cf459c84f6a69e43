//! The connections of one listener or server, so that they can be cut together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;
use splice::Waker;

/// Who is connected. Shared by the threads.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    seats: Mutex<Slab<Taken>>,
    cut: AtomicBool,
    /// How often the joined ones were closed.
    purges: AtomicU64,
}

#[derive(Debug)]
struct Taken {
    waker: Waker,
    is_joined: bool,
}

/// A place in a [`Roster`], given back on drop.
#[derive(Debug)]
pub(crate) struct Seat {
    roster: Arc<Roster>,
    index: usize,
    /// The purges before it was joined.
    purges_before: Option<u64>,
}

impl Roster {
    /// Adds a connection, which `waker` closes. One that comes after the cut is closed at once.
    pub(crate) fn enter(self: &Arc<Self>, waker: Waker) -> Seat {
        let mut seats = self.lock();
        // Under the lock, so that the cut finds everybody who has not seen it.
        if self.cut.load(Ordering::Relaxed) {
            waker.close();
        }
        let index = seats.insert(Taken {
            waker,
            is_joined: false,
        });
        Seat {
            roster: Arc::clone(self),
            index,
            purges_before: None,
        }
    }

    /// Closes every connection, those to come included.
    pub(crate) fn cut(&self) {
        let seats = self.lock();
        self.cut.store(true, Ordering::Relaxed);
        seats.iter().for_each(|(_, taken)| taken.waker.close());
    }

    /// Closes the connections that are joined. The others, and those to come, are not affected.
    pub(crate) fn purge(&self) {
        let seats = self.lock();
        self.purges.fetch_add(1, Ordering::Relaxed);
        let joined = seats.iter().filter(|(_, taken)| taken.is_joined);
        joined.for_each(|(_, taken)| taken.waker.close());
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Taken>> {
        // A panic cannot leave the slab half changed.
        self.seats.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Seat {
    /// Whether the roster has cut this connection.
    pub(crate) fn is_cut(&self) -> bool {
        self.roster.is_cut()
    }

    /// The connection has been joined.
    pub(crate) fn join(&mut self) {
        let mut seats = self.roster.lock();
        if let Some(taken) = seats.get_mut(self.index) {
            taken.is_joined = true;
        }
        self.purges_before = Some(self.roster.purges.load(Ordering::Relaxed));
    }

    /// Whether a purge has closed this connection.
    pub(crate) fn is_purged(&self) -> bool {
        let purges = self.roster.purges.load(Ordering::Relaxed);
        self.purges_before.is_some_and(|before| before < purges)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.roster.lock().try_remove(self.index);
    }
}
