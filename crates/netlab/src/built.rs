//! Libraries of this workspace that are loaded, not linked, and examples: cargo builds them for nobody's tests.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

/// A directory with `ends.c` and `ends.h`: connected sockets for tests in C.
pub const C_SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/c");

/// Of the make and the cargo that run the tests: they would change what is built.
const INHERITED: [&str; 5] = [
    "MAKEFLAGS",
    "MFLAGS",
    "MAKELEVEL",
    "MAKEFILES",
    "CARGO_MAKEFLAGS",
];

/// cargo's variable for the machine to build for, and a directory of that name between the target directory and
/// the profile's. Where it is set (scripts/test-aarch64), cargo finds here again what it has to build with.
const BUILT_FOR: &str = "CARGO_BUILD_TARGET";

/// Builds packages with the profile of the test that calls this, and returns the directory with
/// what they are.
///
/// # Panics
/// If they cannot be built.
pub fn built(packages: &[&str]) -> PathBuf {
    let packages = packages.iter().flat_map(|package| ["--package", package]);
    build(packages.collect())
}

/// Builds the examples of a package in the same way, and returns the directory with them.
///
/// # Panics
/// If they cannot be built.
pub fn built_examples(package: &str) -> PathBuf {
    build(vec!["--package", package, "--examples"]).join("examples")
}

fn build(what: Vec<&str>) -> PathBuf {
    /// Tests of one program ask at once.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock();
    let tests = env::current_exe().expect("this program");
    let profile = tests.parent().and_then(Path::parent).expect("deps");
    let target = profile.parent().expect("the target directory");
    let target = match env::var_os(BUILT_FOR) {
        Some(machine) if target.ends_with(&machine) => {
            target.parent().expect("the target directory")
        }
        _ => target,
    };
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["build", "--quiet"])
        .args(what)
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .env("CARGO_TARGET_DIR", target);
    if profile.ends_with("release") {
        command.arg("--release");
    }
    for variable in INHERITED {
        command.env_remove(variable);
    }
    let status = command.status().expect("cargo starts");
    assert!(status.success(), "{command:?}: {status}");
    profile.to_owned()
}
