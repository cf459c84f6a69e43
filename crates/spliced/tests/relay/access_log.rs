//! The access log: one entry for every connection, and its fields.

mod kinds;
mod receivers;

use std::fs;
use std::io::Read;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use netlab::Scratch;
use rustix::process::Signal;
use serde_json::Value;

use crate::log::{Log, entries};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{Peer, exchange};
use crate::relay::{CUT_SHORT, Relay, command};
use crate::server::{Server, ask};
use crate::usage::failure;

const FIELDS: [&str; 14] = [
    "backend",
    "client",
    "client_to_target_bytes",
    "duration_ms",
    "engine",
    "id",
    "listener",
    "outcome",
    "route",
    "server",
    "target",
    "target_to_client_bytes",
    "time",
    "why_engine",
];

const MANY_ENTRIES: u64 = 500;

fn check_fields(entry: &Value) {
    let object = entry.as_object().expect("an object");
    let mut names: Vec<_> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, FIELDS);
    let time = entry["time"].as_str().expect("a time");
    let time = humantime::parse_rfc3339(time).expect("RFC 3339");
    let age = SystemTime::now().duration_since(time).expect("in the past");
    assert!(age < Duration::from_secs(600), "{age:?} old");
}

#[test]
fn every_field_is_correct_and_the_byte_counts_are_exact() {
    const THERE: u64 = 1_234_567;
    const BACK: u64 = 2_345_678;
    /// The minimum duration of the connection.
    const LASTS: Duration = Duration::from_millis(50);
    let scratch = Scratch::new("fields").expect("a directory");
    for (engine, used, why) in [
        ("auto", "pipe", "bulk"),
        ("copy", "copy", "asked for by name"),
        ("pipe", "pipe", "asked for by name"),
    ] {
        let log = Log::below(&scratch);
        let server = Server::new();
        let options = ["--engine", engine, "--access-log", &log.path];
        let start = Instant::now();
        let mut relay = Relay::between(":0", &server.address, &options);
        let client = Peer::connect(&format!("127.0.0.1:{}", relay.port()));
        let far = server.accept();
        thread::sleep(LASTS);
        exchange(&client, &far, 30, THERE, BACK);
        relay.terminate();
        let whole = start.elapsed();
        let entries = log.entries();
        let [entry] = &entries[..] else {
            panic!("one connection, {entries:?}");
        };
        check_fields(entry);
        assert_eq!(entry["id"], 1);
        // The address as the client sees it, not the IPv4-mapped one of a dual-stack socket.
        assert_eq!(entry["client"], client.local_address());
        assert_eq!(entry["target"], server.address);
        assert_eq!(entry["client_to_target_bytes"], THERE);
        assert_eq!(entry["target_to_client_bytes"], BACK);
        assert_eq!(entry["outcome"], "end of stream");
        // The connection may live long enough for segment.
        let (used, why) = if engine == "auto" && entry["engine"] == "segment" {
            ("segment", "translate")
        } else {
            (used, why)
        };
        assert_eq!(entry["engine"], used);
        let reason = entry["why_engine"].as_str().expect("a reason");
        assert!(reason.contains(why), "{reason}");
        let duration = entry["duration_ms"].as_f64().expect("a number");
        assert!(duration >= LASTS.as_secs_f64() * 1e3, "{duration}");
        assert!(
            duration <= whole.as_secs_f64() * 1e3,
            "{duration} of {whole:?}"
        );
        fs::remove_file(&log.path).expect("the log");
    }
}

#[test]
fn a_file_is_appended_to() {
    let scratch = Scratch::new("append").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new().answering();
    for number in 0..3 {
        let mut relay = Relay::to(&server.address, &["--access-log", &log.path]);
        ask(&Peer::connect(&relay.address), number, 10, 20);
        relay.terminate();
    }
    assert_eq!(log.entries().len(), 3);
}

#[test]
fn an_entry_is_written_as_soon_as_its_connection_has_ended() {
    let scratch = Scratch::new("soon").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new().answering();
    let relay = Relay::to(&server.address, &["--access-log", &log.path]);
    for number in 0..5 {
        ask(&Peer::connect(&relay.address), number, 10, 20);
        until("the entry is there", || {
            let text = fs::read_to_string(&log.path).expect("the log");
            text.matches('\n').count() as u64 == number + 1
        });
    }
}

#[test]
fn a_dash_means_standard_output() {
    let server = Server::new().answering();
    let mut command = command(&["relay", "127.0.0.1:0", &server.address, "--access-log", "-"]);
    let mut relay = Relay::spawn(command.stdout(Stdio::piped()));
    for number in 0..3 {
        ask(&Peer::connect(&relay.address), number, 100 * number, 7);
    }
    let mut stdout = relay.take_stdout();
    relay.terminate();
    let mut text = String::new();
    stdout.read_to_string(&mut text).expect("its stdout");
    let entries = entries(&text);
    assert_eq!(entries.len(), 3);
    for (entry, number) in entries.iter().zip(0..) {
        check_fields(entry);
        // The conversation starts with three numbers of eight bytes.
        assert_eq!(entry["client_to_target_bytes"], 24 + 100 * number);
        assert_eq!(entry["target_to_client_bytes"], 7);
    }
}

