//! What a pair and its handle share.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::attempts::Attempts;
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
    pub(crate) attempts: Attempts,
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
            meter: Meter::new(),
            attempts: Attempts::default(),
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

#[cfg(test)]
mod tests {
    use std::thread;

    use netlab::{PATIENCE, until};

    use super::*;
    use crate::counters::Counters;
    use crate::outcome::Reason;

    fn outcome(reason: Reason) -> Outcome {
        Outcome {
            reason,
            moved: Counters {
                a_to_b: 3,
                b_to_a: 4,
            },
            messages: Counters::default(),
            engine: EngineName::Pipe,
            why_engine: "a direction moved bulk".into(),
            duration: Duration::from_millis(1),
        }
    }

    #[test]
    fn a_wait_for_a_running_pair_ends_with_its_timeout() {
        let status = Status::new();
        assert_eq!(status.wait(Duration::ZERO), None);
        assert_eq!(status.wait(Duration::from_millis(1)), None);
        assert_eq!(status.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_wait_for_an_ended_pair_returns_at_once() {
        let status = Status::new();
        let ended = outcome(Reason::Idle);
        status.finish(ended.clone());
        assert_eq!(status.wait(Duration::ZERO), Some(ended.clone()));
        assert_eq!(status.wait(Duration::MAX), Some(ended.clone()));
        assert_eq!(status.outcome(), Some(ended));
    }

    #[test]
    fn the_end_wakes_every_wait() {
        let status = Status::new();
        let ended = outcome(Reason::EndOfStream);
        thread::scope(|scope| {
            // One without and one with a deadline.
            let waits = [Duration::MAX, PATIENCE].map(|timeout| {
                scope.spawn({
                    let status = &status;
                    move || status.wait(timeout)
                })
            });
            until("both wait", || status.waiting.load(Ordering::Acquire) == 2);
            status.finish(ended.clone());
            for wait in waits {
                assert_eq!(wait.join().unwrap(), Some(ended.clone()));
            }
        });
        assert_eq!(status.waiting.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn an_ended_pair_reports_the_engine_of_its_outcome() {
        let status = Status::new();
        assert_eq!(
            status.engine(),
            (EngineName::Copy, "not yet started".into())
        );
        status.set_engine(Chosen::new(EngineName::Uring, "for a test"));
        assert_eq!(status.engine(), (EngineName::Uring, "for a test".into()));
        assert_eq!(status.outcome(), None);
        status.finish(outcome(Reason::EndOfStream));
        let engine = (EngineName::Pipe, "a direction moved bulk".into());
        assert_eq!(status.engine(), engine);
    }
}
