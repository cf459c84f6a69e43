//! The report if a seccomp filter forbids a system call, or a call fails as if.

use std::process::Command;

use netlab::{Need, Process, available};
use rustix::io::Errno;

use super::{refusal, report, verdict};
use crate::forbidden_call::{BPF, ForbiddenCall, IO_SETUP, IO_URING_SETUP, SPLICE};

/// The doctor with a filter that makes this system call fail with this error.
fn doctor_without(call: u32, errno: Errno) -> Option<Command> {
    without(call, errno, &["doctor", "--json"])
}

/// The program with a filter that makes this system call fail with this error.
fn without(call: u32, errno: Errno, arguments: &[&str]) -> Option<Command> {
    let mut command = ForbiddenCall::any(call, errno).spliced(Process::command("perl"))?;
    command.args(arguments);
    Some(command)
}

#[test]
fn a_filter_that_forbids_bpf_is_named() {
    let Some(mut command) = doctor_without(BPF, Errno::PERM) else {
        return;
    };
    if !available(Need::Bpf) {
        return;
    }
    let report = report(&mut command);
    assert_eq!(verdict(&report, "copy"), "yes");
    assert_eq!(verdict(&report, "pipe"), "yes");
    let (reason, remedy) = refusal(&report, "sockmap");
    assert!(reason.contains("seccomp filter forbids bpf(2)"), "{reason}");
    assert!(remedy.contains("allow the system call bpf"), "{remedy}");
}

#[test]
fn a_filter_that_forbids_io_uring_disables_only_uring() {
    let Some(mut command) = doctor_without(IO_URING_SETUP, Errno::PERM) else {
        return;
    };
    let report = report(&mut command);
    assert_eq!(verdict(&report, "copy"), "yes");
    assert_eq!(verdict(&report, "pipe"), "yes");
    let (reason, remedy) = refusal(&report, "uring");
    assert!(
        reason.contains("seccomp filter forbids io_uring(7)"),
        "{reason}"
    );
    assert!(remedy.contains("io_uring_setup"), "{remedy}");
}

#[test]
fn a_relay_reports_that_io_uring_is_forbidden() {
    let Some(mut command) = without(
        IO_URING_SETUP,
        Errno::PERM,
        &["relay", "127.0.0.1:0", "127.0.0.1:1", "--engine", "uring"],
    ) else {
        return;
    };
    let sentence = crate::usage::failure(&mut command, 2);
    for part in [
        "engine uring cannot be used",
        "seccomp filter forbids io_uring(7)",
        "allow the system calls io_uring_setup",
    ] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

#[test]
fn a_filter_that_forbids_splice_disables_only_pipe() {
    let Some(mut command) = doctor_without(SPLICE, Errno::PERM) else {
        return;
    };
    let report = report(&mut command);
    assert_eq!(verdict(&report, "copy"), "yes");
    let (reason, remedy) = refusal(&report, "pipe");
    assert!(reason.contains("not permitted"), "{reason}");
    assert!(remedy.contains("splice(2)"), "{remedy}");
}

#[test]
fn each_cause_that_disables_aio_is_named() {
    for (errno, why, remedy) in [
        (Errno::NOSYS, "no Linux AIO", "CONFIG_AIO"),
        (Errno::AGAIN, "used up fs.aio-max-nr", "raise it"),
        (Errno::PERM, "not permitted", "allow io_setup(2)"),
    ] {
        let Some(mut command) = doctor_without(IO_SETUP, errno) else {
            return;
        };
        let report = report(&mut command);
        assert_eq!(verdict(&report, "copy"), "yes");
        let told = refusal(&report, "aio");
        assert!(told.0.contains(why) && told.1.contains(remedy), "{told:?}");
    }
}
