//! `spliced`: relays connections between two addresses without losing a byte.
//!
//! The command line ([`cli`]) asks for a [`relay`], to a target or back to the client ([`echo`]), which
//! runs until a signal ends it, for a [`mesh`], for the sockets
//! of others ([`adopt`]), for connections between processes ([`bypass`]), for the [`check`] of a configuration ([`config`]), or for the [`doctor`],
//! which tests what works on this host.

mod access_log;
mod access_log_args;
mod admin;
#[cfg(target_arch = "x86_64")]
mod adopt;
mod adopt_args;
mod backend;
mod bypass;
mod bypass_args;
mod check;
mod circle;
mod cli;
mod client_limit;
mod command;
mod config;
mod connect_error;
mod connection;
mod connection_limit;
mod control_args;
mod datagram;
mod datagram_args;
mod deployment;
mod diagnostics;
mod doctor;
#[cfg(test)]
mod documented_commands;
#[cfg(test)]
mod documented_words;
mod echo;
mod exit_status;
mod file_access;
mod file_lock;
mod file_stamp;
mod firewall;
mod forwarding;
mod ip_header;
mod journal_stream;
mod kinds;
mod listener;
mod log_field;
mod log_file;
mod log_level;
mod log_queue;
mod log_sink;
mod log_state;
mod matrix;
mod mesh;
mod mesh_args;
mod metrics;
mod outgoing;
mod own_network;
mod peer_timeouts;
mod plan;
mod plural;
mod printable;
mod race;
mod rate_limited_warning;
mod refusal;
mod relay;
mod resource_limit;
mod roster;
mod sections;
mod server_args;
mod service;
mod session_args;
mod session_filter;
mod session_phase;
mod sessions;
mod signal;
mod socket_address;
mod standard_output;
mod tally;
mod target;
mod text_file;
mod time_text;
mod trace;
mod trace_arguments;
mod weight;
mod worker;

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::Result;
use clap::error::{ContextKind, ContextValue, ErrorKind as UsageError};
use clap::{CommandFactory, Parser};

use crate::cli::{Cli, Command};
use crate::diagnostics::Diagnostics;
use crate::exit_status::{CUT_SHORT, Ended, FAILED, WRONG_USAGE};
use crate::relay::Configuration;
use crate::signal::Signals;

fn main() -> ExitCode {
    // First of all: until then a signal kills the process silently.
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
    let ended = signals.and_then(|signals| run(cli.command, signals, &diagnostics));
    rate_limited_warning::tell_rest();
    let status = match ended {
        Ok(Ended::Well) => 0,
        Ok(Ended::CutShort) => CUT_SHORT,
        Err(error) => {
            diagnostics.say(&format!("{error:#}"));
            let refused = error
                .downcast_ref::<splice::Error>()
                .is_some_and(|error| error.kind() == splice::ErrorKind::EngineRefused);
            let wrong_usage =
                refused || error.is::<refusal::WrongUsage>() || error.is::<config::Mistakes>();
            if wrong_usage { WRONG_USAGE } else { FAILED }
        }
    };
    diagnostics.finish();
    ExitCode::from(status)
}

fn run(command: Command, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    match command {
        Command::Relay(args) => {
            let plan = kinds::plan(args)?;
            relay::run(&plan, "relay", None, signals, diagnostics)
        }
        Command::Echo(args) => {
            let plan = relay::plan_of_echo(args)?;
            relay::run(&plan, "echo", None, signals, diagnostics)
        }
        Command::Mesh(args) => mesh::run(&args, signals, diagnostics),
        #[cfg(target_arch = "x86_64")]
        Command::Adopt(args) => adopt::run(&args, signals, diagnostics),
        #[cfg(not(target_arch = "x86_64"))]
        Command::Adopt(_) => anyhow::bail!("spliced adopt works on x86-64 only so far"),
        Command::Bypass(args) => bypass::run(args, signals, diagnostics),
        Command::Run(args) => {
            let (path, control) = (args.config.clone(), args.control);
            let read = move || {
                let mut plan = config::read(&path)?;
                plan.control = control.over(plan.control);
                Ok(plan)
            };
            let plan = read()?;
            let read = Box::new(read);
            let configuration = Configuration {
                path: args.config,
                read,
            };
            relay::run(&plan, "run", Some(configuration), signals, diagnostics)
        }
        Command::Reload(args) => {
            signals.leave_to_default()?;
            command::reload(&args).map(|()| Ended::Well)
        }
        Command::Status(args) => {
            signals.leave_to_default()?;
            command::status(&args).map(|()| Ended::Well)
        }
        Command::Sessions(args) => {
            signals.leave_to_default()?;
            command::sessions(&args).map(|()| Ended::Well)
        }
        Command::Kill(args) => {
            signals.leave_to_default()?;
            command::kill(&args).map(|()| Ended::Well)
        }
        Command::Top(args) => command::top(args, signals, diagnostics).map(|()| Ended::Well),
        Command::Backends(args) => {
            signals.leave_to_default()?;
            command::backends(&args).map(|()| Ended::Well)
        }
        Command::Drain(args) => {
            signals.leave_to_default()?;
            command::drain(&args).map(|()| Ended::Well)
        }
        Command::Undrain(args) => {
            signals.leave_to_default()?;
            command::undrain(&args).map(|()| Ended::Well)
        }
        Command::Weigh(args) => {
            signals.leave_to_default()?;
            command::weigh(&args).map(|()| Ended::Well)
        }
        Command::Check(args) => {
            signals.leave_to_default()?;
            check::run(&args).map(|()| Ended::Well)
        }
        Command::Doctor(args) => {
            signals.leave_to_default()?;
            doctor::run(&args).map(|()| Ended::Well)
        }
        Command::Matrix(args) => {
            signals.leave_to_default()?;
            matrix::run(&args).map(|()| Ended::Well)
        }
        Command::Trace(args) => trace::run(&args, signals).map(|()| Ended::Well),
    }
}

/// Prints the help as clap writes it, and an error as one sentence.
fn usage(error: &clap::Error) -> ExitCode {
    if matches!(
        error.kind(),
        UsageError::DisplayHelp | UsageError::DisplayVersion
    ) {
        // If the reader has gone away, nobody misses the rest.
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
    // The wording of the standard library's parse error.
    let words = words
        .join(" ")
        .replace("invalid digit found in string", "it is not a number");
    let suggested = [ContextKind::SuggestedArg, ContextKind::SuggestedSubcommand];
    let meant = suggested
        .into_iter()
        .find_map(|kind| match error.get(kind)? {
            ContextValue::String(one) => Some(one.clone()),
            ContextValue::Strings(several) => Some(several.join(" or ")),
            _ => None,
        });
    let meant = meant.map_or_else(String::new, |meant| {
        format!("; write {meant} if that is meant")
    });
    let command = match subcommand(env::args_os().skip(1)) {
        Some(name) => format!("spliced {name}"),
        None => "spliced".into(),
    };
    eprintln!("spliced: {words}{meant}; see '{command} --help'");
    ExitCode::from(WRONG_USAGE)
}

/// The subcommand in `arguments`, if there is one.
fn subcommand(mut arguments: impl Iterator<Item = OsString>) -> Option<String> {
    let name = loop {
        let argument = arguments.next()?.into_string().ok()?;
        match argument.as_str() {
            // The only option before a subcommand that takes a value.
            "--log" => drop(arguments.next()),
            option if option.starts_with('-') => {}
            _ => break argument,
        }
    };
    let command = Cli::command();
    command.find_subcommand(&name).map(|_| name)
}
