//! `reproduce cpu`: what moving a gigabyte costs the machine, each way and both.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use super::arguments;
use super::record::{
    About, Record, Told, failed, in_brackets, output, parameter, print_absent, quantity,
};
use super::{absent, chosen, own_paths, told};
use crate::contestant::Contestant;
use crate::cpu_time::{Reading, Spent};
use crate::cpus::Placement;
use crate::entrant::Entrant;
use crate::relay::Relay;
use crate::results::{Better, Unit, Workload};
use crate::site::Site;
use crate::so_splice_proxy::SoSpliceProxy;
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{program, require_root};
use crate::workload::transfer::{Flow, Ways, flow};

/// What ratios are to: a relay that reads and writes, as in the post.
struct Reference {
    name: &'static str,
    /// Of the workload with those that are held against it.
    id: &'static str,
    title: &'static str,
}

/// For spliced, its own engine that reads and writes.
const ENGINE: Reference = Reference {
    name: "spliced copy",
    id: "cpu",
    title: "CPU time of bulk",
};

/// For the post's proxy, the same program without `SO_SPLICE`.
const PROXY: Reference = Reference {
    name: "proxy copy",
    id: "so-splice",
    title: "CPU time of a proxy with SO_SPLICE, bulk",
};

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
    /// The name of what its ratios are to.
    reference: &'static str,
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
    fn nothing_of(contestant: Contestant) -> Self {
        Self {
            name: contestant.name(),
            reference: match contestant {
                Contestant::SoSplice(_) => PROXY.name,
                _ => ENGINE.name,
            },
            ..Self::default()
        }
    }

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

