//! `scripts/test`: what it does with tests that fail, and what it says at its end.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, process, thread};

use netlab::{Scratch, present};

/// Set for the copies of this program that play the tests below: a directory of their own.
const ROLE: &str = "NETLAB_TEST_SUITE";

fn role() -> Option<PathBuf> {
    env::var_os(ROLE).map(PathBuf::from)
}

/// The first time that the test `name` asks in its directory.
fn is_first(directory: &Path, name: &str) -> bool {
    File::create_new(directory.join(name)).is_ok()
}

/// Not tests of their own: they do what their names say in a run of this program with [`ROLE`].
mod played {
    use super::*;

    #[test]
    fn passes() {}

    #[test]
    fn asks_for_what_nobody_has() {
        if role().is_some() {
            for _ in 0..2 {
                assert!(!present("unicorn", Some("no unicorn".into())));
            }
        }
    }

    #[test]
    #[ignore = "a process that another test starts"]
    fn is_never_run() {
        unreachable!("it is ignored");
    }

    #[test]
    fn fails_always() {
        assert!(role().is_none(), "as always");
    }

    #[test]
    fn hangs_once() {
        if role().is_some_and(|directory| is_first(&directory, "hangs")) {
            loop {
                thread::park();
            }
        }
    }

    #[test]
    fn dies_once() {
        if role().is_some_and(|directory| is_first(&directory, "dies")) {
            process::exit(7);
        }
    }

    macro_rules! fails_once {
        ($($name:ident)*) => {
            $(#[test]
            fn $name() {
                let failed = role().is_some_and(|directory| is_first(&directory, stringify!($name)));
                assert!(!failed, "for the first time");
            })*
        };
    }
    fails_once! { fails_once fails_once_2 fails_once_3 }
}

/// Two flaky tests are enough here, and five seconds are long.
const POLICY: &str = r#"
limit_seconds = 5
retries = 2
flaky_at_most = 2
[[alone]]
tests = "netlab/suite played::fails_once_2"
why = "shown"
"#;

struct Ran {
    passed: bool,
    text: String,
}

impl Ran {
    /// What the last lines say.
    fn end(&self) -> Vec<&str> {
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        let ends = |line: &&str| line.starts_with("failed, ") || line.starts_with("flaky: ");
        let begin = lines
            .iter()
            .position(ends)
            .or_else(|| lines.iter().position(|line| line.starts_with("left out: ")));
        lines[begin.expect("an end")..].to_vec()
    }
}

/// `scripts/test` with a cargo whose tests are those of [`played`] with these names.
fn run(options: &[&str], names: &[&str], require: &str) -> Ran {
    let scratch = Scratch::new("suite").expect("a directory");
    let artifact = serde_json::json!({
        "reason": "compiler-artifact",
        "manifest_path": concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        "target": {"kind": ["test"], "name": "suite"},
        "profile": {"test": true},
        "executable": env::current_exe().expect("this program"),
    });
    let cargo = scratch
        .write("cargo", &format!("#!/bin/sh\necho '{artifact}'\n"))
        .expect("a script");
    fs::set_permissions(&cargo, Permissions::from_mode(0o755)).expect("chmod");
    let policy = scratch.write("tests.toml", POLICY).expect("a file");
    let names = names.iter().map(|name| format!("played::{name}"));
    let output = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/test"))
        .args(options)
        .args(["--", "--exact"])
        .args(names)
        .env("CARGO", &cargo)
        .env("TESTS_TOML", &policy)
        .env("SPLICED_REQUIRE", require)
        .env(ROLE, scratch.path())
        .output()
        .expect("it starts");
    Ran {
        passed: output.status.success(),
        text: String::from_utf8_lossy(&output.stdout).into_owned(),
    }
}

#[test]
fn tests_that_were_left_out_are_counted_at_the_end_by_reason() {
    let ran = run(&[], &["asks_for_what_nobody_has", "is_never_run"], "");
    assert!(ran.passed, "{}", ran.text);
    let expected = [
        "left out: 2 tests",
        "1 ignored: a process that another test starts",
        "1 skipped: no unicorn",
        "tests: 1 passed, 0 failed, 2 skipped",
    ];
    assert_eq!(ran.end(), expected, "{}", ran.text);
}

