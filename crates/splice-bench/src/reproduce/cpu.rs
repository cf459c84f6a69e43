//! `reproduce cpu`: what moving a gigabyte costs the machine, each way and both.

use std::process::ExitCode;

use anyhow::Result;

use super::arguments;
use super::record::{About, Record, Told, in_brackets, output, parameter, quantity};
use super::{absent, own_paths, told};
use crate::cpu_time::{Reading, Spent};
use crate::cpus::Placement;
use crate::entrant::Entrant;
use crate::results::{Better, Missing, Unit, Workload};
use crate::site::Site;
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{program, require_root};
use crate::workload::transfer::{Flow, Ways, flow};

/// What the ratios are to: a relay that reads and writes, as in the post.
const REFERENCE: &str = "spliced copy";

/// The path without a relay, whose cost is that of the ends and the devices.
const DIRECT: &str = "direct";

const WAYS: [(Ways, &str, &str); 3] = [
    (Ways::Up, "up", "from the client to the server"),
    (Ways::Down, "down", "from the server to the client"),
    (Ways::Both, "both", "both ways at once"),
];

/// Who was measured, one way; a value per round.
#[derive(Default)]
struct Measured {
    name: String,
    gigabits_per_second: Sample,
    /// CPU seconds per GB: of the whole machine, of the relay's process, of kernel workers.
    machine: Sample,
    process: Sample,
    kworkers: Sample,
    failures: Vec<String>,
}

impl Measured {
    fn add(&mut self, flow: &Flow, spent: Spent) {
        let gigabytes = flow.bytes as f64 / 1e9;
        self.gigabits_per_second.push(flow.gigabits_per_second());
        self.machine.push(flow.cpu_seconds_per_gigabyte());
        // These two are taken around the whole flow, its warm-up included: 16 MiB, less than a
        // hundredth of what a window moves.
        self.process.push(spent.process.as_secs_f64() / gigabytes);
        self.kworkers.push(spent.kworkers.as_secs_f64() / gigabytes);
    }
}

pub(crate) fn run(arguments: &arguments::Rounds) -> Result<ExitCode> {
    require_root("reproduce cpu")?;
    let spliced = program(&arguments.who.spliced)?;
    let output = output(&arguments.shared)?;
    let contestants = own_paths(&arguments.who.only, REFERENCE)?;
    let extent = arguments.extent.sized(arguments.shared.quick);
    let record = Record::begin()?;
    let cpu = arguments.shared.cpu;
    let site = Site::build(Placement::Pinned(cpu))?;
    let (all, missing) = site.enter(|| {
        let (entrants, missing) = Entrant::start_all(&site, &spliced, &contestants)?;
        let all = WAYS.map(|(ways, ..)| (ways, nothing_of(&entrants)));
        measure(&site, cpu, &entrants, all, &extent).map(|all| (all, missing))
    })?;
    println!(
        "Client, relay and server share CPU {cpu}, kept awake; {} interleaved rounds.\nCPU seconds per \
         GB of payload; in brackets the ratio to {REFERENCE}. The whole machine is ends, relay, kernel \
         workers and softirqs;\nwhat it has above the direct path is the cost of relaying. The post \
         (FreeBSD 14.2, iperf3, 60 s at 10 Gb/s, the proxy alone):\nreceiving 6.56 s with copies, 5.98 \
         s spliced (0.91); sending 19.06 s and 14.93 s (0.78).",
        extent.rounds
    );
    let mut workloads = Vec::new();
    for ((_, id, words), (_, measured)) in WAYS.iter().zip(&all) {
        println!("\nBulk {words}\n{}", table(measured));
        workloads.push(workload(id, words, measured));
    }
    let missing = absent(&missing);
    missing
        .iter()
        .for_each(|one| println!("{}: {}", one.what, one.why));
    let mut everybody = all.iter().flat_map(|(_, measured)| measured);
    let sound = everybody.all(|one| one.failures.is_empty());
    let about = About {
        site: &site,
        title: "splice-bench reproduce cpu",
        cpu,
        rounds: extent.rounds,
        warm_up: "16 MiB before each measurement",
        spliced: Some(&spliced),
        contestants: told(&contestants),
        absent: missing,
        notes: Vec::new(),
    };
    record.finish(output.as_ref(), about, workloads, sound)
}

fn nothing_of(entrants: &[Entrant]) -> Vec<Measured> {
    let nothing = |entrant: &Entrant| Measured {
        name: entrant.contestant.name(),
        ..Measured::default()
    };
    entrants.iter().map(nothing).collect()
}

type ByWays = [(Ways, Vec<Measured>); WAYS.len()];

