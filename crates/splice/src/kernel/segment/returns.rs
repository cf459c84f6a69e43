//! Pairs that go back to the network stack for what a peer or its path does: told in the log, a line a second at most.
//!
//! A smaller path MTU may concern thousands at once. Those that are held back are counted in the next line, or in the last
//! one, when no loop has pairs any more.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::plural::connections;

/// A person can read them, and they fill no disk.
const INTERVAL: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub(super) struct Returns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    logged_at: Option<Instant>,
    held_back: usize,
}

impl Returns {
    /// A pair goes back, and `why`.
    pub(super) fn tell(&self, why: &str, now: Instant) {
        if let Some(count) = self.count(now) {
            tracing::info!(
                "{} to the network stack: {why}",
                connections(count, "goes back", "go back")
            );
        }
    }

    /// How many to tell of, with this one; `None` if it is held back.
    fn count(&self, now: Instant) -> Option<usize> {
        let mut state = self.state();
        let is_recent = |at: Instant| now.saturating_duration_since(at) < INTERVAL;
        if state.logged_at.is_some_and(is_recent) {
            state.held_back += 1;
            return None;
        }
        state.logged_at = Some(now);
        Some(std::mem::take(&mut state.held_back) + 1)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Returns {
    fn drop(&mut self) {
        let count = self.state().held_back;
        if count > 0 {
            tracing::info!(
                "{} to the network stack: like the last one that was told",
                connections(count, "goes back", "go back")
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_counted_in_a_line_a_second() {
        let returns = Returns::default();
        let began = Instant::now();
        assert_eq!(returns.count(began), Some(1));
        assert_eq!(returns.count(began), None);
        assert_eq!(returns.count(began + INTERVAL / 2), None);
        assert_eq!(returns.count(began + INTERVAL), Some(3));
        assert_eq!(returns.count(began + INTERVAL * 3), Some(1));
        assert_eq!(returns.state().held_back, 0);
    }
}