#[test]
fn a_test_that_must_not_be_skipped_fails() {
    for require in ["all", "unicorn"] {
        let ran = run(&[], &["asks_for_what_nobody_has", "is_never_run"], require);
        assert!(!ran.passed, "{}", ran.text);
        assert!(
            ran.text.contains("which SPLICED_REQUIRE names"),
            "{}",
            ran.text
        );
        let expected = [
            "failed, and failed alone: 1",
            "netlab/suite played::asks_for_what_nobody_has",
            "left out: 1 test",
            "1 ignored: a process that another test starts",
            "tests: 0 passed, 1 failed, 1 skipped",
        ];
        assert_eq!(ran.end(), expected, "{}", ran.text);
    }
}

#[test]
fn a_test_that_fails_once_is_flaky_and_the_run_passes() {
    let ran = run(&[], &["passes", "fails_once"], "");
    assert!(ran.passed, "{}", ran.text);
    assert!(ran.text.contains("for the first time"), "{}", ran.text);
    let expected = [
        "flaky: failed once, and passed alone: 1",
        "netlab/suite played::fails_once (failed)",
        "left out: no test",
        "tests: 2 passed, 0 failed, 0 skipped",
    ];
    assert_eq!(ran.end(), expected, "{}", ran.text);
    let strict = run(&["--strict"], &["passes", "fails_once"], "");
    assert!(!strict.passed, "{}", strict.text);
}

#[test]
fn a_test_that_fails_always_fails_the_run_after_the_others() {
    let ran = run(&[], &["fails_always", "passes", "fails_once"], "");
    assert!(!ran.passed, "{}", ran.text);
    assert_eq!(ran.text.matches("as always").count(), 3, "{}", ran.text);
    let expected = [
        "failed, and failed alone: 1",
        "netlab/suite played::fails_always",
        "flaky: failed once, and passed alone: 1",
        "netlab/suite played::fails_once (failed)",
        "left out: no test",
        "tests: 2 passed, 1 failed, 0 skipped",
    ];
    assert_eq!(ran.end(), expected, "{}", ran.text);
}

#[test]
fn too_many_flaky_tests_fail_the_run() {
    let names = ["fails_once", "fails_once_2", "fails_once_3"];
    let ran = run(&[], &names, "");
    assert!(!ran.passed, "{}", ran.text);
    assert!(ran.text.contains("more than 2 flaky tests"), "{}", ran.text);
    assert!(run(&[], &names[..2], "").passed);
}

#[test]
fn a_test_that_hangs_is_ended_and_its_threads_are_shown() {
    let ran = run(&[], &["hangs_once"], "");
    assert!(ran.passed, "{}", ran.text);
    // The kernel keeps 15 bytes of a thread's name.
    let thread = ran
        .text
        .lines()
        .find(|line| line.contains(" played::hangs_o:"));
    assert!(
        thread.is_some_and(|line| line.contains("futex")),
        "{}",
        ran.text
    );
    let expected = [
        "flaky: failed once, and passed alone: 1",
        "netlab/suite played::hangs_once (took longer than 5 s)",
        "left out: no test",
        "tests: 1 passed, 0 failed, 0 skipped",
    ];
    assert_eq!(ran.end(), expected, "{}", ran.text);
}

#[test]
fn tests_of_a_process_that_ends_run_in_another_one() {
    let ran = run(&[], &["dies_once", "passes"], "");
    assert!(ran.passed, "{}", ran.text);
    let expected = [
        "flaky: failed once, and passed alone: 1",
        "netlab/suite ended with status 7",
        "left out: no test",
        "tests: 2 passed, 0 failed, 0 skipped",
    ];
    assert_eq!(ran.end(), expected, "{}", ran.text);
}

#[test]
fn a_test_that_others_would_disturb_runs_after_them_and_alone() {
    let ran = run(&[], &["fails_once", "fails_once_2", "passes"], "");
    let (crowd, alone) = ran
        .text
        .split_once("alone: netlab/suite")
        .expect("a pass of its own");
    assert!(crowd.contains("running 2 tests"), "{}", ran.text);
    assert!(!crowd.contains("fails_once_2"), "{}", ran.text);
    let (first, _) = alone.split_once("once more, alone").expect("a retry");
    assert!(first.contains("running 1 test\n"), "{}", ran.text);
    assert!(first.contains("fails_once_2"), "{}", ran.text);
}

/// With the umask of somebody who hides new files, set by a shell: it belongs to the whole process.
#[test]
fn other_users_can_read_a_scratch_directory() {
    if role().is_none() {
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
