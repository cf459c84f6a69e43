//! The connections of one listener or server, so that they can be cut together.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task;
use std::time::Instant;

use slab::Slab;
use splice::Waker;

/// Who is connected. Shared by the threads.
#[derive(Debug, Default)]
pub(crate) struct Roster {
    seats: Mutex<Slab<Taken>>,
    cut: AtomicBool,
    /// How often the ones of that time were closed.
    purges: AtomicU64,
}

#[derive(Debug)]
struct Taken {
    closer: Closer,
    joined_at: Option<Instant>,
}

/// What closes a connection.
#[derive(Debug)]
pub(crate) enum Closer {
    /// Of a task in an event loop.
    Task(Waker),
    /// Of a thread with many sessions, which is woken and asks each of them whether it is cut.
    Thread(task::Waker),
}

/// A place in a [`Roster`], given back on drop.
#[derive(Debug)]
pub(crate) struct Seat {
    roster: Arc<Roster>,
    index: usize,
    /// The purges before it was taken.
    purges_before: u64,
}

impl Roster {
    /// Adds a connection, which `closer` closes. One that comes after the cut is closed at once.
    pub(crate) fn enter(self: &Arc<Self>, closer: impl Into<Closer>) -> Seat {
        let closer = closer.into();
        let mut seats = self.lock();
        // Under the lock, so that the cut finds everybody who has not seen it.
        if self.cut.load(Ordering::Relaxed) {
            closer.close();
        }
        let index = seats.insert(Taken {
            closer,
            joined_at: None,
        });
        Seat {
            roster: Arc::clone(self),
            index,
            purges_before: self.purges.load(Ordering::Relaxed),
        }
    }

    /// Closes every connection, those to come included. Returns how many there are.
    pub(crate) fn cut(&self) -> usize {
        let seats = self.lock();
        self.cut.store(true, Ordering::Relaxed);
        seats.iter().for_each(|(_, taken)| taken.closer.close());
        seats.len()
    }

    /// Closes the connections that have taken a seat, those that are not joined as soon as they are. Those to
    /// come are not affected.
    pub(crate) fn purge(&self) {
        let seats = self.lock();
        self.purges.fetch_add(1, Ordering::Relaxed);
        let joined = seats.iter().filter(|(_, taken)| taken.joined_at.is_some());
        joined.for_each(|(_, taken)| taken.closer.close());
    }

    /// How many connections have been joined since `at` or longer.
    pub(crate) fn held(&self, at: Option<Instant>) -> usize {
        let seats = self.lock();
        let is_held = |taken: &Taken| {
            taken
                .joined_at
                .zip(at)
                .is_some_and(|(joined, at)| joined <= at)
        };
        seats.iter().filter(|(_, taken)| is_held(taken)).count()
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
    pub(crate) fn join(&self) {
        let mut seats = self.roster.lock();
        let Some(taken) = seats.get_mut(self.index) else {
            return;
        };
        taken.joined_at = Some(Instant::now());
        if self.roster.purges.load(Ordering::Relaxed) != self.purges_before {
            taken.closer.close();
        }
    }

    /// Whether a purge has closed this connection.
    pub(crate) fn is_purged(&self) -> bool {
        self.roster.purges.load(Ordering::Relaxed) != self.purges_before
    }
}

impl Closer {
    fn close(&self) {
        match self {
            Self::Task(waker) => waker.close(),
            Self::Thread(waker) => waker.wake_by_ref(),
        }
    }
}

impl From<Waker> for Closer {
    fn from(waker: Waker) -> Self {
        Self::Task(waker)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.roster.lock().try_remove(self.index);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use splice::{Context, EventLoop, Readiness, Step, Task};

    use super::*;

    struct Connection;

    impl Task for Connection {
        fn start(&mut self, _: &mut Context<'_>) -> Step {
            Step::Wait
        }

        fn ready(&mut self, _: &mut Context<'_>, _: u8, _: Readiness) -> Step {
            Step::Wait
        }
    }

    fn tasks_left(event_loop: &mut EventLoop) -> usize {
        for _ in 0..3 {
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
        }
        event_loop.tasks()
    }

    #[test]
    fn a_purge_closes_those_of_its_time_and_the_unjoined_as_soon_as_they_are() {
        let mut event_loop = EventLoop::new().expect("a loop");
        let roster = Arc::<Roster>::default();
        let mut enter = || {
            let waker = event_loop.spawn(Box::new(Connection));
            roster.enter(waker)
        };
        let (joined, connecting) = (enter(), enter());
        joined.join();
        roster.purge();
        let later = enter();
        assert!(joined.is_purged() && !later.is_purged());
        assert_eq!(tasks_left(&mut event_loop), 2);
        connecting.join();
        later.join();
        assert_eq!(tasks_left(&mut event_loop), 1);
        assert!(connecting.is_purged() && !later.is_purged());
    }

    #[test]
    fn those_are_held_that_were_joined_by_then() {
        let mut event_loop = EventLoop::new().expect("a loop");
        let roster = Arc::<Roster>::default();
        let seats = [0; 3].map(|_| roster.enter(event_loop.spawn(Box::new(Connection))));
        seats[0].join();
        seats[1].join();
        let now = Instant::now();
        assert_eq!(roster.held(Some(now)), 2);
        assert_eq!(roster.held(now.checked_sub(Duration::from_secs(1))), 0);
        assert_eq!(roster.held(None), 0);
    }
}
