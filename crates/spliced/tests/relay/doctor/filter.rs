//! The report if a seccomp filter forbids a system call, or a call fails as if.

use std::process::Command;

use netlab::{Need, Process, available, present, program};
use rustix::io::Errno;

use super::{refusal, report, verdict};
use crate::relay::BINARY;

/// The doctor with a filter that makes this system call fail with this error.
fn doctor_without(call: u32, errno: Errno) -> Option<Command> {
    without(call, errno, &["doctor", "--json"])
}

/// The program with a filter that makes this system call fail with this error.
fn without(call: u32, errno: Errno, arguments: &[&str]) -> Option<Command> {
    // `prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ...)` with four instructions: load the number of the
    // call; compare; return the error; allow (linux/seccomp.h, linux/filter.h).
    const SCRIPT: &str = r#"
        my ($prctl, $call, $errno) = splice(@ARGV, 0, 3);
        my @filter = (0x20,0,0,0, 0x15,0,1,$call, 0x06,0,0,0x50000|$errno, 0x06,0,0,0x7fff0000);
        my $filter = pack("SCCL" x 4, @filter);
        syscall($prctl+0, 22, 2, pack("Sx6P", 4, $filter)) == 0 or die "prctl: $!";
        exec(@ARGV) or die "exec: $!";
    "#;
    let perl = program("perl").map_or_else(|| Some("no perl".into()), |_| None);
    if !available(Need::Root) || !present("perl", perl) {
        return None;
    }
    let [prctl, call] = [PRCTL, call].map(|number| number.to_string());
    let errno = errno.raw_os_error().to_string();
    let mut command = Process::command("perl");
    command
        .args(["-e", SCRIPT, &prctl, &call, &errno, BINARY])
        .args(arguments)
        .env_remove("SPLICED_LOG");
    Some(command)
}

/// The numbers of system calls: `asm/unistd_64.h` of x86-64, and the table of all newer architectures
/// (`asm-generic/unistd.h`).
const IS_X86: bool = cfg!(target_arch = "x86_64");
const PRCTL: u32 = if IS_X86 { 157 } else { 167 };
const SPLICE: u32 = if IS_X86 { 275 } else { 76 };
/// The same number on every architecture.
const IO_URING_SETUP: u32 = 425;
const BPF: u32 = if IS_X86 { 321 } else { 280 };
const IO_SETUP: u32 = if IS_X86 { 206 } else { 0 };

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
