//! How many connections are open: for `--max-connections` and for draining.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use splice::Waker;

/// Counts the connections of all threads, and limits them.
pub(crate) struct ConnectionLimit {
    count: AtomicUsize,
    most: usize,
    /// Listeners that wait for a connection to end.
    waiting: Mutex<Vec<Waker>>,
    /// Called when no connection is left; set once somebody waits for that.
    when_none: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The right to have one connection open, given back on drop.
pub(crate) struct ConnectionPermit(Arc<ConnectionLimit>);

impl ConnectionLimit {
    pub(crate) fn new(most: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            most: most.map_or(usize::MAX, |most| most as usize),
            waiting: Mutex::new(Vec::new()),
            when_none: OnceLock::new(),
        })
    }

    /// A permit for one more connection. At the limit there is none, and `waker` is called once it is
    /// worth asking again.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        waker: impl FnOnce() -> Waker,
    ) -> Option<ConnectionPermit> {
        if let Some(permit) = self.try_acquire() {
            return Some(permit);
        }
        // A connection that ends from here on finds the waker, since it takes the same lock.
        let mut waiting = self.lock();
        if let Some(permit) = self.try_acquire() {
            return Some(permit);
        }
        waiting.push(waker());
        None
    }

    fn try_acquire(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let one_more = |count| (count < self.most).then_some(count + 1);
        self.count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .ok()
            .map(|_| ConnectionPermit(Arc::clone(self)))
    }

    /// A permit even at the limit: for a connection that the kernel has already established.
    pub(crate) fn acquire_beyond_limit(self: &Arc<Self>) -> ConnectionPermit {
        self.count.fetch_add(1, Ordering::AcqRel);
        ConnectionPermit(Arc::clone(self))
    }

    /// The most connections that may be open.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Calls `act` whenever no connection is left from now on, and at once if none is open.
    pub(crate) fn when_none(&self, act: impl Fn() + Send + Sync + 'static) {
        let act = self.when_none.get_or_init(|| Box::new(act));
        if self.count() == 0 {
            act();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        // A panic cannot leave a list of wakers half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ConnectionPermit {
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
