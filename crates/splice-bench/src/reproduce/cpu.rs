//! `reproduce cpu`: what moving a gigabyte costs the machine, each way and both.

use std::process::ExitCode;

use anyhow::Result;

use super::arguments;
use super::record::{
    About, Record, Told, failed, in_brackets, output, parameter, print_absent, quantity,
};
use super::{absent, own_paths, told};
use crate::cpu_time::{Reading, Spent};
use crate::cpus::Placement;
use crate::entrant::Entrant;
use crate::relay::Relay;
use crate::results::{Better, Unit, Workload};
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
    /// CPU seconds per GB of the whole machine, whoever else was busy on it included.
    machine: Sample,
    /// The same of those who had to do with it: the sum of the following.
    parts: Sample,
    /// Client and server; the relay's process; kernel workers; the threads of softirqs.
    ends: Sample,
    process: Sample,
    kworkers: Sample,
    softirqs: Sample,
    failures: Vec<String>,
}

impl Measured {
    fn add(&mut self, flow: &Flow, spent: Spent) {
        let gigabytes = flow.bytes as f64 / 1e9;
        self.gigabits_per_second.push(flow.gigabits_per_second());
        self.machine.push(flow.cpu_seconds_per_gigabyte());
        // All but the ends are taken around the whole flow, its warm-up included: 16 MiB, less than a
        // hundredth of what a window moves.
        let parts = flow.ends + spent.process + spent.kworkers + spent.softirqs;
        for (sample, part) in [
            (&mut self.parts, parts),
            (&mut self.ends, flow.ends),
            (&mut self.process, spent.process),
            (&mut self.kworkers, spent.kworkers),
            (&mut self.softirqs, spent.softirqs),
        ] {
            sample.push(part.as_secs_f64() / gigabytes);
        }
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
         GB of payload; in brackets the ratio to {REFERENCE}. The whole machine is everybody on it; the \
         parts are the ends,\nthe relay's process, kernel workers and threads of softirqs (a softirq \
         that runs elsewhere is booked to the task that it interrupts).\nOn a quiet machine both are \
         the same. What the parts have above the direct path is the cost of relaying.\nThe post \
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
    print_absent(&missing);
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
    let pid = entrant.relay.as_ref().map(Relay::pid);
    let before = Reading::take(pid, &[cpu])?;
    let flow = flow(site, entrant.address(), ways, extent.window(), None)?;
    let spent = Reading::take(pid, &[cpu])?.since(&before);
    Ok((flow, spent))
}

/// One of the samples of somebody.
type Column = fn(&Measured) -> &Sample;

fn table(all: &[Measured]) -> Table {
    let mut table = Table::new(&[
        "path",
        "Gb/s",
        "whole machine (ratio)",
        "sum of parts (ratio)",
        "above direct",
        "ends",
        "relay's process",
        "kworkers",
        "ksoftirqd",
    ]);
    let of = |name: &str| all.iter().find(|one| one.name == name);
    let (direct, reference) = (of(DIRECT), of(REFERENCE));
    let told = |sample: &Sample, digits: usize| {
        let median = sample.median();
        median.map_or_else(|| "-".into(), |median| format!("{median:.digits$}"))
    };
    for one in all {
        let with_ratio = |column: Column| {
            let ratio = reference.map(|reference| column(one).ratio_to(column(reference)));
            let ratio = ratio.map_or_else(String::new, |ratio| in_brackets(&ratio));
            format!("{}{ratio}", told(column(one), 3))
        };
        let above = direct.map(|direct| one.parts.less(&direct.parts));
        table.push(vec![
            one.name.clone(),
            told(&one.gigabits_per_second, 2),
            with_ratio(|one| &one.machine),
            with_ratio(|one| &one.parts),
            above.map_or_else(String::new, |above| told(&above, 3)),
            told(&one.ends, 3),
            told(&one.process, 3),
            told(&one.kworkers, 3),
            told(&one.softirqs, 3),
        ]);
    }
    table
}

fn workload(id: &str, words: &str, all: &[Measured]) -> Workload {
    let mut workload = Workload::new(
        &format!("cpu-{id}"),
        &format!("CPU time of bulk {words}"),
        "As many bytes as go through on one connection. The time is that of everything on the machine: \
         ends, relay, kernel workers, softirqs.",
    );
    workload.parameters.push(parameter("direction", words));
    let columns: [(&str, &str, Column); 7] = [
        ("cpu", "CPU time of the whole machine", |one| &one.machine),
        ("cpu-parts", "CPU time of all that took part", |one| {
            &one.parts
        }),
        ("cpu-ends", "Of it client and server", |one| &one.ends),
        ("cpu-process", "Of it the relay's process", |one| {
            &one.process
        }),
        ("cpu-kworkers", "Of it kernel workers", |one| &one.kworkers),
        ("cpu-ksoftirqd", "Of it threads of softirqs", |one| {
            &one.softirqs
        }),
        ("throughput", "Throughput", |one| &one.gigabits_per_second),
    ];
    for (id, title, column) in columns {
        let samples: Vec<_> = all
            .iter()
            .map(|one| (one.name.clone(), column(one).clone()))
            .collect();
        let (unit, better) = if id == "throughput" {
            (Unit::GigabitsPerSecond, Better::Higher)
        } else {
            (Unit::CpuSecondsPerGigabyte, Better::Lower)
        };
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
        workload.missing.extend(failed(&one.name, &one.failures));
    }
    workload
}