#[test]
fn a_log_that_cannot_be_opened_keeps_the_relay_from_starting() {
    let scratch = Scratch::new("closed").expect("a directory");
    let path = scratch.path().join("nowhere/access.log");
    let path = path.display().to_string();
    let arguments = ["relay", "127.0.0.1:0", "127.0.0.1:1", "--access-log", &path];
    let sentence = failure(&mut command(&arguments), 1);
    for part in [&path, "cannot be opened", "check the path"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

#[test]
fn a_log_that_cannot_be_written_does_not_stop_the_relay() {
    let server = Server::new().answering();
    let mut relay = Relay::to(&server.address, &["--access-log", "/dev/full"]);
    for number in 0..20 {
        ask(&Peer::connect(&relay.address), number, 1000, 1000);
    }
    let line = relay.wait_logged("the access log cannot be written");
    assert!(line.contains("make room"), "{line}");
    relay.terminate();
    assert_eq!(server.finish(), (0..20).collect::<Vec<_>>());
}

#[test]
fn the_log_is_complete_after_a_signal_under_load() {
    const CLIENTS: u64 = 200;
    let scratch = Scratch::new("complete").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let options = ["--threads", "3", "--access-log", &log.path];
    let mut relay = Relay::to(&server.address, &options);
    let answering = server.answering();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| Peer::connect(&relay.address))
        .collect();
    thread::scope(|scope| {
        for (client, number) in clients.iter().zip(0..) {
            if number == CLIENTS / 2 {
                relay.signal(Signal::TERM);
            }
            if number % 2 == 0 {
                scope.spawn(move || ask(client, number, 1000 + number, 2000 + number));
            } else {
                ask(client, number, 1000 + number, 2000 + number);
            }
        }
    });
    assert_eq!(relay.wait_end().code(), Some(0));
    assert_eq!(answering.finish(), (0..CLIENTS).collect::<Vec<_>>());
    let entries = log.entries();
    let ids: Vec<_> = entries
        .iter()
        .filter_map(|entry| entry["id"].as_u64())
        .collect();
    assert_eq!(ids, (1..=CLIENTS).collect::<Vec<_>>());
    let mut moved: Vec<_> = entries
        .iter()
        .map(|entry| {
            check_fields(entry);
            (
                entry["client_to_target_bytes"].as_u64(),
                entry["target_to_client_bytes"].as_u64(),
            )
        })
        .collect();
    moved.sort_unstable();
    let expected: Vec<_> = (0..CLIENTS)
        .map(|number| (Some(24 + 1000 + number), Some(2000 + number)))
        .collect();
    assert_eq!(moved, expected);
}

#[test]
fn a_connection_that_a_signal_resets_has_its_entry() {
    let scratch = Scratch::new("cut").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let options = ["--drain-timeout", "0s", "--access-log", &log.path];
    let mut relay = Relay::to(&server.address, &options);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    client.send(Payload::new(31), 0, 4321);
    far.expect(Payload::new(31), 0, 4321);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_end().code(), Some(CUT_SHORT));
    let entries = log.entries();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0]["outcome"], "shutdown");
    assert_eq!(entries[0]["client_to_target_bytes"], 4321);
}

/// A relay whose standard output is a pipe, with more entries to write than fit into it.
fn full_log(server: &str) -> (Relay, impl Read + use<>) {
    let arguments = ["relay", "127.0.0.1:0", server, "--access-log", "-"];
    let mut relay = Relay::spawn(command(&arguments).stdout(Stdio::piped()));
    for number in 0..MANY_ENTRIES {
        ask(&Peer::connect(&relay.address), number, 10, 10);
    }
    let stdout = relay.take_stdout();
    (relay, stdout)
}

#[test]
fn a_late_reader_of_the_log_gets_every_line() {
    let server = Server::new().answering();
    let (mut relay, mut stdout) = full_log(&server.address);
    relay.signal(Signal::TERM);
    relay.wait_logged("no longer accepting");
    assert!(relay.is_running(), "there is more than a pipe holds");
    let mut text = String::new();
    stdout.read_to_string(&mut text).expect("its stdout");
    assert_eq!(relay.wait_end().code(), Some(0));
    assert_eq!(entries(&text).len() as u64, MANY_ENTRIES);
}

#[test]
fn a_stalled_reader_of_the_log_does_not_prevent_shutdown() {
    let server = Server::new().answering();
    let (mut relay, stdout) = full_log(&server.address);
    relay.signal(Signal::TERM);
    relay.wait_logged("no longer accepting");
    // The first signal leaves the relay waiting for its log; the user presses Ctrl-C again.
    relay.signal_until_it_ends(Signal::INT);
    assert_eq!(relay.wait_end().code(), Some(1));
    drop(stdout);
}
