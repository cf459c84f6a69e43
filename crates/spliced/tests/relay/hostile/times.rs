//! Whether a stream takes about as long with an engine that splices as with `copy`, measured in one run.

use std::time::Duration;

/// Of each engine, taking turns.
const STAGES: usize = 2;
/// On each stage.
pub(super) const ROUNDS: usize = 10;

/// A turn of the scheduler counts for nothing.
const SLACK: Duration = Duration::from_millis(20);

/// `TCP_RTO_MIN`.
const TIMEOUT: Duration = Duration::from_millis(200);

/// How much longer than with `copy` it may take. Halves of the median of `copy`, and what comes on top of that; and what comes on
/// top of ten times that median, or twice the longest, for each single stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allowance {
    halves: u32,
    more: Duration,
    longest_more: Duration,
}

impl Allowance {
    pub(super) const NONE: Self = Self {
        halves: 3,
        more: Duration::ZERO,
        longest_more: Duration::ZERO,
    };

    /// The pair goes back before the first byte: a sender that is ahead of that waits for a timeout.
    pub(super) const RARE_TIMEOUT: Self = Self {
        longest_more: TIMEOUT,
        ..Self::NONE
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
#[derive(Debug, Default)]
pub(super) struct Comparison {
    failed: Vec<String>,
}

impl Comparison {
    /// `times` has the times of some streams on a stage with this engine and number. Without the means there are none.
    pub(super) fn add(
        &mut self,
        what: &str,
        allowance: Allowance,
        mut times: impl FnMut(&str, usize) -> Vec<Duration>,
    ) {
        let mut all = ["copy", "auto", "segment"].map(|engine| (engine, Vec::new()));
        for stage in 0..STAGES {
            for (engine, taken) in &mut all {
                taken.extend(times(engine, stage));
            }
        }
        for (_, taken) in &mut all {
            taken.sort_unstable();
        }
        let [(_, copied), spliced @ ..] = &all;
        let Some(longest_copied) = copied.last() else {
            return;
        };
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
            median(taken) > most || taken[taken.len() - 1] > longest
        };
        if spliced.iter().any(is_late) {
            self.failed.push(told);
        }
    }

    pub(super) fn end(self) {
        assert!(self.failed.is_empty(), "{:#?}", self.failed);
    }
}
