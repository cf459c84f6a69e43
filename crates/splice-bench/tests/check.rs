//! `check` by itself: cargo runs no other test beside those of this file, and what is measured
//! needs the CPU.

use std::process::{Command, Stdio};

use netlab::{Need, available, present};

#[test]
fn the_bench_measures_what_it_says() {
    let without = |name: &str| {
        let missing = netlab::program(name).is_none();
        !present(
            name,
            missing.then(|| format!("no {name} (apt install {name})")),
        )
    };
    if !available(Need::Netns) || without("sockperf") || without("iperf3") {
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_splice-bench"))
        .arg("check")
        .stdin(Stdio::null())
        .output()
        .expect("the bench has been built");
    let text = [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat();
    assert!(output.status.success(), "{text}");
    assert_eq!(text.matches(" holds\n").count(), 6, "{text}");
}
