//! The handle on a pair.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::counters::{Counters, Meter};
use crate::engine::{Chosen, EngineName};
use crate::event_loop::Key;
use crate::mailbox::Remote;
use crate::outcome::Outcome;

/// What a pair and its handle share.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) meter: Meter,
    state: Mutex<State>,
    /// Handles that wait for the end. Waking nobody would cost a system call for each pair.
    waiting: AtomicUsize,
    ended: Condvar,
    /// Where the pair is, once its loop has placed it.
    key: OnceLock<Key>,
}

#[derive(Debug)]
enum State {
    Running(Chosen),
    Ended(Outcome),
}

impl Status {
    pub(crate) fn new() -> Self {
        Self {
            meter: Meter::default(),
            state: Mutex::new(State::Running(Chosen::new(
                EngineName::Copy,
                "not yet started",
            ))),
            waiting: AtomicUsize::new(0),
            ended: Condvar::new(),
            key: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is replaced as a whole, so a panic cannot leave it half made.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_key(&self, key: Key) {
        // A pair is placed once.
        let _ = self.key.set(key);
    }

    pub(crate) fn set_engine(&self, chosen: Chosen) {
        *self.lock() = State::Running(chosen);
    }

    pub(crate) fn finish(&self, outcome: Outcome) {
        *self.lock() = State::Ended(outcome);
        if self.waiting.load(Ordering::Acquire) > 0 {
            self.ended.notify_all();
        }
    }
}

/// A pair that is being joined: dropping it closes both ends.
pub struct Handle {
    status: Arc<Status>,
    /// The pair's loop; `None` once the pair is detached.
    home: Option<Remote>,
}

impl Handle {
    pub(crate) fn new(status: Arc<Status>, home: Remote) -> Self {
        Self {
            status,
            home: Some(home),
        }
    }

    /// What has been moved so far: at most one turn of the loop old, exact once the pair has
    /// ended.
    pub fn counters(&self) -> Counters {
        self.status.meter.read()
    }

    /// An engine in the kernel has begun to move its bytes.
    #[cfg(test)]
    pub(crate) fn is_taken(&self) -> bool {
        self.status.meter.has_gauge()
    }

    /// Tells what this process itself has moved of it until then, in bytes, while the pair runs.
    #[cfg(test)]
    pub(crate) fn by_hand(&self) -> impl Fn() -> u64 + Send + 'static {
        let status = Arc::clone(&self.status);
        move || status.meter.by_hand()
    }

    /// What an engine in the kernel had carried at the end, repetitions included, in bytes.
    #[cfg(test)]
    pub(crate) fn forwarded_bytes(&self) -> u64 {
        let carried = &self.status.meter.carried_bytes;
        carried.load(Ordering::Relaxed)
    }

    /// What of it an engine in the kernel has moved, without this process: 0 once the pair has
    /// ended.
    pub fn redirected(&self) -> Counters {
        self.status.meter.in_kernel()
    }

    /// The engine in use, and why it is the one, in words.
    pub fn engine(&self) -> (EngineName, Cow<'static, str>) {
        match &*self.status.lock() {
            State::Running(chosen) => (chosen.name, chosen.why.clone()),
            State::Ended(outcome) => (outcome.engine, outcome.why_engine.clone()),
        }
    }

    /// How the pair ended; `None` while it runs.
    pub fn outcome(&self) -> Option<Outcome> {
        match &*self.status.lock() {
            State::Running(_) => None,
            State::Ended(outcome) => Some(outcome.clone()),
        }
    }

    /// Waits until the pair has ended. Both sockets are closed then.
    ///
    /// It must not be called on the thread that turns the pair's loop, which it would block.
    pub fn wait(self) -> Outcome {
        loop {
            if let Some(outcome) = self.wait_timeout(Duration::MAX) {
                return outcome;
            }
        }
    }

    /// Waits until the pair has ended, at most for `timeout`; `None` when it still runs then.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Outcome> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.status.lock();
        // Under the lock, so that an end which comes later sees it.
        self.status.waiting.fetch_add(1, Ordering::AcqRel);
        let outcome = loop {
            if let State::Ended(outcome) = &*state {
                break Some(outcome.clone());
            }
            state =
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    None => self
                        .status
                        .ended
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner),
                    Some(Duration::ZERO) => break None,
                    Some(left) => {
                        let waited = self.status.ended.wait_timeout(state, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
        };
        self.status.waiting.fetch_sub(1, Ordering::AcqRel);
        outcome
    }

    /// Lets the pair run on without a handle, until it ends by itself.
    pub fn detach(mut self) {
        self.home = None;
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(home) = &self.home
            && self.outcome().is_none()
        {
            let status = Arc::clone(&self.status);
            // Letters are read in order, so the pair has been placed by then. A loop that has
            // ended has closed it.
            let _ = home.run(move |event_loop| {
                if let Some(key) = status.key.get() {
                    event_loop.close(*key);
                }
            });
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}
