//! `spliced`: relays connections between two addresses without losing a byte.
//!
//! What was typed ([`cli`]) becomes what is meant: a [`relay`], to a target or back to the client
//! ([`echo`]), which runs until a signal, or the [`doctor`], who tries what works here.

mod access_log;
mod cli;
mod complaint;
mod connection;
mod doctor;
mod echo;
mod itself;
mod listener;
mod listening;
mod live;
mod place;
mod refusal;
mod relay;
mod target;

use std::env;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::error::ErrorKind as UsageError;
use clap::{CommandFactory, Parser};
use tracing::level_filters::LevelFilter;

use crate::cli::{Cli, Command, Level};

/// The exit status of a command that failed while it ran.
const FAILED: u8 = 1;
/// The exit status of a command that was written wrongly or asked for what cannot be had here.
const WRONG_USAGE: u8 = 2;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    start_diagnostics(cli.log);
    let result = match cli.command {
        Command::Relay(args) => relay::run(args.into()),
        Command::Echo(args) => relay::run(args.into()),
        Command::Doctor(args) => doctor::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("spliced: {error:#}");
            let refused = error
                .downcast_ref::<splice::Error>()
                .is_some_and(|error| error.kind() == splice::ErrorKind::EngineRefused);
            let wrong_usage = refused || error.is::<refusal::WrongUsage>();
            ExitCode::from(if wrong_usage { WRONG_USAGE } else { FAILED })
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

fn start_diagnostics(level: Level) {
    let level = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        // It would tell of a failed write to stderr on stderr, and panic.
        .log_internal_errors(false)
        .init();
}