pub(crate) fn run(arguments: &arguments::Cpu) -> Result<ExitCode> {
    require_root("reproduce cpu")?;
    let rounds = &arguments.rounds;
    let spliced = program(&rounds.who.spliced)?;
    let output = output(&rounds.shared)?;
    let all = own_paths().chain(proxies(arguments.so_splice(&spliced)));
    let references = [ENGINE.name, PROXY.name];
    let contestants = chosen(all.collect(), &rounds.who.only, &references)?;
    let extent = rounds.extent.sized(rounds.shared.quick);
    let record = Record::begin()?;
    let cpu = rounds.shared.cpu;
    let site = Site::build(Placement::Pinned(cpu))?;
    let (all, missing) = site.enter(|| {
        let (entrants, missing) = Entrant::start_all(&site, &spliced, &contestants)?;
        let nothing = |one: &Entrant| Measured::nothing_of(one.contestant);
        let all = WAYS.map(|(ways, ..)| (ways, entrants.iter().map(nothing).collect()));
        measure(&site, cpu, &entrants, all, &extent).map(|all| (all, missing))
    })?;
    println!(
        "Client, relay and server share CPU {cpu}, kept awake; {} interleaved rounds.\nCPU seconds per \
         GB of payload; in brackets the ratio to {}, and of the post's proxy to {}.\nThe whole machine \
         is everybody on it; the parts are the ends, the relay's process, kernel workers\nand threads \
         of softirqs (a softirq that runs elsewhere is booked to the task that it interrupts).\nOn a \
         quiet machine both are the same. What the parts have above the direct path is the cost of \
         relaying.\nThe post (FreeBSD 14.2, iperf3, 60 s at 10 Gb/s, the proxy alone):\nreceiving \
         6.56 s with copies, 5.98 s spliced (0.91); sending 19.06 s and 14.93 s (0.78).",
        extent.rounds, ENGINE.name, PROXY.name
    );
    let mut workloads = Vec::new();
    for ((_, id, words), (_, measured)) in WAYS.iter().zip(&all) {
        println!("\nBulk {words}\n{}", table(measured));
        workloads
            .extend([ENGINE, PROXY].map(|reference| workload(&reference, id, words, measured)));
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

/// The post's proxy in both modes, with this library.
fn proxies(so_splice: PathBuf) -> [Contestant; 2] {
    // A contestant is a value that is copied, and lives as long as the program.
    let so_splice = Box::leak(so_splice.into_boxed_path());
    [SoSpliceProxy::Copying, SoSpliceProxy::Splicing(so_splice)].map(Contestant::SoSplice)
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
    let direct = of(DIRECT);
    let told = |sample: &Sample, digits: usize| {
        let median = sample.median();
        median.map_or_else(|| "-".into(), |median| format!("{median:.digits$}"))
    };
    for one in all {
        let reference = of(one.reference);
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

/// Those of `all` that are held against `reference`, one way.
fn workload(reference: &Reference, way: &str, words: &str, all: &[Measured]) -> Workload {
    let is_held_against = |one: &&Measured| one.reference == reference.name;
    let all: Vec<_> = all.iter().filter(is_held_against).collect();
    let mut workload = Workload::new(
        &format!("{}-{way}", reference.id),
        &format!("{} {words}", reference.title),
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
            .push(quantity(told, reference.name, &samples));
    }
    for one in all {
        workload.missing.extend(failed(&one.name, &one.failures));
    }
    workload
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use netlab::{Need, available, built, present, program};

    use super::{ENGINE, Measured, PROXY, proxies, table, workload};
    use crate::contestant::Contestant;
    use crate::cpus::Placement;
    use crate::relay::Start;
    use crate::site::Site;
    use crate::workload::transfer;

    /// Whoever costs the whole machine this much, in five rounds.
    fn measured(contestant: Contestant, cost: f64) -> Measured {
        let mut measured = Measured::nothing_of(contestant);
        measured.machine = (1..=5).map(|round| cost * f64::from(round)).collect();
        measured
    }

    fn all() -> Vec<Measured> {
        let [copying, splicing] = proxies("libso_splice.so".into());
        let engine = Contestant::all()
            .into_iter()
            .find(|one| one.is_called("copy"));
        vec![
            measured(Contestant::Direct, 1.0),
            measured(engine.expect("there is one"), 2.0),
            measured(copying, 4.0),
            measured(splicing, 3.0),
        ]
    }

    #[test]
    fn every_byte_goes_through_both_proxies() {
        let missing = program("cc").is_none();
        let why = missing.then(|| "no cc (apt install build-essential)".into());
        if !available(Need::Netns) || !present("cc", why) {
            return;
        }
        let site = Site::build(Placement::Spread).expect("root may");
        let library = built(&["so-splice-preload"]).join("libso_splice.so");
        for (port, proxy) in (0..).zip(proxies(library)) {
            site.enter(|| {
                let started = proxy.start(&site, Path::new(""), port)?;
                assert!(matches!(started, Some(Start::Running(_))), "{started:?}");
                let connection = site.connect(proxy.address(port))?;
                // More than all buffers on the way hold, and an odd number of bytes.
                assert!(transfer::check(&connection, (32 << 20) + 1)?);
                Ok(())
            })
            .expect("the proxy relays");
        }
    }

    #[test]
    fn the_proxy_is_held_against_itself_and_an_engine_against_an_engine() {
        let text = table(&all()).to_string();
        for (row, ratio) in [
            ("direct ", "(0.50, 0.50 to 0.50)"),
            ("spliced copy ", "(1.00, 1.00 to 1.00)"),
            ("proxy copy ", "(1.00, 1.00 to 1.00)"),
            ("proxy splice ", "(0.75, 0.75 to 0.75)"),
        ] {
            let line = text.lines().find(|line| line.starts_with(row));
            assert!(
                line.is_some_and(|line| line.contains(ratio)),
                "{row}: {text}"
            );
        }
    }

    #[test]
    fn the_results_have_a_workload_for_each_reference() {
        for (reference, id, names) in [
            (ENGINE, "cpu-up", ["direct", "spliced copy"]),
            (PROXY, "so-splice-up", ["proxy copy", "proxy splice"]),
        ] {
            let workload = workload(&reference, "up", "up", &all());
            assert_eq!(workload.id, id);
            let machine = &workload.quantities[0];
            assert_eq!(machine.reference.as_deref(), Some(reference.name));
            let measured = machine.measured.iter();
            let measured: Vec<_> = measured.map(|one| one.contestant.as_str()).collect();
            assert_eq!(measured, names);
        }
    }
}
