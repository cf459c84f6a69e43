//! Connections that wait for a place at a server, in the order in which they came.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use splice::Waker;

#[derive(Debug, Default)]
pub(crate) struct Queue {
    waiting: Mutex<VecDeque<(u64, Waker)>>,
    /// As long as `waiting`, so that those who end need not lock it.
    length: AtomicUsize,
    next: AtomicU64,
}

/// A place in the queue, which a drop leaves.
#[derive(Debug)]
pub(crate) struct Ticket {
    queue: Arc<Queue>,
    number: u64,
}

impl Queue {
    /// Waits in the queue; `None` if `most` do already.
    pub(super) fn enter(
        self: &Arc<Self>,
        most: u32,
        waker: impl FnOnce() -> Waker,
    ) -> Option<Ticket> {
        let mut waiting = self.lock();
        if waiting.len() >= most as usize {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        waiting.push_back((number, waker()));
        self.length.store(waiting.len(), Ordering::Release);
        Some(Ticket {
            queue: Arc::clone(self),
            number,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        self.length.load(Ordering::Acquire)
    }

    /// Wakes the first one: a place is free.
    pub(super) fn call_next(&self) {
        if self.is_empty() {
            return;
        }
        let mut waiting = self.lock();
        if let Some((_, waker)) = waiting.pop_front() {
            waker.wake();
        }
        self.length.store(waiting.len(), Ordering::Release);
    }

    pub(super) fn call_all(&self) {
        while !self.is_empty() {
            self.call_next();
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<(u64, Waker)>> {
        // A panic cannot leave it half changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        waiting.retain(|(number, _)| *number != self.number);
        self.queue.length.store(waiting.len(), Ordering::Release);
    }
}
