//! Tells the program which commit it is built from, when it is built from a checkout.

use std::path::Path;
use std::process::Command;

/// Where the sources of what ends up in the program are.
const SOURCES: [&str; 3] = ["../splice", "src", "Cargo.toml"];

fn main() {
    // A build from an archive, or without git, knows no commit and says none.
    let commit = git(&["describe", "--always", "--dirty", "--exclude", "*"]);
    let version = env!("CARGO_PKG_VERSION");
    let said = commit.map_or_else(|| version.into(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=SPLICED_VERSION={said}");
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
    // Every commit adds a line there, whichever branch is checked out.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo::rerun-if-changed={log}");
    }
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let text = text.trim();
    (output.status.success() && !text.is_empty()).then(|| text.to_owned())
}
