//! How many connections are open: for the limit of a listener and for draining.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use splice::Waker;

/// Counts the connections of all threads, and limits them.
pub(crate) struct ConnectionLimit {
    count: AtomicUsize,
    most: AtomicUsize,
    /// Counts these connections, too, and limits nothing.
    total: Option<Arc<Self>>,
    /// Listeners that wait for a connection to end.
    waiting: Mutex<Vec<Waker>>,
    /// Called when no connection is left; set once somebody waits for that.
    when_none: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

/// The right to have one connection open, given back on drop.
pub(crate) struct ConnectionPermit(Arc<ConnectionLimit>);

impl ConnectionLimit {
    /// Counts only.
    pub(crate) fn none() -> Arc<Self> {
        Self::of(None, None)
    }

    /// A limit for one listener, whose connections are counted in `total`, too.
    pub(crate) fn within(total: &Arc<Self>, most: Option<u32>) -> Arc<Self> {
        Self::of(Some(Arc::clone(total)), most)
    }

    fn of(total: Option<Arc<Self>>, most: Option<u32>) -> Arc<Self> {
        Arc::new(Self {
            count: AtomicUsize::new(0),
            most: AtomicUsize::new(as_count(most)),
            total,
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
        let one_more = |count| (count < self.most()).then_some(count + 1);
        self.count
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more)
            .ok()
            .map(|_| self.permit())
    }

    /// The permit of a connection that has been counted here.
    fn permit(self: &Arc<Self>) -> ConnectionPermit {
        if let Some(total) = &self.total {
            total.count.fetch_add(1, Ordering::AcqRel);
        }
        ConnectionPermit(Arc::clone(self))
    }

    /// A permit even at the limit: for a connection that the kernel has already established, or a session of
    /// datagrams.
    pub(crate) fn acquire_beyond_limit(self: &Arc<Self>) -> ConnectionPermit {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.permit()
    }

    /// The most connections that may be open.
    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }

    /// Changes the limit. Connections beyond a lower one stay.
    pub(crate) fn set_most(&self, most: Option<u32>) {
        self.most.store(as_count(most), Ordering::Relaxed);
        self.wake_waiting();
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

    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.lock());
        waiting.iter().for_each(Waker::wake);
    }

    /// One connection fewer.
    fn release(&self) {
        let before = self.count.fetch_sub(1, Ordering::AcqRel);
        if before == self.most() {
            self.wake_waiting();
        }
        if before == 1 {
            self.when_none.get().into_iter().for_each(|act| act());
        }
        if let Some(total) = &self.total {
            total.release();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Waker>> {
        // A panic cannot leave a list of wakers half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn as_count(most: Option<u32>) -> usize {
    most.map_or(usize::MAX, |most| most as usize)
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.release();
    }
}
