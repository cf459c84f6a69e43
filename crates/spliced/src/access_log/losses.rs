//! What the access logs of this process have lost, by the name of each.
//!
//! A reload may close a log and another one open it again: its count goes on.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

static ALL: Losses = Losses(Mutex::new(BTreeMap::new()));

struct Losses(Mutex<BTreeMap<String, Arc<AtomicU64>>>);

/// What the log with this name counts its lost lines with.
pub(super) fn of(name: &str) -> Arc<AtomicU64> {
    ALL.of(name)
}

/// How many lines each has lost: those that are open, and those that have lost some.
pub(crate) fn losses() -> Vec<(String, u64)> {
    ALL.read()
}

impl Losses {
    fn of(&self, name: &str) -> Arc<AtomicU64> {
        Arc::clone(self.all().entry(name.to_owned()).or_default())
    }

    fn read(&self) -> Vec<(String, u64)> {
        let mut all = self.all();
        // Whoever reads the counters would miss what is forgotten before it was told once: nothing.
        all.retain(|_, lost| Arc::strong_count(lost) > 1 || lost.load(Ordering::Relaxed) > 0);
        let counts = all
            .iter()
            .map(|(name, lost)| (name.clone(), lost.load(Ordering::Relaxed)));
        counts.collect()
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<String, Arc<AtomicU64>>> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_outlives_its_log_and_goes_on_with_the_next_one() {
        let all = Losses(Mutex::default());
        let [one, other] = ["one", "other"].map(|name| all.of(name));
        one.fetch_add(3, Ordering::Relaxed);
        let told = |counts: &[(&str, u64)]| {
            let counts = counts
                .iter()
                .map(|(name, count)| ((*name).to_owned(), *count));
            assert_eq!(all.read(), counts.collect::<Vec<_>>());
        };
        told(&[("one", 3), ("other", 0)]);
        drop((one, other));
        told(&[("one", 3)]);
        all.of("one").fetch_add(1, Ordering::Relaxed);
        told(&[("one", 4)]);
    }
}
