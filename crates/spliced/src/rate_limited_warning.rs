//! A warning that may occur thousands of times a second and is logged at most once a second.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The least time between two warnings of one kind: a person can read them, and they fill no disk.
const INTERVAL: Duration = Duration::from_secs(1);

/// Those that there are, for the end of the process.
static ALL: Mutex<Vec<Weak<Kind>>> = Mutex::new(Vec::new());

/// One kind of warning.
#[derive(Debug)]
pub(crate) struct RateLimitedWarning(Arc<Kind>);

#[derive(Debug)]
struct Kind {
    /// What is warned of, in the plural.
    what: &'static str,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    logged_at: Option<Instant>,
    suppressed: u64,
}

impl RateLimitedWarning {
    /// Warnings of `what`, in the plural.
    pub(crate) fn of(what: &'static str) -> Self {
        let kind = Arc::new(Kind {
            what,
            state: Mutex::default(),
        });
        let mut all = lock(&ALL);
        if all.len() == all.capacity() {
            all.retain(|kind| kind.strong_count() > 0);
        }
        all.push(Arc::downgrade(&kind));
        Self(kind)
    }

    /// Calls `log` with the number of warnings suppressed since the last one, unless that was less
    /// than a second ago.
    pub(crate) fn emit(&self, log: impl FnOnce(u64)) {
        self.emit_at(Instant::now(), log);
    }

    fn emit_at(&self, now: Instant, log: impl FnOnce(u64)) {
        let mut state = lock(&self.0.state);
        let is_recent = |at: Instant| now.saturating_duration_since(at) < INTERVAL;
        if state.logged_at.is_some_and(is_recent) {
            state.suppressed += 1;
            return;
        }
        state.logged_at = Some(now);
        let suppressed = std::mem::take(&mut state.suppressed);
        drop(state);
        log(suppressed);
    }
}

impl Kind {
    /// What was suppressed and has not been told.
    fn rest(&self) -> Option<String> {
        let suppressed = std::mem::take(&mut lock(&self.state).suppressed);
        (suppressed > 0).then(|| format!("{}{}", self.what, more(suppressed)))
    }

    fn tell_rest(&self) {
        if let Some(rest) = self.rest() {
            tracing::warn!("{rest}");
        }
    }
}

/// No other one of its kind will tell of them.
impl Drop for Kind {
    fn drop(&mut self) {
        self.tell_rest();
    }
}

/// The process ends: no other warning will tell how many were suppressed.
pub(crate) fn tell_rest() {
    let all = std::mem::take(&mut *lock(&ALL));
    all.iter()
        .filter_map(Weak::upgrade)
        .for_each(|kind| kind.tell_rest());
}

/// Changes are plain assignments, so a panic cannot leave one half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
        let warning = RateLimitedWarning::of("tests");
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
        assert_eq!(warning.0.rest(), None);
        assert_eq!(logged(INTERVAL * 2), None);
        let rest = "tests (1 more like it since the last warning)";
        assert_eq!(warning.0.rest().as_deref(), Some(rest));
        assert_eq!(warning.0.rest(), None, "it is told once");
    }
}
