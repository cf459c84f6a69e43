//! Whether a stream takes about as long with an engine that splices as with `copy`, measured in one run.

use std::time::Duration;

/// Of each engine, taking turns, if streams follow each other.
const STAGES: usize = 2;
/// On each of those stages.
pub(super) const ROUNDS: usize = 10;

/// Whoever is late is so each time: a timeout too many may be chance, or want of a CPU.
const TRIES: usize = 3;

/// A turn of the scheduler counts for nothing.
pub(super) const SLACK: Duration = Duration::from_millis(20);

/// `TCP_RTO_MIN`.
pub(super) const TIMEOUT: Duration = Duration::from_millis(200);

/// `TCP_TIMEOUT_MIN` where a second has the fewest ticks: two of them on top of two round trips make a sender that hears nothing
/// probe (`tcp_schedule_loss_probe`).
const LOSS_PROBE: Duration = Duration::from_millis(20);

/// How much longer than with `copy` it may take. Halves of the median of `copy`, and what comes on top of that; and what comes on
/// top of ten times that median, or twice the longest, for each single stream but for some.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    halves: u32,
    more: Duration,
    longest_more: Duration,
    pub(super) stragglers: usize,
}

impl Allowance {
    pub(super) const NONE: Self = Self {
        halves: 3,
        more: Duration::ZERO,
        longest_more: Duration::ZERO,
        stragglers: 0,
    };

    /// A sender whose retransmissions get lost as well waits twice as long each time. With a tenth lost, one stream in some
    /// seventy takes more than ten times the median, with `copy` too.
    pub(super) const REPEATED_LOSSES: Self = Self {
        stragglers: 6,
        ..Self::NONE
    };

    /// The pair goes back before the first byte: a sender that is ahead of that probes once, and if that gets lost as well, waits
    /// for the timeout that follows.
    pub(super) const RARE_TIMEOUT: Self = Self {
        more: LOSS_PROBE,
        longest_more: LOSS_PROBE.saturating_add(TIMEOUT),
        ..Self::NONE
    };

    /// On a host that others keep busy, each sender may be ahead.
    pub(super) const PROBE_AND_TIMEOUT: Self = Self {
        more: LOSS_PROBE.saturating_add(TIMEOUT),
        ..Self::RARE_TIMEOUT
    };

    /// The pair goes back in full flow: what was under way is lost, and may be all that was.
    pub(super) const TIMEOUT: Self = Self {
        more: TIMEOUT,
        longest_more: TIMEOUT,
        ..Self::NONE
    };

    /// Which of a sender's timeouts counts its time (`retransmits_timed_out`) depends on whether a probe comes first: each is
    /// twice as long as the one before.
    pub(super) const ANOTHER_BACKOFF: Self = Self {
        halves: 5,
        ..Self::NONE
    };
}

/// Compares what is alike but for the engine.
#[derive(Debug)]
pub(super) struct Comparison {
    stages: usize,
    failed: Vec<String>,
}

impl Comparison {
    /// Of streams that follow each other.
    pub(super) fn one_by_one() -> Self {
        Self {
            stages: STAGES,
            failed: Vec::new(),
        }
    }

    /// Of streams that are all on one stage, at the same time.
    pub(super) fn at_once() -> Self {
        Self {
            stages: 1,
            failed: Vec::new(),
        }
    }

    /// `times` has the times of some streams on a stage with this engine and number. Without the means there are none.
    ///
    pub(super) fn add(
        &mut self,
        what: &str,
        allowance: Allowance,
        mut times: impl FnMut(&str, usize) -> Vec<Duration>,
    ) {
        let mut late = None;
        for _ in 0..TRIES {
            late = self.measure(what, allowance, &mut times);
            if late.is_none() {
                return;
            }
        }
        self.failed.extend(late);
    }

    /// That alone.
    pub(super) fn ends_after(
        mut self,
        what: &str,
        allowance: Allowance,
        times: impl FnMut(&str, usize) -> Vec<Duration>,
    ) {
        self.add(what, allowance, times);
        self.end();
    }

    /// The times in words if one of the engines is late.
    fn measure(
        &self,
        what: &str,
        allowance: Allowance,
        times: &mut impl FnMut(&str, usize) -> Vec<Duration>,
    ) -> Option<String> {
        let mut all = ["copy", "auto", "segment"].map(|engine| (engine, Vec::new()));
        for stage in 0..self.stages {
            for (engine, taken) in &mut all {
                taken.extend(times(engine, stage));
            }
        }
        for (_, taken) in &mut all {
            taken.sort_unstable();
        }
        let [(_, copied), spliced @ ..] = &all;
        let longest_copied = copied.last()?;
        let median = |taken: &[Duration]| taken[taken.len() / 2];
        let told = all.each_ref().map(|(engine, taken)| {
            let longest = taken[taken.len() - 1];
            format!("{engine} {:.1?}, at most {longest:.1?}", median(taken))
        });
        let told = format!("{what}: {}", told.join("; "));
        eprintln!("{told}");
        let most = median(copied) * allowance.halves / 2 + allowance.more + SLACK;
        let longest = (median(copied) * 10).max(*longest_copied * 2);
        let longest = longest + allowance.longest_more + SLACK;
        let is_late = |(_, taken): &(&str, Vec<Duration>)| {
            let over = taken.iter().filter(|took| **took > longest).count();
            median(taken) > most || over > allowance.stragglers
        };
        spliced.iter().any(is_late).then_some(told)
    }

    pub(super) fn end(self) {
        assert!(self.failed.is_empty(), "{:#?}", self.failed);
    }
}

/// How many comparisons fail if `segment` alone takes other times, in milliseconds.
fn failures(allowance: Allowance, copied: &[u64], mut spliced: impl FnMut() -> Vec<u64>) -> usize {
    let mut comparison = Comparison::at_once();
    comparison.add("times", allowance, |engine, _| {
        let times = match engine {
            "segment" => spliced(),
            _ => copied.to_vec(),
        };
        times.into_iter().map(Duration::from_millis).collect()
    });
    comparison.failed.len()
}

#[test]
fn about_the_same_time_passes() {
    assert_eq!(
        failures(Allowance::NONE, &[100, 100, 100], || vec![140, 160, 900]),
        0
    );
    assert_eq!(
        failures(Allowance::NONE, &[100, 100, 600], || vec![140, 160, 1200]),
        0
    );
    assert_eq!(failures(Allowance::NONE, &[], Vec::new), 0);
}

#[test]
fn a_late_median_fails() {
    assert_eq!(
        failures(Allowance::NONE, &[100, 100, 100], || vec![100, 180, 180]),
        1
    );
}

#[test]
fn one_late_stream_fails() {
    assert_eq!(
        failures(Allowance::NONE, &[100, 100, 100], || vec![100, 100, 1100]),
        1
    );
}

#[test]
fn what_is_late_but_not_each_time_passes() {
    let mut all = [vec![900], vec![900], vec![100]].into_iter();
    assert_eq!(
        failures(Allowance::NONE, &[100], || all.next().expect("no more")),
        0
    );
}

#[test]
fn more_stragglers_than_chance_has_fail() {
    let losses = Allowance::REPEATED_LOSSES;
    let late = |late: usize| [vec![100; 13], vec![2000; late]].concat();
    assert_eq!(failures(losses, &[100; 20], || late(6)), 0);
    assert_eq!(failures(losses, &[100; 20], || late(7)), 1);
}