fn measure(
    site: &Site,
    cpu: usize,
    entrants: &[Entrant],
    mut all: ByWays,
    extent: &arguments::Extent,
) -> Result<ByWays> {
    for round in 0..extent.rounds as usize {
        eprintln!("round {} of {}", round + 1, extent.rounds);
        for (ways, measured) in &mut all {
            for position in 0..entrants.len() {
                if netlab::interrupted().is_some() {
                    return Ok(all);
                }
                // Whoever goes first may find the machine different: everybody does, in turn.
                let index = (round + position) % entrants.len();
                let one = &mut measured[index];
                // Rounds of one that failed could not be held against those of the others.
                if !one.failures.is_empty() {
                    continue;
                }
                match once(site, cpu, &entrants[index], *ways, extent) {
                    Ok((flow, spent)) => one.add(&flow, spent),
                    Err(error) => {
                        eprintln!("  {} FAILED: {error:#}", one.name);
                        one.failures.push(format!("{error:#}"));
                        site.drain()?;
                    }
                }
            }
        }
    }
    Ok(all)
}

fn once(
    site: &Site,
    cpu: usize,
    entrant: &Entrant,
    ways: Ways,
    extent: &arguments::Extent,
) -> Result<(Flow, Spent)> {
    // Without a relay there is no process to look at but this one, which is both ends.
    let pid = entrant
        .relay
        .as_ref()
        .map_or_else(std::process::id, crate::relay::Relay::pid);
    let before = Reading::take(pid, &[cpu])?;
    let flow = flow(site, entrant.address(), ways, extent.window())?;
    let mut spent = Reading::take(pid, &[cpu])?.since(&before);
    if entrant.relay.is_none() {
        spent.process = std::time::Duration::ZERO;
    }
    Ok((flow, spent))
}

/// One of the samples of somebody.
type Column = fn(&Measured) -> &Sample;

fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(&[
        "path",
        "Gb/s",
        "whole machine (ratio)",
        "above direct (ratio)",
        "relay's process",
        "kernel workers",
    ]);
    let of = |name: &str| all.iter().find(|one| one.name == name);
    let (direct, reference) = (of(DIRECT), of(REFERENCE));
    let above = above_of(direct);
    for one in all {
        let median = |column: Column, digits: usize| {
            let median = column(one).median();
            median.map_or_else(|| "-".into(), |median| format!("{median:.digits$}"))
        };
        let ratio = reference.map(|reference| one.machine.ratio_to(&reference.machine));
        let relaying = above(one).and_then(|above| {
            let ratio = above.ratio_to(&reference.and_then(above_of(direct))?);
            Some(format!("{:.3}{}", above.median()?, in_brackets(&ratio)))
        });
        table.push(vec![
            one.name.clone(),
            median(|one| &one.gigabits_per_second, 2),
            median(|one| &one.machine, 3)
                + &ratio.map_or_else(String::new, |ratio| in_brackets(&ratio)),
            relaying
                .filter(|_| one.name != DIRECT)
                .unwrap_or_else(|| "-".into()),
            median(|one| &one.process, 3),
            median(|one| &one.kworkers, 3),
        ]);
    }
    table
}

/// What somebody costs above the direct path.
fn above_of(direct: Option<&Measured>) -> impl Fn(&Measured) -> Option<Sample> {
    move |one| direct.map(|direct| one.machine.less(&direct.machine))
}

fn workload(id: &str, words: &str, all: &[Measured]) -> Workload {
    let mut workload = Workload::new(
        &format!("cpu-{id}"),
        &format!("CPU time of bulk {words}"),
        "As many bytes as go through on one connection. The time is that of everything on the machine: \
         ends, relay, kernel workers, softirqs.",
    );
    workload.parameters.push(parameter("direction", words));
    let columns: [(&str, &str, Unit, Better, Column); 4] = [
        (
            "cpu",
            "CPU time of the whole machine",
            Unit::CpuSecondsPerGigabyte,
            Better::Lower,
            |one| &one.machine,
        ),
        (
            "cpu-process",
            "Of it the relay's process",
            Unit::CpuSecondsPerGigabyte,
            Better::Lower,
            |one| &one.process,
        ),
        (
            "cpu-kworkers",
            "Of it kernel workers",
            Unit::CpuSecondsPerGigabyte,
            Better::Lower,
            |one| &one.kworkers,
        ),
        (
            "throughput",
            "Throughput",
            Unit::GigabitsPerSecond,
            Better::Higher,
            |one| &one.gigabits_per_second,
        ),
    ];
    for (id, title, unit, better, column) in columns {
        let samples: Vec<_> = all
            .iter()
            .map(|one| (one.name.clone(), column(one).clone()))
            .collect();
        let told = Told {
            id,
            title,
            unit,
            better,
        };
        workload
            .quantities
            .push(quantity(told, REFERENCE, &samples));
    }
    for one in all {
        workload
            .missing
            .extend(one.failures.iter().map(|why| Missing {
                what: one.name.clone(),
                why: why.clone(),
            }));
    }
    workload
}
