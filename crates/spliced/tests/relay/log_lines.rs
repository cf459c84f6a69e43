//! The lines of the log: what they begin with, and that each event has one.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};

use netlab::{Need, Process, available};
use rustix::fs::fstat;
use rustix::process::Signal;

use crate::patience::PATIENCE;
use crate::peer::Peer;
use crate::proxy::Proxy;
use crate::relay::{Relay, command};

/// Starts `command` with `stderr`, which `JOURNAL_STREAM` names, or something else `beside` it.
fn spawn(command: &mut Command, stderr: OwnedFd, beside: u64) -> Process {
    let stat = fstat(&stderr).expect("fstat");
    let stream = format!("{}:{}", stat.st_dev, stat.st_ino + beside);
    command.env("JOURNAL_STREAM", stream);
    let process = Process::spawn(command.stdin(Stdio::null()).stderr(stderr)).expect("it starts");
    // The command keeps the descriptor open.
    command.stderr(Stdio::null());
    process
}

/// The lines of a relay that has told something of each level.
fn lines(reader: impl Read, stderr: OwnedFd, beside: u64) -> Vec<String> {
    let mut command = command(&["relay", "127.0.0.1:0", "127.0.0.1:1", "--log", "debug"]);
    let mut process = spawn(&mut command, stderr, beside);
    let mut all = Vec::new();
    let mut address = None;
    for line in BufReader::new(reader).lines() {
        let line = line.expect("a line");
        if let Some((_, after)) = line.split_once("listening on ") {
            let (at, _) = after.split_once(", ").expect("where it listens");
            address = Some(at.to_owned());
            Peer::is_reset_by(at);
        }
        if line.contains("connection 1 ended") {
            process.signal(Signal::TERM).expect("it runs");
        }
        all.push(line);
    }
    let status = process.wait_at_most(PATIENCE).expect("wait");
    assert_eq!(status.expect("it ends").code(), Some(0));
    assert!(address.is_some(), "{all:?}");
    all
}

fn pipe() -> (Box<dyn Read>, OwnedFd) {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    (Box::new(reader), writer.into())
}

fn socket() -> (Box<dyn Read>, OwnedFd) {
    let (reader, writer) = UnixStream::pair().expect("a pair");
    (Box::new(reader), writer.into())
}

const EXPECTED: [(&str, &str, &str); 3] = [
    ("<6>", " INFO ", "listening on "),
    ("<4>", " WARN ", "127.0.0.1:1"),
    ("<7>", "DEBUG ", "connection 1 ended"),
];

#[test]
fn the_journal_gets_priorities_instead_of_times_and_levels() {
    for stream in [pipe, socket] {
        let (reader, writer) = stream();
        let lines = lines(reader, writer, 0);
        for line in &lines {
            let rest = ["<4>", "<6>", "<7>"]
                .iter()
                .find_map(|it| line.strip_prefix(it));
            let rest = rest.unwrap_or_else(|| panic!("no priority: {line}"));
            assert!(!rest.starts_with([' ', '2']), "a time or a blank: {line}");
            assert!(!line.contains("INFO") && !line.contains("WARN") && !line.contains("DEBUG"));
        }
        for (prefix, _, words) in EXPECTED {
            let is_it = |line: &&String| line.starts_with(prefix) && line.contains(words);
            assert!(
                lines.iter().any(|line| is_it(&line)),
                "no {words:?} in {lines:?}"
            );
        }
    }
}

#[test]
fn a_stream_that_is_not_the_journals_gets_times_and_levels() {
    let (reader, writer) = pipe();
    let lines = lines(reader, writer, 1);
    for line in &lines {
        assert!(line.starts_with("20"), "no time: {line}");
    }
    for (_, level, words) in EXPECTED {
        let is_it = |line: &String| line.contains(level) && line.contains(words);
        assert!(lines.iter().any(is_it), "no {words:?} in {lines:?}");
    }
}

