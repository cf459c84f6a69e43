//! The descriptors of this process.

use std::fs;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What every open descriptor refers to, sorted: `socket:[123]`, `pipe:[124]`, a path.
pub(crate) fn open() -> Vec<String> {
    let mut targets: Vec<_> = fs::read_dir("/proc/self/fd")
        .expect("/proc/self/fd")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .map(|target| target.to_string_lossy().into_owned())
        .filter(|target| !target.ends_with("/fd"))
        .collect();
    targets.sort();
    targets
}

pub(crate) fn count(prefix: &str) -> usize {
    let starts = |target: &&String| target.starts_with(prefix);
    open().iter().filter(starts).count()
}

/// Raises the soft limit to the hard limit.
pub(crate) fn allow_most() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    allow(maximum);
}

/// Allows so many beside those that are open, which a test may have inherited.
pub(crate) fn allow_more(count: u64) {
    let numbers = fs::read_dir("/proc/self/fd").expect("/proc/self/fd");
    let number =
        |entry: std::io::Result<fs::DirEntry>| entry.ok()?.file_name().to_str()?.parse().ok();
    // The limit bounds the descriptors' numbers, not their count.
    let highest: u64 = numbers.filter_map(number).max().expect("one at least");
    allow(Some(highest + 1 + count));
}

fn allow(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current, maximum }).expect("RLIMIT_NOFILE");
}
