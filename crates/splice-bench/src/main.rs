//! `splice-bench` measures ways of joining two sockets. `splice-bench --help` says how to use it.

mod cli;
mod contestant;
mod demo;
mod figures;
#[allow(dead_code, reason = "until compare and reproduce fill it")]
mod machine;
mod measured;
#[allow(dead_code, reason = "until compare and reproduce fill it")]
mod output;
mod payload;
mod peer;
mod relay;
mod report;
#[allow(dead_code, reason = "until compare and reproduce fill it")]
mod results;
#[allow(dead_code, reason = "until compare and reproduce fill it")]
mod settings;
mod site;
mod statistics;
mod table;
#[allow(dead_code, reason = "until compare and reproduce fill it")]
mod versions;
mod workload;

use std::process::ExitCode;

use clap::Parser;
use cli::{Cli, Command};

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Demo(arguments) => demo::run(arguments.sized()),
        Command::Report(arguments) => output::Output::open(&arguments.directory)
            .write_again()
            .map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            eprintln!("splice-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}
