//! The effect of each signal, from the start of the process on.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use netlab::{Process, Scratch};
use rustix::process::Signal;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::log::Log;
use crate::patience::until;
use crate::peer::Peer;
use crate::relay::{BINARY, Relay, command};
use crate::server::{Server, ask};

/// The tests may run under nohup(1), and children inherit the ignored SIGHUP.
const DEFAULT_HUP: &str = "--default-signal=HUP";

/// The program in a session of its own without a controlling terminal, started by `through`.
fn without_terminal(through: &[&str], server: &str, log: &Log) -> Command {
    let mut command = Process::command("env");
    command
        .args([DEFAULT_HUP, "setsid"])
        .args(through)
        .args([BINARY, "relay", "127.0.0.1:0", server])
        .args(["--access-log", &log.path])
        .env_remove("SPLICED_LOG");
    command
}

/// A terminal, and the program that it controls.
fn with_terminal(server: &str) -> (OwnedFd, Command) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC);
    let terminal = terminal.expect("a terminal");
    grantpt(&terminal).expect("grantpt");
    unlockpt(&terminal).expect("unlockpt");
    let name = ptsname(&terminal, Vec::new()).expect("its name");
    let mut command = Process::command("sh");
    command
        .args(["-c", r#"exec setsid --ctty env "$@" < "$0""#])
        .arg(name.to_str().expect("text"))
        .args([DEFAULT_HUP, BINARY, "relay", "127.0.0.1:0", server])
        .env_remove("SPLICED_LOG");
    (terminal, command)
}

#[test]
fn sigusr1_and_sighup_reopen_a_renamed_log() {
    let scratch = Scratch::new("reopen").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new().answering();
    let mut relay = Relay::spawn(&mut without_terminal(&[], &server.address, &log));
    ask(&Peer::connect(&relay.address), 0, 10, 10);
    for (signal, name) in [(Signal::HUP, "first"), (Signal::USR1, "second")] {
        until("the entry is there", || log.entries().len() == 1);
        let renamed = Log {
            path: scratch.path().join(name).display().to_string(),
        };
        fs::rename(&log.path, &renamed.path).expect("renamed");
        relay.signal(signal);
        until("there is a new one", || {
            fs::exists(&log.path).expect("a look")
        });
        ask(&Peer::connect(&relay.address), 1, 10, 10);
        until("the new one has the entry", || log.entries().len() == 1);
        assert_eq!(renamed.entries().len(), 1);
    }
    relay.wait_logged("was opened again");
    relay.terminate();
    assert_eq!(relay.lines_logged("was opened again"), 2);
}

#[test]
fn a_log_that_cannot_be_reopened_stays_open() {
    let scratch = Scratch::new("stays-open").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new().answering();
    let mut relay = Relay::spawn(&mut without_terminal(&[], &server.address, &log));
    let renamed = Log {
        path: scratch.path().join("renamed").display().to_string(),
    };
    fs::rename(&log.path, &renamed.path).expect("renamed");
    fs::create_dir(&log.path).expect("a directory in its place");
    relay.signal(Signal::USR1);
    let line = relay.wait_logged("cannot be opened again");
    assert!(line.contains(&log.path), "{line}");
    ask(&Peer::connect(&relay.address), 0, 10, 10);
    relay.terminate();
    assert_eq!(renamed.entries().len(), 1);
}

#[test]
fn a_request_to_reopen_is_answered_without_a_log() {
    let server = Server::new().answering();
    let mut relay = Relay::to(&server.address, &[]);
    relay.signal(Signal::USR1);
    relay.wait_logged("no access log");
    ask(&Peer::connect(&relay.address), 0, 10, 10);
    relay.terminate();
}

#[test]
fn a_hangup_of_the_terminal_drains_the_relay() {
    let server = Server::new().answering();
    let (terminal, mut command) = with_terminal(&server.address);
    let mut relay = Relay::spawn(&mut command);
    relay.signal(Signal::HUP);
    relay.wait_logged("no longer accepting");
    assert_eq!(relay.wait_end().code(), Some(0));
    drop(terminal);

    let (terminal, mut command) = with_terminal(&server.address);
    let mut relay = Relay::spawn(&mut command);
    drop(terminal);
    relay.wait_logged("no longer accepting");
    assert_eq!(relay.wait_end().code(), Some(0));
}

#[test]
fn under_nohup_sighup_is_ignored() {
    let scratch = Scratch::new("nohup").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new().answering();
    let mut command = without_terminal(&["nohup"], &server.address, &log);
    let mut relay = Relay::spawn(&mut command);
    assert!(relay.has_in_set("SigIgn", Signal::HUP));
    relay.signal(Signal::HUP);
    relay.signal(Signal::USR1);
    relay.wait_logged("was opened again");
    ask(&Peer::connect(&relay.address), 0, 10, 10);
    relay.terminate();
    assert_eq!(relay.lines_logged("was opened again"), 1);
}

#[test]
fn sigusr2_is_ignored_with_a_log_line_and_sigpipe_without() {
    let server = Server::new().answering();
    let mut relay = Relay::to(&server.address, &[]);
    assert!(relay.has_in_set("SigIgn", Signal::PIPE));
    relay.signal(Signal::USR2);
    relay.wait_logged("SIGUSR2");
    ask(&Peer::connect(&relay.address), 0, 10, 10);
    relay.terminate();
}

#[test]
fn a_signal_during_the_start_ends_the_relay_with_status_0_and_a_log_line() {
    const LAUNCHES: u32 = 30;
    const LONGEST_DELAY: Duration = Duration::from_millis(5);
    let scratch = Scratch::new("start").expect("a directory");
    let socket = scratch.path().join("socket");
    let unix = format!("unix:{}", socket.display());
    for launch in 0..LAUNCHES {
        let listen = if launch % 2 == 0 {
            "127.0.0.1:0"
        } else {
            &unix
        };
        let mut relay = Relay::spawn_silent(&mut command(&["relay", listen, "127.0.0.1:1"]));
        // Before that the kernel applies the default action.
        until("it catches the signal", || {
            relay.has_in_set("SigCgt", Signal::TERM)
        });
        thread::sleep(LONGEST_DELAY * launch / LAUNCHES);
        relay.signal(Signal::TERM);
        assert_eq!(relay.wait_end().code(), Some(0), "launch {launch}");
        let words = ["stopped by SIGTERM", "no longer accepting"];
        let said: usize = words.iter().map(|words| relay.lines_logged(words)).sum();
        assert_eq!(said, 1, "launch {launch}");
        assert!(!socket.exists());
    }
}

/// The doctor has nothing to drain.
#[test]
fn a_signal_kills_the_doctor() {
    let mut doctor = Relay::spawn_silent(command(&["doctor"]).stdout(Stdio::null()));
    until("it catches the signal", || {
        doctor.has_in_set("SigCgt", Signal::TERM)
    });
    doctor.signal(Signal::TERM);
    assert_eq!(doctor.wait_end().signal(), Some(Signal::TERM.as_raw()));
}
