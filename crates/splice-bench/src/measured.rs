//! What has been found out about one contestant.

use crate::contestant::Contestant;
use crate::statistics::Sample;
use crate::workload::Held;

/// One contestant and all that was measured of it; a sample has one value per round.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) contestant: Contestant,
    /// Whether both hashes were the same; `None` when the transfer did not come to an end.
    pub(crate) same_bytes: Option<bool>,
    pub(crate) gigabits_per_second: Sample,
    pub(crate) cpu_seconds_per_gigabyte: Sample,
    pub(crate) p50_microseconds: Sample,
    pub(crate) p99_microseconds: Sample,
    pub(crate) one_at_a_time_per_second: Sample,
    pub(crate) in_flight_per_second: Sample,
    pub(crate) idle_pair_bytes: Option<f64>,
    pub(crate) held: Option<Held>,
    /// Measurements that failed, in words.
    pub(crate) failures: Vec<String>,
}

impl Measured {
    pub(crate) fn nothing_of(contestant: Contestant) -> Self {
        Self {
            contestant,
            same_bytes: None,
            gigabits_per_second: Sample::default(),
            cpu_seconds_per_gigabyte: Sample::default(),
            p50_microseconds: Sample::default(),
            p99_microseconds: Sample::default(),
            one_at_a_time_per_second: Sample::default(),
            in_flight_per_second: Sample::default(),
            idle_pair_bytes: None,
            held: None,
            failures: Vec::new(),
        }
    }

    /// Every byte arrived and nothing failed.
    pub(crate) fn is_sound(&self) -> bool {
        self.same_bytes == Some(true) && self.failures.is_empty()
    }
}

/// What was measured of `contestant`, if it ran.
pub(crate) fn of(all: &[Measured], contestant: Contestant) -> Option<&Measured> {
    all.iter()
        .find(|measured| measured.contestant == contestant)
}