#[test]
fn the_journal_gets_why_a_start_is_refused_as_errors() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let (mut reader, writer) = pipe();
    let mut process = spawn(&mut command(&["echo", &address]), writer, 0);
    let mut text = String::new();
    reader.read_to_string(&mut text).expect("what it says");
    assert!(
        text.starts_with("<3>spliced: ") && text.contains(&address),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    let status = process.wait_at_most(PATIENCE).expect("wait");
    assert_eq!(status.expect("it ends").code(), Some(1));
}

/// Of so many clients in a row, nearly all are within a second of a warning.
const CLIENTS: usize = 50;

#[test]
fn what_the_rate_limit_has_held_back_is_told_at_the_end() {
    let mut relay = Relay::to("127.0.0.1:1", &[]);
    for _ in 0..CLIENTS {
        Peer::is_reset_by(&relay.address);
    }
    relay.terminate();
    let lines = relay.logged();
    let of_connections = |line: &&String| line.contains("connection ") && line.contains("refused");
    let warned = lines.iter().filter(of_connections).count();
    let counts = lines.iter().filter_map(|line| {
        let (before, _) = line.split_once(" more like it since the last warning)")?;
        let (_, count) = before.rsplit_once('(')?;
        count.parse::<usize>().ok()
    });
    assert_eq!(warned + counts.sum::<usize>(), CLIENTS, "{lines:?}");
    let last = "connections that were reset for want of a target (";
    assert_eq!(relay.lines_logged(last), 1, "{lines:?}");
}

#[test]
fn a_refused_reload_is_one_line() {
    let good = "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\n[[listener.route]]\nbackend = \"b\"\n\
                [backend.b]\nservers = [\"127.0.0.1:1\"]\n";
    let proxy = Proxy::run(good);
    let output = proxy.reload("[[listener]]\n[[backend]]\nname = \"b\"\n");
    let told = String::from_utf8(output.stderr).expect("UTF-8");
    assert!(!output.status.success(), "{told}");
    proxy.relay.signal(Signal::HUP);
    let line = proxy.relay.wait_logged("not reloaded");
    // The log has what people get as several lines.
    assert!(line.matches("proxy.toml:").count() > 1, "{line}");
    assert!(!line.contains("\\n"), "{line}");
    for line in proxy.relay.logged() {
        assert!(line.starts_with("20"), "no time: {line}");
    }
}

/// The commonest cases in which `auto` cannot splice; the remedy is in the line.
#[test]
fn a_start_says_whose_connections_will_be_copied() {
    if !available(Need::Root) || !available(Need::Bpf) {
        return;
    }
    let line = |listen: &str, server: &str| {
        let mut relay = Relay::spawn_silent(&mut command(&["relay", listen, server]));
        relay.wait_logged("control socket");
        let lines = relay.logged();
        relay.terminate();
        let told = lines
            .into_iter()
            .filter(|line| line.contains(" are copied and not spliced: "));
        let told = told.map(|line| line.split_once("INFO ").expect("a level").1.to_owned());
        told.collect::<Vec<_>>()
    };
    let remedy = "so that segment sizes differ; engine = \"segment\" announces sizes that fit";
    // TEST-NET-1 (RFC 5737) is on no host.
    assert_eq!(
        line("127.0.0.1:0", "192.0.2.1:1"),
        [format!(
            "127.0.0.1:0: clients of this host are copied and not spliced: its servers are on other hosts, {remedy}"
        )]
    );
    assert_eq!(
        line("0.0.0.0:0", "127.0.0.1:1"),
        [format!(
            "0.0.0.0:0: clients of other hosts are copied and not spliced: its servers are on this host, {remedy}"
        )]
    );
    assert_eq!(line("127.0.0.1:0", "127.0.0.1:1"), [] as [String; 0]);
    assert_eq!(line("0.0.0.0:0", "192.0.2.1:1"), [] as [String; 0]);
}
