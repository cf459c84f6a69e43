//! A warning that may occur thousands of times a second and is logged at most once a second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The least time between two warnings of one kind: a person can read them, and they fill no disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// One kind of warning.
#[derive(Debug, Default)]
pub(crate) struct RateLimitedWarning {
    state: Mutex<(Option<Instant>, u64)>,
}

impl RateLimitedWarning {
    /// Calls `log` with the number of warnings suppressed since the last one, unless that was less
    /// than a second ago.
    pub(crate) fn emit(&self, log: impl FnOnce(u64)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (logged_at, suppressed) = *state;
        if logged_at.is_some_and(|at| at.elapsed() < INTERVAL) {
            state.1 += 1;
            return;
        }
        *state = (Some(Instant::now()), 0);
        drop(state);
        log(suppressed);
    }
}
