//! Writes the manual pages and the completions of `spliced` into a directory, laid out as below `/usr`.
//!
//! `make install` runs it. It shares the definitions of the command line with the program, which does
//! not carry what is needed only once.
#![allow(
    dead_code,
    unreachable_pub,
    reason = "the program reads what was typed; here only the definitions count"
)]

#[path = "../src/access_log_args.rs"]
mod access_log_args;
#[path = "../src/adopt_args.rs"]
mod adopt_args;
#[path = "../src/bypass_args.rs"]
mod bypass_args;
#[path = "../src/cli.rs"]
mod cli;
#[path = "../src/control_args.rs"]
mod control_args;
#[path = "../src/datagram_args.rs"]
mod datagram_args;
#[path = "../src/file_access.rs"]
mod file_access;
#[path = "../src/ip_header.rs"]
mod ip_header;
#[path = "../src/log_field.rs"]
mod log_field;
#[path = "../src/log_level.rs"]
mod log_level;
#[path = "../src/mesh_args.rs"]
mod mesh_args;
#[path = "../src/peer_timeouts.rs"]
mod peer_timeouts;
#[path = "../src/sections.rs"]
mod sections;
#[path = "../src/server_args.rs"]
mod server_args;
#[path = "../src/session_args.rs"]
mod session_args;
#[path = "../src/session_filter.rs"]
mod session_filter;
#[path = "../src/session_phase.rs"]
mod session_phase;
#[path = "../src/time_text.rs"]
mod time_text;
#[path = "../src/trace_arguments.rs"]
mod trace_arguments;
#[path = "../src/weight.rs"]
mod weight;

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::builder::PossibleValuesParser;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use splice::EngineName;

use crate::sections::{Entry, Section};

/// Where each kind of file belongs below the prefix; the shells look there by default.
const PAGES: &str = "share/man/man1";
const COMPLETIONS: [(Shell, &str, &str); 3] = [
    (Shell::Bash, "share/bash-completion/completions", "spliced"),
    (Shell::Zsh, "share/zsh/site-functions", "_spliced"),
    (
        Shell::Fish,
        "share/fish/vendor_completions.d",
        "spliced.fish",
    ),
];

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let (Some(directory), None) = (arguments.next(), arguments.next()) else {
        anyhow::bail!("write the directory for the pages and completions, and nothing else");
    };
    let directory = PathBuf::from(directory);
    pages(&directory).context("the manual pages cannot be written")?;
    completions(&directory).context("the completions cannot be written")
}

/// Creates `directory/below/name`.
fn create(directory: &Path, below: &str, name: impl Into<OsString>) -> io::Result<File> {
    let directory = directory.join(below);
    fs::create_dir_all(&directory)?;
    File::create(directory.join(name.into()))
}

fn pages(directory: &Path) -> io::Result<()> {
    // `help` needs no page of its own.
    let mut program = cli::Cli::command()
        .subcommand_value_name("COMMAND")
        .disable_help_subcommand(true);
    // Gives the commands their full names and the options that all have in common.
    program.build();
    let names: Vec<_> = program
        .get_subcommands()
        .map(|command| format!("spliced-{}", command.get_name()))
        .collect();
    let overview: Vec<_> = names.iter().map(String::as_str).collect();
    let general = sections::RELAY
        .iter()
        .filter(|section| ["Exit status", "Rights"].contains(&section.title));
    page(directory, &program, general, &overview)?;
    for command in program.get_subcommands() {
        let sections = match command.get_name() {
            "relay" => sections::RELAY,
            "echo" => sections::ECHO,
            "mesh" => sections::MESH,
            "adopt" => sections::ADOPT,
            "bypass" => sections::BYPASS,
            "run" => sections::RUN,
            "check" => sections::CHECK,
            "trace" => sections::TRACE,
            "reload" | "status" | "sessions" | "kill" => sections::ASK,
            "matrix" => sections::MATRIX,
            _ => sections::DOCTOR,
        };
        page(directory, command, sections, &["spliced"])?;
    }
    Ok(())
}

/// The page of one command, which refers to the pages `see_also`.
fn page(
    directory: &Path,
    command: &Command,
    sections: impl IntoIterator<Item = &'static Section>,
    see_also: &[&str],
) -> io::Result<()> {
    let man = Man::new(command.clone())
        .source(concat!("spliced ", env!("SPLICED_VERSION")))
        .manual("User Commands");
    let mut file = create(directory, PAGES, man.get_filename())?;
    man.render_title(&mut file)?;
    man.render_name_section(&mut file)?;
    man.render_synopsis_section(&mut file)?;
    man.render_description_section(&mut file)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut file)?;
    }
    man.render_options_section(&mut file)?;
    let mut rest = Roff::default();
    for Section { title, entries } in sections {
        rest.control("SH", [title.to_uppercase().as_str()]);
        for entry in *entries {
            match entry {
                Entry::Text(text) => {
                    rest.control("PP", []);
                    rest.text([roman(*text)]);
                }
                Entry::Item(name, meaning) => {
                    rest.control("TP", []);
                    rest.text([bold(*name)]);
                    rest.text([roman(*meaning)]);
                }
            }
        }
    }
    rest.control("SH", ["SEE ALSO"]);
    let references: Vec<_> = see_also.iter().map(|name| format!("{name}(1)")).collect();
    rest.text([roman(references.join(", "))]);
    file.write_all(rest.to_roff().as_bytes())
}

fn completions(directory: &Path) -> io::Result<()> {
    // The program parses the names itself, so its definitions do not list them.
    let engines = || {
        let names = EngineName::ALL.map(EngineName::as_str);
        PossibleValuesParser::new(["auto"].into_iter().chain(names))
    };
    let mut program = cli::Cli::command();
    for name in ["relay", "echo"] {
        program = program.mut_subcommand(name, |command| {
            command.mut_arg("engine", |engine| engine.value_parser(engines()))
        });
    }
    for (shell, below, name) in COMPLETIONS {
        let mut file = create(directory, below, name)?;
        clap_complete::generate(shell, &mut program, "spliced", &mut file);
        file.flush()?;
    }
    Ok(())
}
