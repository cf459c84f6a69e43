//! The demo notices what is wrong, says what is missing, and cleans up.

#[path = "support/left_behind.rs"]
mod left_behind;
#[path = "support/stand_in.rs"]
mod stand_in;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use netlab::{Need, Process, Scratch, available};
use rustix::process::Signal;

use left_behind::left_behind_by;
use stand_in::{SPOIL, play, script, sound};

/// Long against the whole of a small demo.
const PATIENCE: Duration = Duration::from_secs(60);

fn demo(spliced: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_splice-bench"));
    command
        .args(["demo", "--only", "spliced copy", "--rounds", "1"])
        .arg("--spliced")
        .arg(spliced);
    command
}

fn run(spliced: &Path) -> (Output, String) {
    let output = demo(spliced).output().expect("the bench has been built");
    let text = [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat();
    (output, text)
}

/// Not a test of its own: a relay for the others.
#[test]
#[ignore = "the child's part of the other tests"]
fn play_spliced() {
    play();
}

#[test]
fn a_sound_relay_passes() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("sound").expect("a directory");
    let (output, text) = run(&sound(&scratch, ""));
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("CPU s/GB") && text.contains("spliced copy"),
        "{text}"
    );
    assert!(!text.contains("FAILED"), "{text}");
    // What is asked of spliced is the business of `make bench-check`.
    assert!(!text.contains("asked"), "{text}");
}

#[test]
fn the_default_engine_has_a_verdict_and_a_connection_that_moves() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let scratch = Scratch::new("moving").expect("a directory");
    let output = Command::new(env!("CARGO_BIN_EXE_splice-bench"))
        .args(["demo", "--only", "auto,socat", "--rounds", "1", "--spliced"])
        .arg(sound(&scratch, ""))
        .output()
        .expect("the bench has been built");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{output:?}");
    let engines: Vec<&str> = text
        .lines()
        .skip_while(|line| !line.contains("One live connection"))
        .filter_map(|line| line.split_whitespace().next())
        .filter(|word| ["copy", "segment"].contains(word))
        .collect();
    assert_eq!(engines, ["copy", "segment", "segment"], "{text}");
    let counted = text.lines().find(|line| line.starts_with("What became of"));
    assert!(
        counted.is_some_and(|line| line.contains("translated ")),
        "{text}"
    );
    // socat may be missing on this machine, and nobody else is there to be held against.
    let verdict = text.contains("1 rounds are too few for a verdict");
    assert_eq!(verdict, netlab::program("socat").is_some(), "{text}");
}

#[test]
fn one_changed_bit_is_a_mismatch() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("spoiled").expect("a directory");
    let (output, text) = run(&sound(&scratch, &format!("{SPOIL}=1")));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("spliced copy FAILED: the bytes that arrived are not those sent"),
        "{text}"
    );
}

#[test]
fn an_engine_that_refuses_is_named_with_its_reason() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("refusing").expect("a directory");
    let refusing = script(
        &scratch,
        "echo 'this kernel has no such engine' >&2; exit 2",
    );
    let (output, text) = run(&refusing);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("spliced copy does not take part: this kernel has no such engine"),
        "{text}"
    );
}

#[test]
fn a_relay_that_dies_is_an_error_with_its_last_words() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("dying").expect("a directory");
    let (output, text) = run(&script(&scratch, "echo 'out of luck' >&2; exit 1"));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("spliced copy ended at once") && text.contains("out of luck"),
        "{text}"
    );
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("interrupted").expect("a directory");
    let mut command = demo(&sound(&scratch, ""));
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = Process::spawn(&mut command).expect("the bench has been built");
    let lines = BufReader::new(process.child_mut().stderr.take().expect("it is piped")).lines();
    let started = lines
        .map_while(Result::ok)
        .find(|line| line.starts_with("round 1"));
    assert!(started.is_some(), "the demo got to its first round");

    process.signal(Signal::INT).expect("it still runs");
    let status = process
        .wait_at_most(PATIENCE)
        .expect("it is a child")
        .expect("it ends");
    assert!(!status.success());
    assert_eq!(left_behind_by(process.id()), Vec::<String>::new());
}
