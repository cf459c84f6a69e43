//! How `make soak` ends.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use netlab::Scratch;

/// `scripts/soak` for so many minutes, with a cargo that builds, and does `body` where `scripts/test` has it build.
fn soak(minutes: &str, body: &str) -> (Output, String) {
    let scratch = Scratch::new("soak").expect("a directory");
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--message-format*) ;; *--no-run*) exit 0 ;; esac\n{body}\n"
    );
    let cargo = scratch.write("cargo", &script).expect("a script");
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("chmod");
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let output = Command::new("scripts/soak")
        .arg(minutes)
        .current_dir(root)
        .env("CARGO", &cargo)
        .output()
        .expect("it starts");
    let text = [&output.stdout, &output.stderr]
        .map(|bytes| String::from_utf8_lossy(bytes))
        .concat();
    (output, text)
}

#[test]
fn it_ends_with_the_first_failure_and_shows_it() {
    let (output, text) = soak("30", "echo 'byte 7 is wrong' >&2; exit 101");
    assert_eq!(output.status.code(), Some(1), "{text}");
    for part in ["byte 7 is wrong", "libraries failed with status 101"] {
        assert!(text.contains(part), "no {part:?} in {text}");
    }
}

#[test]
fn it_ends_well_when_its_time_is_over() {
    let (output, text) = soak("0", "exit 101");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("nothing found in 0 minutes"), "{text}");
}
