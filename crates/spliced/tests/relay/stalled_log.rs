//! Stalled readers of logs and full disks: neither may block traffic or shutdown.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::net::TcpStream;
use std::process::{ChildStderr, ChildStdout, Stdio};
use std::thread;
use std::time::Instant;

use netlab::{Need, Process, Scratch, available, uninterrupted};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::pipe::fcntl_setpipe_size;
use rustix::process::Signal;

use crate::log::{Log, entries};
use crate::patience::{PATIENCE, until};
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, command};
use crate::server::{Server, ask};

/// Enough lines to fill a small pipe several times.
const SOME_CLIENTS: u64 = 200;
/// More than the lines that may wait (16 Ki) and those in a small pipe.
const TOO_MANY_CLIENTS: u64 = 17_000;
/// The smallest capacity of a pipe.
const PIPE_BYTES: usize = 4096;

/// A relay that logs a line for each connection to a stderr that nobody reads.
fn with_stderr_unread(server: &str) -> (Process, BufReader<ChildStderr>, String) {
    let arguments = ["relay", "127.0.0.1:0", server, "--log", "debug"];
    let mut command = command(&arguments);
    let mut process =
        Process::spawn(command.stdin(Stdio::null()).stderr(Stdio::piped())).expect("it starts");
    let stderr = process.child_mut().stderr.take().expect("its stderr");
    let mut stderr = BufReader::with_capacity(1, stderr);
    let mut line = String::new();
    while !line.contains("listening on ") {
        line.clear();
        stderr.read_line(&mut line).expect("where it listens");
    }
    let (_, after) = line.split_once("listening on ").expect("found above");
    let (address, _) = after.split_once(", ").expect("where it listens");
    fcntl_setpipe_size(stderr.get_ref(), PIPE_BYTES).expect("F_SETPIPE_SZ");
    (process, stderr, address.into())
}

#[test]
fn a_stalled_stderr_blocks_neither_traffic_nor_shutdown() {
    let server = Server::new().answering();
    let (mut process, stderr, address) = with_stderr_unread(&server.address);
    for number in 0..SOME_CLIENTS {
        ask(&Peer::connect(&address), number, 10, 10);
    }
    process.signal(Signal::TERM).expect("it runs");
    let status = process.wait_at_most(PATIENCE).expect("wait");
    assert_eq!(status.expect("it ends").code(), Some(0));
    drop(stderr);
}

#[test]
fn a_late_reader_of_stderr_gets_every_line() {
    let server = Server::new().answering();
    let (process, mut stderr, address) = with_stderr_unread(&server.address);
    for number in 0..SOME_CLIENTS {
        ask(&Peer::connect(&address), number, 10, 10);
    }
    let mut text = String::new();
    while (text.matches(" ended: ").count() as u64) < SOME_CLIENTS {
        let read = stderr.read_line(&mut text).expect("a line");
        assert!(read > 0, "it ends too early: {text}");
    }
    for number in 1..=SOME_CLIENTS {
        assert!(
            text.contains(&format!("connection {number} ended: ")),
            "no {number} in {text}"
        );
    }
    process.signal(Signal::TERM).expect("it runs");
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("the rest");
    assert!(rest.contains("no longer accepting"), "{rest}");
}

#[test]
fn lines_lost_on_stderr_are_counted_where_they_are_missing() {
    let started = Instant::now();
    let (process, mut stderr, address) = with_stderr_unread("127.0.0.1:1");
    for _ in 0..TOO_MANY_CLIENTS {
        is_reset(&address);
    }
    let mut text = String::new();
    let lost: u64 = loop {
        let mut line = String::new();
        assert!(stderr.read_line(&mut line).expect("a line") > 0);
        text.push_str(&line);
        if line.ends_with(" lines were lost here: stderr was not being read\n") {
            let number = line.split_once(" WARN ").map(|(_, words)| words);
            let number = number.and_then(|words| words.split(' ').next()?.parse().ok());
            break number.expect("a number");
        }
    };
    process.signal(Signal::TERM).expect("it runs");
    stderr.read_to_string(&mut text).expect("the rest");
    assert!(text.contains("no longer accepting"));
    // Each connection has a line; warnings are limited to one a second.
    let missing = TOO_MANY_CLIENTS - text.matches(" ended: ").count() as u64;
    let most = missing + 1 + started.elapsed().as_secs();
    assert!(
        (missing..=most).contains(&lost),
        "{lost} of {missing} to {most}"
    );
}

