//! Wrong usage: of the command line, or of the machine.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

/// The exit status for wrong usage.
pub(crate) const WRONG_USAGE: u8 = 2;

/// The exit status after a signal, as a shell gives it: 128 and the signal's number.
pub(crate) fn interrupted_status(signal: i32) -> ExitCode {
    ExitCode::from(u8::try_from(128 + signal).unwrap_or(u8::MAX))
}

/// An error that ends the program with [`WRONG_USAGE`].
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// Fails unless this is root. `what` makes network namespaces.
pub(crate) fn require_root(what: &str) -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        let needs = "makes network namespaces, which needs root: run it with sudo";
        bail!(Usage(format!("{what} {needs}")));
    }
    Ok(())
}

/// The path of a program to measure.
pub(crate) fn program(path: &Path) -> Result<PathBuf> {
    if !path.is_file() {
        bail!(Usage(format!(
            "there is no program {}: build it with `cargo build --release -p spliced`",
            path.display()
        )));
    }
    // A bare file name would be looked for in the search path, not in this directory.
    path.canonicalize()
        .with_context(|| format!("cannot find {}", path.display()))
}

/// The error that clap found, as one sentence.
pub(crate) fn sentence(error: &clap::Error) -> String {
    let text = error.to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = first.split_whitespace().collect();
    let sentence = words.join(" ");
    let sentence = sentence.trim_start_matches("error: ");
    format!("{sentence}; see 'splice-bench --help'")
}
