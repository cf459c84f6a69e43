//! A warning that may recur thousands of times a second and is told once.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two warnings of one kind: a person reads it, a disk survives it.
const TOLD_EVERY: Duration = Duration::from_secs(1);

/// One kind of warning.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    state: Mutex<(Option<Instant>, u64)>,
}

impl Complaint {
    /// Calls `tell` with the number of times it was held back since, unless that was just told.
    pub(crate) fn make(&self, tell: impl FnOnce(u64)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (told_at, held_back) = *state;
        if told_at.is_some_and(|at| at.elapsed() < TOLD_EVERY) {
            state.1 += 1;
            return;
        }
        *state = (Some(Instant::now()), 0);
        drop(state);
        tell(held_back);
    }
}
