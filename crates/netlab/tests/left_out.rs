//! What `make test` says at its end about tests that it left out.

use std::env;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use netlab::{Scratch, present};

/// Set for the copies of this program that play the tests which are left out.
const ROLE: &str = "NETLAB_TEST_LEFT_OUT";

/// Not a test of its own.
#[test]
fn asks_for_what_nobody_has() {
    if env::var_os(ROLE).is_some() {
        for _ in 0..2 {
            assert!(!present("unicorn", Some("no unicorn".into())));
        }
    }
}

/// Not a test of its own.
#[test]
#[ignore = "a process that another test starts"]
fn is_never_run() {
    unreachable!("it is ignored");
}

/// `scripts/test` with a cargo that runs the two tests above.
fn run(scratch: &Scratch, require: &str) -> (Output, String) {
    let this = env::current_exe().expect("this program");
    let this = this.display();
    let script =
        format!("#!/bin/sh\nexec '{this}' --exact asks_for_what_nobody_has is_never_run\n");
    let cargo = scratch.write("cargo", &script).expect("a script");
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("chmod");
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test"))
        .env("CARGO", &cargo)
        .env("SPLICED_REQUIRE", require)
        .env(ROLE, "")
        .output()
        .expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (output, text)
}

#[test]
fn tests_that_were_left_out_are_counted_at_the_end_by_reason() {
    let scratch = Scratch::new("left-out").expect("a directory");
    let (output, text) = run(&scratch, "");
    assert!(output.status.success(), "{output:?}");
    let end = text.split_once("left out: ").expect("an end").1;
    let lines: Vec<_> = end.lines().map(str::trim).collect();
    assert_eq!(
        lines,
        [
            "2 tests",
            "1 ignored: a process that another test starts",
            "1 skipped: no unicorn",
        ]
    );
}

#[test]
fn a_test_that_must_not_be_skipped_fails_and_the_others_are_counted() {
    let scratch = Scratch::new("required").expect("a directory");
    for require in ["all", "unicorn"] {
        let (output, text) = run(&scratch, require);
        assert!(!output.status.success(), "{output:?}");
        assert!(text.contains("which SPLICED_REQUIRE names"), "{text}");
        let end = text.split_once("left out: ").expect("an end").1;
        assert!(end.starts_with("1 test\n"), "{text}");
        assert!(!end.contains("unicorn"), "{text}");
    }
}

/// With the umask of somebody who hides new files, set by a shell: it belongs to the whole process.
#[test]
fn other_users_can_read_a_scratch_directory() {
    if env::var_os(ROLE).is_none() {
        let done = Command::new("sh")
            .args(["-c", "umask 077; exec \"$@\"", "sh"])
            .arg(env::current_exe().expect("this program"))
            .args(["--exact", "other_users_can_read_a_scratch_directory"])
            .env(ROLE, "")
            .output()
            .expect("it starts");
        assert!(done.status.success(), "{done:?}");
        return;
    }
    let scratch = Scratch::new("readable").expect("a directory");
    let file = scratch.write("a", "b").expect("a file");
    let mode = |path| {
        fs::metadata(path)
            .expect("its metadata")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(scratch.path()), 0o755);
    assert_eq!(mode(&file), 0o644);
}
