//! `reproduce configurations`: how long `spliced check` takes for the examples, and for a configuration with many listeners.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use netlab::{Process, Scratch};

use super::arguments;
use super::turns;
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::program;

/// The first port of the many listeners: nobody listens there, since it is only checked.
const FIRST_PORT: u16 = 20_000;

pub(crate) fn run(arguments: &arguments::Configurations) -> Result<ExitCode> {
    let spliced = program(&arguments.spliced)?;
    let scratch = Scratch::new("bench-check")?;
    let mut files = examples(&arguments.examples)?;
    for listeners in &arguments.listeners {
        let name = format!("{listeners}-listeners.toml");
        files.push(scratch.write(&name, &with_listeners(*listeners))?);
    }
    let mut times = vec![Sample::default(); files.len()];
    for index in turns(arguments.rounds, files.len()) {
        times[index].push(checked(&spliced, &files[index])?);
    }
    let mut table = Table::new(&["configuration", "s", "least to most"]);
    for (file, times) in files.iter().zip(&times) {
        let (Some(median), Some((least, most))) = (times.median(), times.range()) else {
            continue;
        };
        let name = file.file_stem().unwrap_or_default().to_string_lossy();
        table.push(vec![
            name.into(),
            format!("{median:.3}"),
            format!("{least:.3} to {most:.3}"),
        ]);
    }
    println!(
        "spliced check, {} interleaved rounds\n\n{table}",
        arguments.rounds
    );
    Ok(ExitCode::SUCCESS)
}

/// The configurations in a directory, by their names.
fn examples(directory: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            files.push(path);
        }
    }
    ensure!(
        !files.is_empty(),
        "{} has no configuration; give --examples another directory",
        directory.display()
    );
    files.sort();
    Ok(files)
}

fn with_listeners(count: u16) -> String {
    let mut text = String::from("[backend.b]\nservers = \"127.0.0.1:9\"\n");
    for number in 0..count {
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "[[listener]]\nname = \"l{number}\"\naddress = \"127.0.0.1:{}\"\n[[listener.route]]\nbackend = \"b\"\n",
            FIRST_PORT + number
        );
    }
    text
}

/// Seconds that a check takes. Examples name servers and files that are not here, so that its result does not matter, as
/// long as there is one.
fn checked(spliced: &Path, file: &Path) -> Result<f64> {
    let mut command = Process::command(spliced);
    command
        .args(["check", "--config"])
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let begun = Instant::now();
    let status = command.status().context("cannot run spliced")?;
    let took = begun.elapsed().as_secs_f64();
    ensure!(status.code().is_some(), "spliced check was killed");
    Ok(took)
}
