//! What a person gets who types `compare`: results, a sentence, or both after Ctrl-C.

#[path = "support/left_behind.rs"]
mod left_behind;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use netlab::{Need, Process, Scratch, available, present};
use rustix::process::Signal;
use serde_json::Value;

use left_behind::left_behind_by;

/// Long against the whole of a small run, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn bench(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_splice-bench"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(arguments: &[&str]) -> Output {
    bench(arguments).output().expect("the bench has been built")
}

/// The one line on stderr with which `arguments` end, and nothing else anywhere.
fn sentence(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{text}");
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.matches('\n').count(), 1, "not one line: {text}");
    let sentence = text.trim_end().strip_prefix("splice-bench: ");
    sentence.expect("who says it").into()
}

/// A program that stands in for spliced where none is started.
fn any_program() -> &'static str {
    env!("CARGO_BIN_EXE_splice-bench")
}

#[test]
fn wrong_usage_is_one_sentence_and_status_2() {
    if !available(Need::Root) {
        return;
    }
    for (arguments, parts) in [
        (
            &["--only", "traefik"][..],
            &["--only", "\"traefik\"", "nginx stream", "nftables DNAT"][..],
        ),
        (
            &["--except", "copy,smoke"],
            &["--except", "\"smoke\"", "spliced copy"],
        ),
        (
            &["--workload", "sleep"],
            &["--workload", "\"sleep\"", "ping-pong", "slow-reader"],
        ),
        (&["--rounds", "0"], &["--rounds", "1.."]),
        (&["--rate", "x"], &["--rate", "'x'"]),
        (&["--spread", "--cpu", "1"], &["--spread", "--cpu"]),
        (&["--warp"], &["--warp"]),
        (
            &["--spliced", "/nowhere/spliced"],
            &["/nowhere/spliced", "cargo build"],
        ),
    ] {
        let mut all = vec!["compare"];
        // A flag that is given twice is another mistake.
        if arguments[0] != "--spliced" {
            all.extend(["--spliced", any_program()]);
        }
        all.extend(arguments);
        let sentence = sentence(&output(&all), 2);
        for part in parts {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

#[test]
fn without_root_it_is_one_sentence_and_status_2() {
    if !available(Need::Root) {
        return;
    }
    for what in ["compare", "check"] {
        // A test binary may lie where nobody else may look: the program is read before that.
        let mut command = Command::new("setpriv");
        command.args([
            "--reuid",
            "65534",
            "--clear-groups",
            "--",
            any_program(),
            what,
        ]);
        let output = command.output().expect("util-linux is installed");
        if String::from_utf8_lossy(&output.stderr).contains("ermission denied") {
            present(
                "a readable target directory",
                Some("others may not read it".into()),
            );
            return;
        }
        let sentence = sentence(&output, 2);
        assert!(sentence.contains("root"), "{sentence}");
    }
}

#[test]
fn a_directory_that_holds_results_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("held").expect("a directory");
    scratch.write("results.json", "{}").expect("it is writable");
    let directory = scratch.path().to_string_lossy();
    let output = output(&[
        "compare",
        "--spliced",
        any_program(),
        "--output",
        &directory,
    ]);
    let sentence = sentence(&output, 1);
    assert!(sentence.contains("holds results already"), "{sentence}");
}

/// A small comparison of the direct path with itself, which needs no spliced.
fn small(directory: &Path, rounds: &str) -> Command {
    let mut command = bench(&["compare", "--quick", "--only", "direct-again"]);
    command.args(["--spliced", any_program(), "--rounds", rounds]);
    command.args([
        "--workload",
        "ping-pong-1,bulk-both,request-response-100,open-load,short-connections-8,same-port,young,\
         sni-latency,sni-first-byte,sni-short-8",
    ]);
    command.arg("--output").arg(directory);
    command
}

fn results(directory: &Path) -> Value {
    let text = fs::read_to_string(directory.join("results.json")).expect("it has been written");
    serde_json::from_str(&text).expect("it is JSON")
}

fn found<'a>(list: &'a Value, key: &str, value: &str) -> &'a Value {
    let list = list.as_array().expect("a list");
    let found = list.iter().find(|item| item[key] == value);
    found.unwrap_or_else(|| panic!("no {key} {value:?} in {list:?}"))
}

