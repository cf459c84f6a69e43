//! `splice-bench reproduce`: the experiments that made SOCKMAP's and socket splicing's reputation,
//! again, on this machine and with every engine.

pub(crate) mod arguments;
mod beside;
mod bypass;
mod configurations;
mod cpu;
mod echo;
mod latency;
mod mesh;
mod record;
mod relay;
mod scrape;
mod trace;
mod udp;

use std::process::ExitCode;

use anyhow::Result;
use arguments::{Experiment, Reproduce};

use crate::contestant::Contestant;
use crate::entrant::{self, Absent};
use crate::results::{self, Missing};
use crate::usage::Usage;

/// Runs one experiment. Exit code 1 says that bytes were lost or a measurement failed.
pub(crate) fn run(arguments: Reproduce) -> Result<ExitCode> {
    match arguments.experiment {
        Experiment::Echo(arguments) => echo::run(arguments.sized()),
        Experiment::Relay(arguments) => relay::run(&arguments),
        Experiment::Bypass(arguments) => bypass::run(&arguments),
        Experiment::Configurations(arguments) => configurations::run(&arguments),
        Experiment::Cpu(arguments) => cpu::run(&arguments),
        Experiment::Mesh(arguments) => mesh::run(&arguments),
        Experiment::Scrape(arguments) => scrape::run(&arguments),
        Experiment::Trace(arguments) => trace::run(&arguments),
        Experiment::Udp(arguments) => udp::run(&arguments),
    }
}

/// The direct path and our engines.
fn own_paths() -> impl Iterator<Item = Contestant> {
    let is_ours = |one: &Contestant| one.is_reference() || matches!(one, Contestant::Spliced(_));
    Contestant::all().into_iter().filter(is_ours)
}

/// `all`, of which `only` may leave out some, but not the `references`.
fn chosen(all: Vec<Contestant>, only: &[String], references: &[&str]) -> Result<Vec<Contestant>> {
    let mut only = only.to_vec();
    if !only.is_empty() {
        only.extend(references.iter().map(|&name| name.into()));
    }
    Ok(entrant::chosen(all, &only, &[]).map_err(Usage)?)
}

/// Whose turn it is, of `count`, in so many rounds; ends early when the program is interrupted.
fn turns(rounds: u32, count: usize) -> impl Iterator<Item = usize> {
    let turns = (0..rounds as usize).flat_map(move |round| (0..count).map(move |at| (round, at)));
    let turns = turns.take_while(|_| netlab::interrupted().is_none());
    turns.map(move |(round, position)| {
        if position == 0 {
            eprintln!("round {} of {rounds}", round + 1);
        }
        // Whoever goes first may find the machine different: everybody does, in turn.
        (round + position) % count
    })
}

/// Who takes part, for the results.
fn told(contestants: &[Contestant]) -> Vec<results::Contestant> {
    let told = |one: &Contestant| results::Contestant {
        name: one.name(),
        how: one.how(),
        kind: one.kind(),
    };
    contestants.iter().map(told).collect()
}

/// Who could not take part, for the results.
fn absent(absent: &[Absent]) -> Vec<Missing> {
    let missing = |(contestant, why): &Absent| record::missing(&contestant.name(), why);
    absent.iter().map(missing).collect()
}