/// A client without a target. The reset may arrive before connect(2) returns.
fn is_reset(address: &str) {
    let outcome = TcpStream::connect(address).and_then(|mut client| {
        // This fails if the reset was faster.
        let _ = client.set_read_timeout(Some(PATIENCE));
        uninterrupted(|| client.read(&mut [0]))
    });
    let error = outcome.expect_err("nothing else");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
}

/// A relay with its access log on a standard output that nobody reads, and entries of `clients` clients.
fn with_stdout_unread(clients: u64, options: &[&str]) -> (Relay, ChildStdout) {
    // Without a target each client is cheap.
    let arguments = ["relay", "127.0.0.1:0", "127.0.0.1:1", "--access-log", "-"];
    let mut command = command(&[&arguments, options].concat());
    let mut relay = Relay::spawn(command.stdout(Stdio::piped()));
    let stdout = relay.take_stdout();
    fcntl_setpipe_size(&stdout, PIPE_BYTES).expect("F_SETPIPE_SZ");
    for _ in 0..clients {
        is_reset(&relay.address);
    }
    (relay, stdout)
}

#[test]
fn dropped_log_lines_are_counted_and_reported() {
    const CLIENTS: u64 = TOO_MANY_CLIENTS;
    let (mut relay, mut stdout) = with_stdout_unread(CLIENTS, &[]);
    let reader = thread::spawn(move || {
        let mut text = String::new();
        stdout.read_to_string(&mut text).expect("its stdout");
        text
    });
    let line = relay.wait_logged("is being written again");
    is_reset(&relay.address);
    relay.terminate();
    let entries = entries(&reader.join().expect("no panic"));
    let (_, lost) = line.split_once("written again; ").expect("a count");
    let lost: u64 = lost
        .split(' ')
        .find_map(|word| word.parse().ok())
        .expect("a number");
    assert!(lost > 0);
    assert_eq!(entries.len() as u64 + lost, CLIENTS + 1);
    assert_eq!(entries.last().expect("an entry")["id"], CLIENTS + 1);
}

#[test]
fn a_stalled_log_delays_shutdown_at_most_by_the_drain_timeout() {
    let options = ["--drain-timeout", "3s"];
    let (mut relay, stdout) = with_stdout_unread(SOME_CLIENTS, &options);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_end().code(), Some(0));
    let line = relay.wait_logged("its reader does not read");
    assert!(line.contains("(standard output) lost its last"), "{line}");
    drop(stdout);
}

