//! `splice-bench` measures ways of joining two sockets. `splice-bench --help` says how to use it.

mod bpf_object;
mod check;
mod cli;
mod client_hello;
mod compare;
mod contest;
mod contestant;
mod cpu_time;
mod cpus;
mod crowd;
mod delay;
mod demo;
mod echo_server;
mod entrant;
mod forward;
mod machine;
mod mesh_hub;
mod output;
mod payload;
mod peer;
mod progress;
mod random;
mod relay;
mod report;
mod reproduce;
mod results;
mod router;
mod segment_counts;
mod server;
mod settings;
mod site;
mod size;
mod so_splice_proxy;
mod statistics;
mod table;
mod translation;
mod usage;
mod versions;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Command};
use output::Output;
use usage::{Usage, WRONG_USAGE};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return misunderstood(&error),
    };
    let outcome = match cli.command {
        Command::Demo(arguments) => demo::run(&arguments),
        Command::Check(arguments) => check::run(&arguments),
        Command::Compare(arguments) => compare::run(&arguments),
        Command::Delay(arguments) => {
            delay::run(arguments.listen, arguments.target, arguments.delay())
                .map(|()| ExitCode::SUCCESS)
        }
        Command::Forward(arguments) => forward::run(
            arguments.listen,
            arguments.target,
            arguments.crowd,
            arguments.crowd_at,
        )
        .map(|()| ExitCode::SUCCESS),
        Command::Serve(arguments) => {
            server::run(arguments.service, arguments.number).map(|()| ExitCode::SUCCESS)
        }
        Command::Reproduce(arguments) => reproduce::run(arguments),
        Command::EchoServer(arguments) => {
            echo_server::serve(&arguments).map(|()| ExitCode::SUCCESS)
        }
        Command::MeshHub { listen } => mesh_hub::serve(listen).map(|()| ExitCode::SUCCESS),
        Command::Report(arguments) => Output::open(&arguments.directory)
            .write_again()
            .map(|()| ExitCode::SUCCESS),
        Command::Chart(arguments) => Output::open(&arguments.directory)
            .draw_chart(&arguments.file)
            .map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("splice-bench: {error:#}");
            if error.is::<Usage>() {
                ExitCode::from(WRONG_USAGE)
            } else {
                ExitCode::FAILURE
            }
        }
    }
}

/// Prints help as it is, and an error as one sentence.
fn misunderstood(error: &clap::Error) -> ExitCode {
    if error.use_stderr() && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        eprintln!("splice-bench: {}", usage::sentence(error));
    } else {
        // A reader that has gone away has had enough.
        let _ = error.print();
    }
    ExitCode::from(if error.use_stderr() { WRONG_USAGE } else { 0 })
}
