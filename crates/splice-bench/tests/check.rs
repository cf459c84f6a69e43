//! `check` by itself: cargo runs no other test beside those of this file, and what is measured
//! needs the CPU.

use std::process::{Command, Stdio};

use netlab::{Need, available, present};

const CLAIMS: usize = 6;

/// How many claims hold, how many do not, and the exit status; `None` where something is missing.
fn check(rounds: u32) -> Option<(usize, usize, Option<i32>)> {
    let without = |name: &str| {
        let missing = netlab::program(name).is_none();
        !present(
            name,
            missing.then(|| format!("no {name} (apt install {name})")),
        )
    };
    if !available(Need::Netns) || without("sockperf") || without("iperf3") {
        return None;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_splice-bench"))
        .args(["check", "--rounds", &rounds.to_string()])
        .stdin(Stdio::null())
        .output()
        .expect("the bench has been built");
    let text = [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat();
    println!("{text}");
    let lines = |end: &str| text.lines().filter(|line| line.ends_with(end)).count();
    Some((lines(" holds"), lines(" FAILED"), output.status.code()))
}

#[test]
fn every_claim_is_told_and_the_exit_status_agrees() {
    // As few as it takes: whether they hold is not the question.
    if let Some((holding, failed, status)) = check(5) {
        assert_eq!(holding + failed, CLAIMS);
        assert_eq!(status, Some(i32::from(failed > 0)));
    }
}

#[test]
#[ignore = "its figures need a quiet machine"]
fn the_bench_measures_what_it_says() {
    if let Some((holding, ..)) = check(31) {
        assert_eq!(holding, CLAIMS);
    }
}
