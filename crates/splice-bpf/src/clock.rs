//! The clocks that BPF programs read: those of the initial time namespace.

use std::fs;
use std::sync::OnceLock;

use rustix::time::{ClockId, clock_gettime};

use crate::load::load;
use crate::objects;
use crate::types::ClockReading;

/// A reading takes a microsecond. Of so many, at least one is not interrupted, even on busy CPUs.
const READINGS: u32 = 32;

/// What `bpf_ktime_get_ns` reads.
pub fn now_ns() -> u64 {
    outside_ns(ClockId::Monotonic)
}

/// What `bpf_ktime_get_coarse_ns` reads.
pub fn coarse_now_ns() -> u64 {
    outside_ns(ClockId::MonotonicCoarse)
}

fn outside_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    let here = now.tv_sec * 1_000_000_000 + now.tv_nsec;
    (here - ahead_ns()) as u64
}

/// Determines the offset between the clocks, which may load a program. A loop that asks for the
/// time later finds the answer at hand.
pub fn prepare() {
    ahead_ns();
}

/// The offset of both clocks in this process's time namespace (time_namespaces(7)).
fn ahead_ns() -> i64 {
    static AHEAD_NS: OnceLock<i64> = OnceLock::new();
    *AHEAD_NS.get_or_init(|| {
        let [own, of_children] = ["time", "time_for_children"]
            .map(|name| fs::read_link(format!("/proc/self/ns/{name}")));
        match (own, of_children) {
            // The file describes the namespace for children (`proc_timens_show_offsets`). That is
            // the process's own, unless it has unshared another.
            (Ok(own), Ok(of_children)) if own == of_children => {
                offset_in_ns(&fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default())
            }
            // Without a program there is no clock to compare with.
            _ => measured_ns().unwrap_or(0),
        }
    })
}

/// The offset of CLOCK_MONOTONIC according to the text of /proc/self/timens_offsets.
fn offset_in_ns(offsets: &str) -> i64 {
    let of_clock = offsets
        .lines()
        .find_map(|line| line.strip_prefix("monotonic"));
    let mut numbers = of_clock.unwrap_or_default().split_whitespace();
    let mut next = || numbers.next().and_then(|text| text.parse::<i64>().ok());
    next().unwrap_or(0) * 1_000_000_000 + next().unwrap_or(0)
}

/// The same, measured by a program's clock between two readings of this process's. The error is at
/// most half of what the shortest measurement took, about a microsecond; a smaller offset counts as
/// none.
fn measured_ns() -> Option<i64> {
    let object = load("clock", objects::CLOCK, |_| Ok(())).ok()?;
    let program = object.program("read_clock").ok()?;
    let mut narrowest: Option<(i64, i64)> = None;
    for _ in 0..READINGS {
        let before = monotonic_ns();
        let reading = program.run(&ClockReading::default()).ok()?;
        let took = monotonic_ns() - before;
        if narrowest.is_none_or(|(least, _)| took < least) {
            narrowest = Some((took, before + took / 2 - reading.now_ns as i64));
        }
    }
    narrowest.map(|(took, ahead)| if ahead.abs() <= took { 0 } else { ahead })
}

fn monotonic_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Runs an ignored test of this program in a time namespace that is a day ahead.
///
/// # Panics
/// If the test fails.
#[cfg(feature = "test")]
pub fn a_day_ahead(test: &str) {
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

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use netlab::{Need, available};

    use super::*;

    /// Far more than the error of a reading, far less than any time that matters here.
    const CLOSE_NS: i64 = 1_000_000;

    #[test]
    fn file_and_measurement_agree_in_another_time_namespace() {
        if !available(Need::Root) {
            return;
        }
        a_day_ahead("clock::tests::a_day_is_measured");
    }

    #[test]
    #[ignore = "a process that another test starts"]
    fn a_day_is_measured() {
        const DAY_NS: i64 = 86_400 * 1_000_000_000;
        let measured = measured_ns().expect("measured");
        println!("off by {} ns", measured - DAY_NS);
        assert_eq!(ahead_ns(), DAY_NS);
        assert!((measured - DAY_NS).abs() < CLOSE_NS, "{measured}");
    }

    /// All files of a directory and those in it whose names end so.
    fn sources(directory: &Path, ending: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(directory).expect("a directory").flatten();
        let mut found = Vec::new();
        for path in entries.map(|entry| entry.path()) {
            if path.is_dir() {
                found.extend(sources(&path, ending));
            } else if path.to_string_lossy().ends_with(ending) {
                found.push(path);
            }
        }
        found
    }

    /// Somebody may set CLOCK_REALTIME, and CLOCK_BOOTTIME goes on while the machine is suspended, in which nobody can have
    /// answered. So no engine measures a time by these.
    #[test]
    fn no_engine_reads_another_clock() {
        const OTHERS: [&str; 5] = [
            "SystemTime",
            "ClockId::Realtime",
            "ClockId::Boottime",
            "ktime_get_boot",
            "ktime_get_tai",
        ];
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut all = sources(&crates.join("splice-bpf/bpf"), ".h");
        all.extend(sources(&crates.join("splice-bpf/bpf"), ".c"));
        for name in [
            "splice",
            "splice-base",
            "splice-bpf",
            "splice-firewall",
            "splice-sockmap",
        ] {
            all.extend(sources(&crates.join(name).join("src"), ".rs"));
        }
        assert!(all.len() > 100, "{all:?}");
        for path in all {
            let text = fs::read_to_string(&path).expect("text");
            // This list.
            let (text, _) = text.split_once("const OTHERS").unwrap_or((&text, ""));
            for other in OTHERS {
                assert!(!text.contains(other), "{} has {other}", path.display());
            }
        }
    }

    #[test]
    fn equal_clocks_have_no_offset() {
        if !available(Need::Root) {
            return;
        }
        let measured = measured_ns().expect("measured");
        assert!((measured - ahead_ns()).abs() < CLOSE_NS, "{measured}");
        assert_eq!(measured == 0, ahead_ns() == 0);
    }

    #[test]
    fn offsets_are_read_as_the_kernel_writes_them() {
        let offsets = "monotonic           -3         500000000\nboottime            7         0\n";
        assert_eq!(offset_in_ns(offsets), -2_500_000_000);
        assert_eq!(offset_in_ns(""), 0);
    }
}
