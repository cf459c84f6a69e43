//! The clocks that BPF programs read: those of the machine, as they are outside of any time namespace.

use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

/// What `bpf_ktime_get_ns` reads.
pub(crate) fn now_ns() -> u64 {
    outside_ns(ClockId::Monotonic)
}

/// What `bpf_ktime_get_coarse_ns` reads.
pub(crate) fn coarse_now_ns() -> u64 {
    outside_ns(ClockId::MonotonicCoarse)
}

fn outside_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let here = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    (here - ahead_ns()) as u64
}

/// By how much this process's time namespace has put both ahead (time_namespaces(7)).
fn ahead_ns() -> i64 {
    static AHEAD_NS: OnceLock<i64> = OnceLock::new();
    *AHEAD_NS.get_or_init(|| {
        // A kernel without the file has no such namespaces.
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let of_clock = offsets
            .lines()
            .find_map(|line| line.strip_prefix("monotonic"));
        let mut numbers = of_clock.unwrap_or_default().split_whitespace();
        let mut next = || numbers.next().and_then(|text| text.parse::<i64>().ok());
        next().unwrap_or(0) * 1_000_000_000 + next().unwrap_or(0)
    })
}

/// Runs an ignored test of this program where the clocks are a day ahead.
#[cfg(test)]
pub(crate) fn a_day_ahead(test: &str) {
    let done = std::process::Command::new("unshare")
        .args(["--time", "--fork", "--monotonic", "86400"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "--ignored", test])
        .output()
        .expect("unshare");
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(
        done.status.success() && said.contains("1 passed"),
        "{done:?}"
    );
}
