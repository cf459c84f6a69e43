//! `splice-bench reproduce`: the experiments that made SOCKMAP's and socket splicing's reputation,
//! again, on this machine and with every engine.

pub(crate) mod arguments;
mod echo;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use arguments::{Experiment, Reproduce};

use crate::site;

/// Runs one experiment. Exit code 1 says that bytes were lost or a measurement failed.
pub(crate) fn run(arguments: Reproduce) -> Result<ExitCode> {
    match arguments.experiment {
        Experiment::Echo(arguments) => echo::run(arguments.sized()),
    }
}

/// What every experiment begins with: its rights, and the program to measure, by its full name.
fn prepare(shared: &arguments::Shared) -> Result<PathBuf> {
    site::require_root()?;
    site::program(&shared.spliced)
}
