//! `splice-bench` measures ways of joining two sockets. `splice-bench --help` says how to use it.

mod cli;
mod contestant;
mod demo;
mod figures;
mod measured;
mod payload;
mod peer;
mod relay;
mod site;
mod statistics;
mod table;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(arguments) => demo::run(arguments.sized()),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("splice-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
