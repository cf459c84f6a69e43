//! Bulk in one direction, from a sender that is faster than the kernel worker.

use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, available};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use splice::{EngineChoice, EngineName, Splicer};

use crate::stage::{SOCKMAP, join_across, missing, options, send_through};

/// Some 50 ms on a machine of 2026. The first attempt to open comes after 20 ms.
const BYTES: u64 = 128 << 20;
const ROUNDS: usize = 7;

/// A sender with a closed window probes after 200 ms, several times the duration of a round. The
/// throughput itself is measured by the bench.
#[test]
fn attempts_to_open_do_not_delay_bulk() {
    if missing() || !available(Need::Netns) {
        return;
    }
    let lab = Lab::new().unwrap();
    lab.set_sysctl("net.ipv4.tcp_congestion_control", "reno")
        .unwrap();
    let mut ratios: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let [copy, sockmap] = [EngineChoice::Only(EngineName::Copy), SOCKMAP].map(|engine| {
                // Everything on one CPU, where the sender has more waiting than the window holds.
                // Threads that it starts stay on that CPU.
                thread::scope(|scope| scope.spawn(|| on_one_cpu(&lab, engine)).join().unwrap())
            });
            eprintln!("copy {copy:?}, sockmap {sockmap:?}");
            copy.as_secs_f64() / sockmap.as_secs_f64()
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    let median = ratios[ROUNDS / 2];
    assert!(median >= 0.5, "{median:.2} of copy's throughput");
}

fn on_one_cpu(lab: &Lab, engine: EngineChoice) -> Duration {
    let all = sched_getaffinity(None).unwrap();
    let first = (0..CpuSet::MAX_CPU).find(|cpu| all.is_set(*cpu)).unwrap();
    let mut one = CpuSet::new();
    one.set(first);
    sched_setaffinity(None, &one).unwrap();
    let splicer = Splicer::new(1).unwrap();
    let joined = join_across(lab, &splicer, &options(engine));
    let start = Instant::now();
    send_through(&joined.a, &joined.b, 0..BYTES);
    start.elapsed()
}
