//! The connections that are alive, counted: for the limit on them and for draining.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use splice::Waker;

/// The connections of all threads.
pub(crate) struct Live {
    count: AtomicUsize,
    most: usize,
    /// Listeners that wait for a connection to end.
    waiting: Mutex<Vec<Waker>>,
    /// What to do when none is left, once that is awaited.
    when_none: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// One connection's place among the living, free again when it is dropped.
pub(crate) struct Alive(Arc<Live>);

impl Live {
    pub(crate) fn new(most: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            most: most.map_or(usize::MAX, |most| most as usize),
            waiting: Mutex::new(Vec::new()),
            when_none: OnceLock::new(),
        })
    }

    /// A place for one more connection. When there is none, `waker` is used as soon as there may
    /// be one again.
    pub(crate) fn enter(self: &Arc<Self>, waker: impl FnOnce() -> Waker) -> Option<Alive> {
        let one_more = |count| (count < self.most).then_some(count + 1);
        if self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
        {
            return Some(Alive(Arc::clone(self)));
        }
        // Under the lock, since a connection that ends in between looks for whom to wake.
        let mut waiting = self.lock();
        if self
            .count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .is_ok()
        {
            return Some(Alive(Arc::clone(self)));
        }
        waiting.push(waker());
        None
    }

    /// A place though there may be none: for a connection that was promised one.
    pub(crate) fn enter_beyond_limit(self: &Arc<Self>) -> Alive {
        self.count.fetch_add(1, Ordering::AcqRel);
        Alive(Arc::clone(self))
    }

    /// The most connections that may be alive.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// From now on, `act` is called whenever no connection is left; at once if none is.
    pub(crate) fn when_none(&self, act: impl Fn() + Send + Sync + 'static) {
        let act = self.when_none.get_or_init(|| Box::new(act));
        if self.count() == 0 {
            act();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        // A list of wakers has no state that a panic could leave half made.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        let before = self.0.count.fetch_sub(1, Ordering::AcqRel);
        if before == self.0.most {
            let waiting = std::mem::take(&mut *self.0.lock());
            waiting.iter().for_each(Waker::wake);
        }
        if before == 1 {
            self.0.when_none.get().into_iter().for_each(|act| act());
        }
    }
}
