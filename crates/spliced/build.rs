//! Sets the version of the program, with the commit if it is built from a checkout.

use std::path::Path;
use std::process::Command;

/// The sources of the program.
const SOURCES: [&str; 6] = [
    "../splice",
    "../splice-base",
    "../splice-bpf",
    "../splice-firewall",
    "src",
    "Cargo.toml",
];

fn main() {
    // Without a checkout, or without git, there is no commit.
    let commit = git(&["describe", "--always", "--dirty", "--exclude", "*"]);
    let version = env!("CARGO_PKG_VERSION");
    let version = commit.map_or_else(|| version.into(), |commit| format!("{version} ({commit})"));
    println!("cargo::rustc-env=SPLICED_VERSION={version}");
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
    // Every commit adds a line to this file, on any branch.
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
