//! What may be known of the logs of this process while they are written, by the name of each.
//!
//! A reload may close a log and another one open it again: what was lost goes on to be counted.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static ALL: Logs = Logs(Mutex::new(BTreeMap::new()));

/// What a log and its readers share.
#[derive(Debug, Default)]
pub(crate) struct LogState {
    lost: AtomicU64,
    waiting: AtomicU64,
    failure: Mutex<Option<String>>,
}

/// A log as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Told {
    /// `stderr`, or where an access log is.
    pub(crate) name: String,
    /// Lines that it has lost so far.
    pub(crate) lost: u64,
    /// Lines that are not written yet.
    pub(crate) waiting: u64,
    /// Why it cannot be written; `None`: it can, as far as is known.
    pub(crate) failure: Option<String>,
}

struct Logs(Mutex<BTreeMap<String, Arc<LogState>>>);

/// The state of the log with this name.
pub(crate) fn of(name: &str) -> Arc<LogState> {
    ALL.of(name)
}

/// All logs: those that are open, and those that have lost something.
pub(crate) fn all() -> Vec<Told> {
    ALL.read()
}

impl LogState {
    /// How many lines were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(crate) fn has_lost(&self, lines: u64) {
        self.lost.fetch_add(lines, Ordering::Relaxed);
    }

    pub(crate) fn waits(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
    }

    /// So many lines do not wait any more.
    pub(crate) fn has_done(&self, lines: u64) {
        self.waiting.fetch_sub(lines, Ordering::Relaxed);
    }

    /// Says why the log cannot be written, or that it can be.
    pub(crate) fn fails(&self, why: Option<String>) {
        *self.failure() = why;
    }

    fn failure(&self) -> MutexGuard<'_, Option<String>> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Logs {
    fn of(&self, name: &str) -> Arc<LogState> {
        Arc::clone(self.lock().entry(name.to_owned()).or_default())
    }

    fn read(&self) -> Vec<Told> {
        let mut all = self.lock();
        // Whoever reads the counters would miss what is forgotten before it was told once: nothing.
        all.retain(|_, log| Arc::strong_count(log) > 1 || log.lost() > 0);
        let told = all.iter().map(|(name, log)| Told {
            name: name.clone(),
            lost: log.lost(),
            waiting: log.waiting.load(Ordering::Relaxed),
            failure: log.failure().clone(),
        });
        told.collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Arc<LogState>>> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_outlives_its_log_and_goes_on_with_the_next_one() {
        let all = Logs(Mutex::default());
        let [one, other] = ["one", "other"].map(|name| all.of(name));
        one.has_lost(3);
        let told = |counts: &[(&str, u64)]| {
            let found = all.read();
            let found: Vec<_> = found.iter().map(|it| (&*it.name, it.lost)).collect();
            assert_eq!(found, counts);
        };
        told(&[("one", 3), ("other", 0)]);
        drop((one, other));
        told(&[("one", 3)]);
        all.of("one").has_lost(1);
        told(&[("one", 4)]);
    }
}
