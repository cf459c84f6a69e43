//! The doctor, called by a program that embeds the library.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::fs;

use netlab::{Need, available};
use splice::EngineName;
use splice::doctor::{Report, Verdict, examine};

fn finding(report: &Report, engine: EngineName) -> (Verdict, &str) {
    let mut engines = report.engines.iter();
    let finding = engines.find(|finding| finding.engine == engine).unwrap();
    (finding.verdict, &finding.reason)
}

/// How many descriptors this process has, and how many BPF mappings.
fn open() -> (usize, usize) {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    (
        fs::read_dir("/proc/self/fd").unwrap().count(),
        maps.lines().filter(|line| line.contains("bpf-map")).count(),
    )
}

#[test]
fn nothing_is_left_behind() {
    let before = open();
    for _ in 0..3 {
        let report = examine();
        for engine in [EngineName::Copy, EngineName::Pipe] {
            let (verdict, reason) = finding(&report, engine);
            assert_eq!(verdict, Verdict::Yes, "{reason}");
        }
        if available(Need::Bpf) {
            let (verdict, reason) = finding(&report, EngineName::Sockmap);
            assert_eq!(verdict, Verdict::Yes, "{reason}");
        }
        assert_eq!(open(), before);
    }
    assert_eq!(before.1, 0);
}
