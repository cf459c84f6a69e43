//! The demo notices what is wrong, says what is missing, and cleans up.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use netlab::{Need, Process, Scratch, available};
use rustix::process::Signal;

/// Tells the copy of this program that plays the relay where to listen and where to connect.
const ROUTE: &str = "STAND_IN_ROUTE";
/// Tells it to spoil what it relays.
const SPOIL: &str = "STAND_IN_SPOIL";

/// Long against the whole of a small demo.
const PATIENCE: Duration = Duration::from_secs(60);

/// The offset in each direction of the byte that a spoiling relay changes: past all that is sent
/// before the transfer whose hashes are compared has come to its middle.
const SPOILED_OFFSET: usize = 1 << 20;

/// A script in place of spliced.
fn stand_in(scratch: &Scratch, text: &str) -> PathBuf {
    let path = scratch
        .write("spliced", &format!("#!/bin/sh\n{text}\n"))
        .expect("it is writable");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("it is ours");
    path
}

/// A script that runs [`relay`] in another process.
fn relaying(scratch: &Scratch, environment: &str) -> PathBuf {
    let this = std::env::current_exe().expect("a running program has a path");
    let text = format!(
        "{ROUTE}=\"$2 $3\" {environment} exec {} --exact relay --ignored --nocapture",
        this.display()
    );
    stand_in(scratch, &text)
}

fn demo(spliced: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_splice-bench"));
    command
        .args([
            "demo",
            "--only",
            "spliced copy",
            "--rounds",
            "1",
            "--bytes",
            "2MiB",
        ])
        .args(["--ping-pongs", "50", "--idle-pairs", "5", "--spliced"])
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
fn relay() {
    let Ok(route) = std::env::var(ROUTE) else {
        return;
    };
    let (listen, target) = route.split_once(' ').expect("two addresses");
    let spoil = std::env::var(SPOIL).is_ok();
    for client in TcpListener::bind(listen)
        .expect("a free address")
        .incoming()
        .flatten()
    {
        let server = TcpStream::connect(target).expect("the server listens");
        for stream in [&client, &server] {
            stream.set_nodelay(true).expect("it is TCP");
        }
        for (from, to) in [(&client, &server), (&server, &client)] {
            let ends = [from, to].map(|stream| stream.try_clone().expect("files are left"));
            thread::spawn(move || pump(&ends, spoil));
        }
    }
}

fn pump([from, to]: &[TcpStream; 2], spoil: bool) {
    let (mut from, mut to, mut offset, mut buffer) = (from, to, 0, vec![0; 64 << 10]);
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if spoil && (offset..offset + count).contains(&SPOILED_OFFSET) {
            buffer[SPOILED_OFFSET - offset] ^= 1;
        }
        if to.write_all(&buffer[..count]).is_err() {
            break;
        }
        offset += count;
    }
    let _ = to.shutdown(Shutdown::Write);
}

#[test]
fn a_sound_relay_passes() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("sound").expect("a directory");
    let (output, text) = run(&relaying(&scratch, ""));
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("direct again") && text.contains("MISSED"),
        "{text}"
    );
    assert!(
        !text.contains("MISMATCH") && !text.contains("FAILED"),
        "{text}"
    );
}

#[test]
fn one_changed_bit_is_a_mismatch() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("spoiled").expect("a directory");
    let (output, text) = run(&relaying(&scratch, &format!("{SPOIL}=1")));
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("MISMATCH"), "{text}");
}

#[test]
fn an_engine_that_refuses_is_named_with_its_reason() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("refusing").expect("a directory");
    let refusing = stand_in(
        &scratch,
        "echo 'this kernel has no such engine' >&2; exit 2",
    );
    let (output, text) = run(&refusing);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("spliced copy: this kernel has no such engine"),
        "{text}"
    );
}

#[test]
fn a_relay_that_dies_is_an_error_with_its_last_words() {
    if !available(Need::Netns) {
        return;
    }
    let scratch = Scratch::new("dying").expect("a directory");
    let (output, text) = run(&stand_in(&scratch, "echo 'out of luck' >&2; exit 1"));
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
    let mut command = demo(&relaying(&scratch, ""));
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
    let own = format!("spl-{}-", process.id());
    for directory in [Path::new("/run/netns"), &std::env::temp_dir()] {
        let names = fs::read_dir(directory).expect("it exists").flatten();
        let left: Vec<_> = names
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with(&own))
            .collect();
        assert!(left.is_empty(), "{left:?} in {}", directory.display());
    }
}
