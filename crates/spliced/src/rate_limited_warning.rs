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
        self.emit_at(Instant::now(), log);
    }

    fn emit_at(&self, now: Instant, log: impl FnOnce(u64)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (logged_at, suppressed) = *state;
        if logged_at.is_some_and(|at| now.saturating_duration_since(at) < INTERVAL) {
            state.1 += 1;
            return;
        }
        *state = (Some(now), 0);
        drop(state);
        log(suppressed);
    }
}

/// What a warning says of those before it that were suppressed.
pub(crate) fn more(suppressed: u64) -> String {
    match suppressed {
        0 => String::new(),
        count => format!(" ({count} more like it since the last warning)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_within_the_interval_is_counted_and_the_next_one_reports_the_count() {
        let warning = RateLimitedWarning::default();
        let start = Instant::now();
        let logged = |after: Duration| {
            let mut logged = None;
            warning.emit_at(start + after, |suppressed| logged = Some(suppressed));
            logged
        };
        assert_eq!(logged(Duration::ZERO), Some(0));
        assert_eq!(logged(Duration::from_millis(1)), None);
        assert_eq!(logged(INTERVAL - Duration::from_millis(1)), None);
        assert_eq!(logged(INTERVAL), Some(2));
        assert_eq!(logged(INTERVAL * 2), Some(0));
    }
}