#[test]
fn results_have_rounds_intervals_and_distributions() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("results").expect("a directory");
    let directory = scratch.path().join("out");
    let output = small(&directory, "5")
        .output()
        .expect("the bench has been built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // Standard error is no terminal: a line for each round, and no bar.
    assert!(
        said.contains("round 5 of 5\n") && !said.contains('\x1b'),
        "{said}"
    );

    let results = results(&directory);
    assert_eq!(results["run"]["complete"], true);
    assert_eq!(results["run"]["rounds"], 5);
    for (workload, quantity) in [
        ("ping-pong-1", "latency-p50"),
        ("bulk-both", "throughput"),
        ("bulk-both", "cpu"),
        ("request-response-100", "rate"),
        ("open-load", "latency-p99"),
        // After those whose server accepts in another way.
        ("short-connections-8", "rate"),
        ("same-port", "rate"),
        ("young", "latency-p99"),
        ("sni-latency", "latency-p50"),
        ("sni-first-byte", "latency-p50"),
        ("sni-short-8", "cpu"),
    ] {
        let workload = found(&results["workloads"], "id", workload);
        let quantity = found(&workload["quantities"], "id", quantity);
        let again = found(&quantity["measured"], "contestant", "direct again");
        assert_eq!(again["rounds"].as_array().map(Vec::len), Some(5), "{again}");
        assert!(again["median"].as_f64() > Some(0.0), "{again}");
        let interval = &again["ratio"]["interval"];
        assert!(
            interval["low"].as_f64() <= interval["high"].as_f64(),
            "{again}"
        );
    }
    let ping_pong = found(&results["workloads"], "id", "ping-pong-1");
    let distributions = &ping_pong["latencies"]["distributions"];
    let direct = found(distributions, "contestant", "direct");
    let file: PathBuf = directory.join(direct["file"].as_str().expect("it was saved"));
    assert!(file.is_file(), "{}", file.display());
    assert!(direct["count"].as_u64() > Some(100), "{direct}");
}

#[test]
fn an_interrupted_run_leaves_its_results_and_nothing_else() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("interrupted").expect("a directory");
    let directory = scratch.path().join("out");
    let mut command = small(&directory, "1000");
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command).expect("the bench has been built");
    let stderr = process.child_mut().stderr.take().expect("it is piped");
    let mut lines = BufReader::new(stderr).lines().map_while(Result::ok);
    let begun = lines.find(|line| line.starts_with("round 3"));
    assert!(begun.is_some(), "it got to its third round");

    process.signal(Signal::INT).expect("it still runs");
    let status = process
        .wait_at_most(PATIENCE)
        .expect("it is a child")
        .expect("it ends");
    // As a shell tells of a program that SIGINT (2) has ended.
    let rest: Vec<String> = lines.collect();
    assert_eq!(status.code(), Some(130), "{rest:?}");
    assert!(rest.concat().contains("interrupted"), "{rest:?}");
    assert_eq!(left_behind_by(process.id()), Vec::<String>::new());
    let results = results(&directory);
    assert_eq!(results["run"]["complete"], false);
    let ping_pong = found(&results["workloads"], "id", "ping-pong-1");
    let quantity = found(&ping_pong["quantities"], "id", "latency-p50");
    let direct = found(&quantity["measured"], "contestant", "direct");
    assert!(
        direct["rounds"].as_array().map(Vec::len) >= Some(2),
        "{direct}"
    );
}

#[test]
fn contestants_that_cannot_take_part_are_named_and_no_error() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("refusing").expect("a directory");
    let text = "#!/bin/sh\necho 'this kernel has no such engine' >&2\nexit 2\n";
    let spliced = scratch.write("spliced", text).expect("it is writable");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&spliced, executable).expect("it is ours");
    let directory = scratch.path().join("out");
    let mut command = bench(&[
        "compare",
        "--quick",
        "--only",
        "copy,envoy",
        "--rounds",
        "1",
    ]);
    command
        // Where Debian puts programs, of which Envoy is none.
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .args(["--workload", "ping-pong-1", "--spliced"])
        .arg(&spliced);
    command.arg("--output").arg(&directory);
    let output = command.output().expect("the bench has been built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let results = results(&directory);
    let missing = found(&results["missing"], "what", "spliced copy");
    assert_eq!(missing["why"], "this kernel has no such engine");
    let envoy = found(&results["missing"], "what", "Envoy");
    let why = envoy["why"].as_str().expect("it is text");
    assert!(
        why.contains("not installed") && why.contains("PyPI"),
        "{why}"
    );
}

