//! `spliced`: relays connections between two addresses without losing a byte.
//!
//! What was typed ([`cli`]) becomes what is meant: a [`relay`], to a target or back to the client
//! ([`echo`]), which runs until a signal, or the [`doctor`], who tries what works here.

mod access_log;
mod cli;
mod connection;
mod diagnostics;
mod doctor;
mod echo;
mod firewall;
mod itself;
mod listener;
mod listening;
mod live;
mod log_file;
mod log_queue;
mod place;
mod rate_limited_warning;
mod refusal;
mod relay;
mod sections;
mod shortage;
mod signal;
mod target;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::ErrorKind as UsageError;
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::diagnostics::Diagnostics;
use crate::relay::Ended;
use crate::signal::Signals;

/// The exit status of a command that failed while it ran.
const FAILED: u8 = 1;
/// The exit status of a command that was written wrongly or asked for what cannot be had here.
const WRONG_USAGE: u8 = 2;
/// The exit status of a relay that had to cut connections at the end of draining.
const CUT_SHORT: u8 = 3;

fn main() -> ExitCode {
    // Before anything else: until then a signal kills the process without a word.
    let signals = Signals::catch();
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    let diagnostics = match Diagnostics::start(cli.log) {
        Ok(diagnostics) => diagnostics,
        Err(error) => {
            eprintln!("spliced: {error:#}");
            return ExitCode::from(FAILED);
        }
    };
    let status = match signals.and_then(|signals| run(cli.command, signals, &diagnostics)) {
        Ok(Ended::Well) => 0,
        Ok(Ended::CutShort) => CUT_SHORT,
        Err(error) => {
            diagnostics.say(&format!("{error:#}"));
            let refused = error
                .downcast_ref::<splice::Error>()
                .is_some_and(|error| error.kind() == splice::ErrorKind::EngineRefused);
            let wrong_usage = refused || error.is::<refusal::WrongUsage>();
            if wrong_usage { WRONG_USAGE } else { FAILED }
        }
    };
    diagnostics.finish();
    ExitCode::from(status)
}

fn run(command: Command, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    match command {
        Command::Relay(args) => relay::run(args.into(), signals, diagnostics),
        Command::Echo(args) => relay::run(args.into(), signals, diagnostics),
        Command::Doctor(args) => {
            signals.leave_to_default()?;
            doctor::run(&args).map(|()| Ended::Well)
        }
    }
}

/// Prints what clap found: help as it is, an error as one sentence.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        UsageError::DisplayHelp | UsageError::DisplayVersion
    ) {
        // A reader that has gone away has had enough.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    if error.kind() == UsageError::DisplayHelpOnMissingArgumentOrSubcommand {
        let _ = error.print();
        return ExitCode::from(WRONG_USAGE);
    }
    let text = error.to_string();
    let sentence = text
        .split("\n\n")
        .next()
        .unwrap_or_default()
        .trim_start_matches("error: ");
    let words: Vec<_> = sentence.split_whitespace().collect();
    let command = match subcommand(env::args_os().skip(1)) {
        Some(name) => format!("spliced {name}"),
        None => "spliced".into(),
    };
    eprintln!("spliced: {}; see '{command} --help'", words.join(" "));
    ExitCode::from(WRONG_USAGE)
}

/// The subcommand that `arguments` name, if they do.
fn subcommand(mut arguments: impl Iterator<Item = OsString>) -> Option<String> {
    let name = loop {
        let argument = arguments.next()?.into_string().ok()?;
        match argument.as_str() {
            // The one option before a subcommand that has a value.
            "--log" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            _ => break argument,
        }
    };
    let command = Cli::command();
    command.find_subcommand(&name).map(|_| name)
}
