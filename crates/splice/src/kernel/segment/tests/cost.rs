//! What a change-over costs.

use rustix::time::{ClockId, clock_gettime};

use super::bypass::calls_of;
use super::system_calls::SystemCalls;
use super::*;

const PAIRS: usize = 100;

/// System calls of the loop for a pair at rest that is spliced, beyond those of one by `copy`:
/// docs/notes/segment-measurements.md names them.
const MOST_CALLS: u64 = 46;

/// What the splicer's loop has spent: system calls, and CPU time in nanoseconds.
fn spent(splicer: &Splicer, calls: &mut SystemCalls) -> [u64; 2] {
    let nanoseconds = on_loop(splicer, |_| {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
    });
    [calls.all_begun(), nanoseconds]
}

/// Joins pairs and lets them come to rest; returns the cost of one.
fn cost_of_a_pair(
    lab: &Lab,
    splicer: &Splicer,
    engine: EngineName,
    calls: &mut SystemCalls,
) -> [u64; 2] {
    let options = Options {
        engine: EngineChoice::Only(engine),
        ..Options::default()
    };
    let connected: Vec<_> = (0..PAIRS).map(|_| Connected::across(lab)).collect();
    let before = spent(splicer, calls);
    let pairs: Vec<_> = connected
        .into_iter()
        .map(|connected| connected.join(splicer, &options))
        .collect();
    let are_taken = || pairs.iter().all(|(_, _, handle)| handle.is_taken());
    netlab::until("the pairs are taken", || {
        engine != EngineName::Segment || are_taken()
    });
    wait_for_sleep(lab);
    let after = spent(splicer, calls);
    [0, 1].map(|index: usize| (after[index] - before[index]) / PAIRS as u64)
}

#[test]
fn a_change_over_takes_few_system_calls() {
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let mut calls = calls_of(&splicer);
    let [copied, spliced] = [EngineName::Copy, EngineName::Segment]
        .map(|engine| cost_of_a_pair(&lab, &splicer, engine, &mut calls));
    let [more_calls, more_ns] = [0, 1].map(|index: usize| spliced[index].abs_diff(copied[index]));
    eprintln!(
        "a change-over at rest: {more_calls} system calls, {:.1} us of CPU time",
        more_ns as f64 / 1000.0
    );
    assert!(spliced[0] > copied[0], "{spliced:?} and {copied:?}");
    assert!(more_calls <= MOST_CALLS, "{more_calls}");
}