#[test]
fn address_translation_takes_part_and_no_process_has_cpu_time_for_it() {
    if !available(Need::Netns) || !available(Need::Nft) {
        return;
    }
    let scratch = Scratch::new("translated").expect("a directory");
    let directory = scratch.path().join("out");
    let mut command = bench(&["compare", "--quick", "--only", "nftables-dnat"]);
    command.args(["--rounds", "1", "--spliced", any_program()]);
    command.args(["--workload", "ping-pong-1,bulk-up", "--output"]);
    let output = command.arg(&directory).output();
    let output = output.expect("the bench has been built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let results = results(&directory);
    let ping_pong = found(&results["workloads"], "id", "ping-pong-1");
    let latency = found(&ping_pong["quantities"], "id", "latency-p50");
    let translated = found(&latency["measured"], "contestant", "nftables DNAT");
    assert!(translated["median"].as_f64() > Some(0.0), "{translated}");

    let bulk = found(&results["workloads"], "id", "bulk-up");
    let of_processes = found(&bulk["quantities"], "id", "cpu-process");
    assert_eq!(of_processes["reference"], Value::Null);
    let measured = of_processes["measured"].as_array().expect("a list");
    assert_eq!(measured.len(), 1, "{measured:?}");
    assert_eq!(measured[0]["contestant"], "nftables DNAT");
    assert_eq!(measured[0]["median"], 0.0);
    let of_machine = found(&bulk["quantities"], "id", "cpu");
    let of_machine = found(&of_machine["measured"], "contestant", "nftables DNAT");
    assert!(of_machine["median"].as_f64() > Some(0.0), "{of_machine}");
}

#[test]
fn forwarding_takes_part_in_its_turn_and_a_crowd_of_others_with_it() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let scratch = Scratch::new("forwarded").expect("a directory");
    let directory = scratch.path().join("out");
    let mut command = bench(&["compare", "--quick", "--only", "forward,forward-crowded"]);
    command.args(["--rounds", "1", "--spliced", any_program(), "--workload"]);
    command.args(["ping-pong-1,short-connections-64,ports", "--output"]);
    let output = command.arg(&directory).output();
    let output = output.expect("the bench has been built");
    let said = String::from_utf8_lossy(&output.stderr);
    // That the crowd was complete is among what has to be right.
    assert!(output.status.success(), "{said}");
    let results = results(&directory);
    let rate = |workload: &str, quantity: &str| {
        let workload = found(&results["workloads"], "id", workload);
        let quantity = found(&workload["quantities"], "id", quantity);
        let own = found(&quantity["measured"], "contestant", "spliced forward");
        own["median"].as_f64().expect("a number")
    };
    assert!(rate("short-connections-64", "rate") > 0.0);
    assert!(rate("ports", "rate-again") > 0.0);
    let ping_pong = found(&results["workloads"], "id", "ping-pong-1");
    let latency = found(&ping_pong["quantities"], "id", "latency-p50");
    found(
        &latency["measured"],
        "contestant",
        "spliced forward crowded",
    );
    // Clients got to the socket when no port was left, and not before.
    let ports = found(&results["workloads"], "id", "ports");
    let notes = ports["notes"].as_array().expect("a list");
    let note = notes.iter().filter_map(Value::as_str).collect::<String>();
    assert!(note.contains("forward_no_port"), "{note}");
}

#[test]
fn haproxy_routes_by_sni_and_whoever_routes_is_asked_nothing_else() {
    if !available(Need::Netns) || !available(Need::Haproxy) {
        return;
    }
    let scratch = Scratch::new("routed").expect("a directory");
    let directory = scratch.path().join("out");
    let mut command = bench(&["compare", "--quick", "--only", "haproxy-sni"]);
    command.args(["--rounds", "1", "--spliced", any_program(), "--workload"]);
    command.args([
        "ping-pong-1,sni-latency,sni-first-byte,sni-short",
        "--output",
    ]);
    let output = command.arg(&directory).output();
    let output = output.expect("the bench has been built");
    let said = String::from_utf8_lossy(&output.stderr);
    // The hashes of what follows the hello are among what has to be right.
    assert!(output.status.success(), "{said}");
    let results = results(&directory);
    let contestants = |workload: &str, quantity: &str| -> Vec<String> {
        let workload = found(&results["workloads"], "id", workload);
        let measured = &found(&workload["quantities"], "id", quantity)["measured"];
        let measured = measured.as_array().expect("a list").iter();
        let name = |one: &Value| one["contestant"].as_str().map(str::to_owned);
        measured.filter_map(name).collect()
    };
    let both = ["direct", "direct again", "HAProxy SNI"];
    for (workload, quantity, who) in [
        ("ping-pong-1", "latency-p50", &both[..2]),
        ("sni-latency", "latency-p50", &both),
        ("sni-first-byte", "latency-p50", &both),
        ("sni-short-1", "cpu", &both),
        ("sni-short-8", "cpu-process", &both[2..]),
    ] {
        assert_eq!(contestants(workload, quantity), who, "{workload}");
    }
}
