//! How long something has taken, each time: counts by upper bounds, as histograms of Prometheus have them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper bounds, and the most that any other duration may be. From what a server beside this host takes up to the
/// default time to connect (5 s), and beyond.
const BOUNDS: [Duration; 13] = [
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_micros(2_500),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Durations of one kind. Any thread adds, any thread reads.
#[derive(Debug, Default)]
pub(crate) struct Durations {
    /// One for each bound, and one for what is beyond all of them.
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_ns: AtomicU64,
}

/// What has been added so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Distribution {
    /// Upper bounds in seconds, and how many durations are below, but above the bound before.
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum_seconds: f64,
}

impl Durations {
    pub(crate) fn add(&self, duration: Duration) {
        let bucket = BOUNDS.iter().position(|bound| duration <= *bound);
        self.counts[bucket.unwrap_or(BOUNDS.len())].fetch_add(1, Ordering::Relaxed);
        let nanoseconds = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        self.sum_ns.fetch_add(nanoseconds, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Distribution {
        let bounds = BOUNDS.iter().map(Duration::as_secs_f64);
        let bounds = bounds.chain([f64::INFINITY]);
        let counts = self.counts.iter().map(|it| it.load(Ordering::Relaxed));
        Distribution {
            buckets: bounds.zip(counts).collect(),
            sum_seconds: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_counts_below_the_next_bound() {
        let durations = Durations::default();
        let added = [0, 100, 101, 5_000_000, 5_000_001].map(Duration::from_micros);
        added.iter().for_each(|duration| durations.add(*duration));
        let read = durations.read();
        let counts: Vec<_> = read.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1]);
        assert_eq!(read.buckets[1].0, 0.000_25);
        assert!((read.sum_seconds - 10.000_202).abs() < 1e-9, "{read:?}");
    }
}