#[test]
fn a_fifo_works_as_log_with_a_late_and_stalling_reader() {
    let scratch = Scratch::new("fifo").expect("a directory");
    let log = Log::below(&scratch);
    mknodat(CWD, &log.path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("mkfifo");
    let server = Server::new().answering();
    let options = ["--access-log", &log.path];
    let mut relay = Relay::to(&server.address, &options);
    for number in 0..SOME_CLIENTS {
        ask(&Peer::connect(&relay.address), number, 10, 10);
    }
    let mut lines = BufReader::with_capacity(1, File::open(&log.path).expect("the FIFO"));
    fcntl_setpipe_size(lines.get_ref(), PIPE_BYTES).ok();
    let mut text = String::new();
    for _ in 0..SOME_CLIENTS {
        lines.read_line(&mut text).expect("a line");
    }
    assert_eq!(entries(&text).len() as u64, SOME_CLIENTS);
    for number in 0..SOME_CLIENTS {
        ask(&Peer::connect(&relay.address), number, 10, 10);
    }
    relay.signal(Signal::TERM);
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("the rest");
    assert_eq!(entries(&rest).len() as u64, SOME_CLIENTS);
    assert_eq!(relay.wait_end().code(), Some(0));
}

/// Checks that these files contain the complete entries of the first `clients` connections.
fn check_complete(files: &[&str], clients: u64) {
    let text: String = files
        .iter()
        .map(|path| fs::read_to_string(path).expect("a log"))
        .collect();
    let ids: Vec<_> = entries(&text)
        .iter()
        .filter_map(|entry| entry["id"].as_u64())
        .collect();
    assert_eq!(ids, (1..=clients).collect::<Vec<_>>());
}

#[test]
fn a_log_at_its_size_limit_has_whole_lines_and_the_next_file_the_rest() {
    /// Neither a multiple of an entry nor of a page.
    const MOST_BYTES: u64 = 5001;
    let scratch = Scratch::new("limited").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new().answering();
    let mut command = Process::command("prlimit");
    command
        .args([&format!("--fsize={MOST_BYTES}"), "--", BINARY, "relay"])
        .args(["127.0.0.1:0", &server.address, "--access-log", &log.path])
        .env_remove("SPLICED_LOG");
    let mut relay = Relay::spawn(&mut command);
    const CLIENTS: u64 = 25;
    for number in 0..CLIENTS {
        ask(&Peer::connect(&relay.address), number, 10, 10);
    }
    let line = relay.wait_logged("cannot be written");
    assert!(line.contains(&log.path), "{line}");
    assert!(log.entries().len() < CLIENTS as usize);
    let renamed = format!("{}.1", log.path);
    fs::rename(&log.path, &renamed).expect("renamed");
    relay.signal(Signal::USR1);
    let line = relay.wait_logged("is being written again");
    assert!(line.contains("no line was lost"), "{line}");
    relay.terminate();
    check_complete(&[&renamed, &log.path], CLIENTS);
    assert_eq!(relay.lines_logged("cannot be written"), 1);
}

#[test]
fn a_full_disk_loses_no_line_if_space_is_freed() {
    if !available(Need::Netns) {
        return;
    }
    const CLIENTS: u64 = 100;
    let scratch = Scratch::new("disk").expect("a directory");
    let server = Server::new().answering();
    let script = r#"mount -t tmpfs -o size=64k tmpfs "$0" && dd if=/dev/zero of="$0/filler" bs=4k \
        count=12 status=none && exec "$@""#;
    let mut command = Process::command("unshare");
    command
        .args(["--mount", "sh", "-c", script])
        .arg(scratch.path())
        .args([
            BINARY,
            "relay",
            "127.0.0.1:0",
            &server.address,
            "--access-log",
        ])
        .arg(scratch.path().join("log"))
        .env_remove("SPLICED_LOG");
    let mut relay = Relay::spawn(&mut command);
    let disk = format!("/proc/{}/root{}", relay.id(), scratch.path().display());
    for number in 0..CLIENTS {
        ask(&Peer::connect(&relay.address), number, 10, 10);
    }
    relay.wait_logged("No space left on device");
    fs::remove_file(format!("{disk}/filler")).expect("the filler");
    let line = relay.wait_logged("is being written again");
    assert!(line.contains("no line was lost"), "{line}");
    let path = format!("{disk}/log");
    until("all is written", || {
        let text = fs::read_to_string(&path).expect("the log");
        text.matches('\n').count() as u64 == CLIENTS
    });
    check_complete(&[&path], CLIENTS);
    relay.terminate();
}

#[test]
fn a_full_disk_does_not_delay_shutdown_and_the_loss_is_reported() {
    const CLIENTS: u64 = 20;
    let server = Server::new().answering();
    let options = ["--access-log", "/dev/full", "--drain-timeout", "1h"];
    let mut relay = Relay::to(&server.address, &options);
    for number in 0..CLIENTS {
        ask(&Peer::connect(&relay.address), number, 10, 10);
    }
    relay.terminate();
    relay.wait_logged(&format!(
        "lost its last {CLIENTS} lines: it cannot be written"
    ));
}
