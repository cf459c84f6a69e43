//! What a pair and its handle share.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::meter::Meter;
use crate::name::EngineName;
use crate::outcome::Outcome;
use crate::reactor::Key;

/// An engine, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Chosen {
    pub(crate) name: EngineName,
    pub(crate) why: Cow<'static, str>,
}

impl Chosen {
    pub(crate) fn new(name: EngineName, why: &'static str) -> Self {
        Self {
            name,
            why: Cow::Borrowed(why),
        }
    }
}

/// What a pair and its handle share.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) meter: Meter,
    state: Mutex<State>,
    /// How many handles wait for the end. Waking nobody would cost a system call per pair.
    waiting: AtomicUsize,
    ended: Condvar,
    /// The pair's key, once its loop has placed it.
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
        // The state is replaced as a whole, so a panic cannot leave it half updated.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_key(&self, key: Key) {
        // A pair is placed only once.
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

    pub(super) fn key(&self) -> Option<Key> {
        self.key.get().copied()
    }

    pub(super) fn engine(&self) -> (EngineName, Cow<'static, str>) {
        match &*self.lock() {
            State::Running(chosen) => (chosen.name, chosen.why.clone()),
            State::Ended(outcome) => (outcome.engine, outcome.why_engine.clone()),
        }
    }

    pub(super) fn outcome(&self) -> Option<Outcome> {
        match &*self.lock() {
            State::Running(_) => None,
            State::Ended(outcome) => Some(outcome.clone()),
        }
    }

    /// Waits for the end for at most `timeout`.
    pub(super) fn wait(&self, timeout: Duration) -> Option<Outcome> {
        let deadline = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        // Counted under the lock, so that a later end sees it.
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let outcome = loop {
            if let State::Ended(outcome) = &*state {
                break Some(outcome.clone());
            }
            state =
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    None => self
                        .ended
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner),
                    Some(Duration::ZERO) => break None,
                    Some(left) => {
                        let waited = self.ended.wait_timeout(state, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
        };
        self.waiting.fetch_sub(1, Ordering::AcqRel);
        outcome
    }
}
