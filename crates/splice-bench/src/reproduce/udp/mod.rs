//! `reproduce udp`: how many datagrams a second a relay passes on before it loses some, and how long they take at half of
//! that rate.

mod load;
mod receiver;
mod relays;
mod singles;
mod trains;

use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use self::load::{Delays, Load, Step};
use self::relays::Running;
use self::singles::Singles;
use self::trains::Trains;
use super::arguments;
use super::record::{
    About, Record, Told, failed, missing, output, parameter, print_absent, print_failed, quantity,
};
use super::turns;
use crate::cpus::Placement;
use crate::results::{self, Better, Unit, Workload};
use crate::site::Site;
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{program, require_root};

/// What the ratios are to.
const REFERENCE: &str = "nginx stream";

/// The first rate that is offered, in datagrams a second: every relay can do that.
const FIRST_RATE: f64 = 20_000.0;

/// From one rate to the next.
const STEP: f64 = 1.15;

/// From one rate to the next between the last without loss and the first with it.
const FINE_STEP: f64 = 1.03;

/// A rate counts as passed on if no more is lost: one in a thousand.
const LOSS_ALLOWED: f64 = 0.001;

/// The steps end at this loss.
const LOSS_ENOUGH: f64 = 0.3;

/// The steps end if the sender offers less than this part of the rate: its CPU is busy.
const OFFERED_LEAST: f64 = 0.95;

/// How often a rate is offered at most.
const TRIES: usize = 3;

/// The CPU time is that at this rate, in datagrams a second, or the next one above.
const COMPARED_RATE: f64 = 100_000.0;

/// What was measured of one relay.
struct Path {
    name: String,
    /// For each round the highest rate without loss.
    rates: Sample,
    /// CPU time of its process for a datagram in µs, at [`COMPARED_RATE`].
    cpu: Sample,
    /// Delays at half of the highest rate without loss, in µs: the median of each round, and its p99.
    delays: [Sample; 2],
    /// For each rate the losses, in parts of a hundred.
    losses: Vec<Sample>,
    failures: Vec<String>,
    /// In a round it lost nothing up to the most that the sender could offer.
    outran_sender: bool,
}

pub(crate) fn run(arguments: &arguments::Udp) -> Result<ExitCode> {
    require_root("reproduce udp")?;
    let spliced = program(&arguments.rounds.who.spliced)?;
    let shared = &arguments.rounds.shared;
    let output = output(shared)?;
    let extent = arguments.rounds.extent.sized(shared.quick);
    let record = Record::begin()?;
    let site = Site::build(Placement::Pinned(shared.cpu))?;
    let (running, absent) = relays::start(&site, &spliced, &arguments.rounds.who.only)?;
    let mut workloads = Vec::new();
    let mut sound = true;
    for &size in &arguments.size {
        let mut load: Box<dyn Load> = match arguments.burst {
            1 => Box::new(Singles::new(&site, arguments.clients, size.into())?),
            burst => {
                let clients = arguments.clients.into();
                Box::new(Trains::new(&site, clients, size.into(), burst.into())?)
            }
        };
        let names = running.iter().map(|one| one.name);
        let mut paths: Vec<_> = names.map(Path::new).collect();
        eprintln!("datagrams of {size} bytes");
        for index in turns(extent.rounds, running.len()) {
            let path = &mut paths[index];
            let measured = one_round(
                &site,
                &running[index],
                &mut *load,
                path,
                arguments.load_cpu,
                extent.window(),
            );
            if let Err(error) = measured {
                eprintln!("  {} FAILED: {error:#}", path.name);
                path.failures.push(format!("{error:#}"));
            }
        }
        println!(
            "Datagrams of {size} bytes of {} clients, {} in a call, {} ms for each rate, {} interleaved rounds; relays \
             on CPU {}, sender on CPU {}.\n",
            arguments.clients,
            arguments.burst,
            extent.milliseconds,
            extent.rounds,
            shared.cpu,
            arguments.load_cpu
        );
        print(&paths);
        sound &= paths.iter().all(|path| path.failures.is_empty());
        workloads.push(workload(&paths, size, arguments));
    }
    print_absent(&absent);
    let about = About {
        site: &site,
        title: "splice-bench reproduce udp",
        cpu: shared.cpu,
        rounds: extent.rounds,
        warm_up: "one datagram of each client, passed on",
        spliced: Some(&spliced),
        contestants: running.iter().map(Running::told).collect(),
        absent,
        notes: vec![format!(
            "The CPU time is that of the relay's process at {COMPARED_RATE} datagrams a second or the next rate above. A \
             relay that loses nothing at the most that the sender can offer could do more. The rate before loss is the highest offered rate of which at most {} % are lost; a rate is {STEP} \
             times the one before, near the limit {FINE_STEP} times, and the best of up to {TRIES} tries counts.",
            LOSS_ALLOWED * 100.0,
        )],
    };
    record.finish(output.as_ref(), about, workloads, sound)
}

impl Path {
    fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            rates: Sample::default(),
            cpu: Sample::default(),
            delays: Default::default(),
            losses: Vec::new(),
            failures: Vec::new(),
            outran_sender: false,
        }
    }
}

/// What one round has measured.
struct Round {
    steps: Vec<Step>,
    /// The highest rate without loss.
    limit: f64,
    cpu: Option<f64>,
    delays: Option<Delays>,
}

/// Offers one rate after another to a relay, from a thread on the CPU of the load.
fn one_round(
    site: &Site,
    relay: &Running,
    load: &mut dyn Load,
    path: &mut Path,
    cpu: usize,
    window: Duration,
) -> Result<()> {
    load.direct(site, relay.address)?;
    let round = thread::scope(|scope| {
        let work = || -> Result<Round> {
            netlab::pin_thread(cpu)?;
            load.open_sessions(site)?;
            let (mut steps, mut cpu) = (Vec::new(), None);
            let mut rate = FIRST_RATE;
            while netlab::interrupted().is_none() {
                let (step, used) = best_of_tries(site, relay, load, rate, window)?;
                if rate >= COMPARED_RATE {
                    cpu = cpu.or(used);
                }
                let is_last = step.loss() > LOSS_ENOUGH || step.offered() < rate * OFFERED_LEAST;
                steps.push(step);
                if is_last {
                    break;
                }
                rate *= STEP;
            }
            let limit = refine(site, relay, load, highest(&steps), window)?;
            let (half, _) = best_of_tries(site, relay, load, limit / 2.0, window)?;
            Ok(Round {
                steps,
                limit,
                cpu,
                delays: half.delays,
            })
        };
        let thread = scope.spawn(work);
        thread.join().ok().context("the load's thread panicked")?
    })?;
    let Round { steps, .. } = round;
    round.cpu.into_iter().for_each(|cpu| path.cpu.push(cpu));
    if let Some(Delays { median, p99 }) = round.delays {
        path.delays[0].push(median);
        path.delays[1].push(p99);
    }
    path.outran_sender |= steps.last().is_some_and(|step| step.loss() <= LOSS_ALLOWED);
    path.rates.push(round.limit);
    for (index, step) in steps.iter().enumerate() {
        if path.losses.len() == index {
            path.losses.push(Sample::default());
        }
        path.losses[index].push(step.loss() * 100.0);
    }
    Ok(())
}

/// The highest rate of which no more than allowed was lost.
fn highest(steps: &[Step]) -> f64 {
    let passed = steps.iter().filter(|step| step.loss() <= LOSS_ALLOWED);
    passed.map(Step::offered).fold(0.0, f64::max)
}

/// The highest rate without loss, from one that has none up to the next one that was tried.
fn refine(
    site: &Site,
    relay: &Running,
    load: &mut dyn Load,
    mut highest: f64,
    window: Duration,
) -> Result<f64> {
    let end = highest * STEP;
    let mut rate = highest * FINE_STEP;
    while rate < end && netlab::interrupted().is_none() {
        let (step, _) = best_of_tries(site, relay, load, rate, window)?;
        if step.loss() > LOSS_ALLOWED || step.offered() < rate * OFFERED_LEAST {
            break;
        }
        highest = highest.max(step.offered());
        rate *= FINE_STEP;
    }
    Ok(highest)
}

/// Offers a rate again if something was lost or the sender fell short: the machine may have been busy
/// elsewhere. Returns the try that lost least, with its CPU time for a datagram in µs.
fn best_of_tries(
    site: &Site,
    relay: &Running,
    load: &mut dyn Load,
    rate: f64,
    window: Duration,
) -> Result<(Step, Option<f64>)> {
    let mut best: Option<(Step, Option<f64>)> = None;
    for _ in 0..TRIES {
        let before = relay.cpu_time()?;
        let step = load.offer(site, rate, window)?;
        let used = match (before, relay.cpu_time()?) {
            (Some(before), Some(after)) => {
                let used = after.saturating_sub(before).as_secs_f64() * 1e6;
                Some(used / step.arrived() as f64)
            }
            _ => None,
        };
        let falls_short = step.offered() < rate * OFFERED_LEAST;
        let is_better = best.is_none_or(|(best, _)| {
            (best.offered() < rate * OFFERED_LEAST, best.loss()) > (falls_short, step.loss())
        });
        if is_better {
            best = Some((step, used));
        }
        if !falls_short && step.loss() <= LOSS_ALLOWED {
            break;
        }
    }
    best.context("no try was made")
}

fn told(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.2}"))
}

fn print(paths: &[Path]) {
    let reference = paths.iter().find(|path| path.name == REFERENCE);
    let mut table = Table::new(&[
        "relay",
        "datagrams/s before loss",
        "ratio to nginx",
        "CPU µs/datagram",
        "ratio to nginx",
    ]);
    for path in paths {
        let ratio = reference.map(|reference| path.rates.ratio_to(&reference.rates));
        let ratio = ratio.and_then(|ratio| ratio.median());
        // The sender was the limit.
        let least = if path.outran_sender { ">= " } else { "" };
        table.push(vec![
            path.name.clone(),
            path.rates
                .median()
                .map_or_else(|| "-".into(), |rate| format!("{least}{rate:.0}")),
            ratio.map_or_else(|| "-".into(), |ratio| format!("{least}{ratio:.2}")),
            told(path.cpu.median()),
            told(reference.and_then(|reference| path.cpu.ratio_to(&reference.cpu).median())),
        ]);
    }
    println!("{table}");
    let mut table = Table::new(&["relay", "p50 µs", "ratio", "p99 µs", "ratio"]);
    for path in paths {
        let mut row = vec![path.name.clone()];
        for (which, delay) in path.delays.iter().enumerate() {
            row.push(told(delay.median()));
            let ratio = reference.map(|reference| delay.ratio_to(&reference.delays[which]));
            row.push(told(ratio.and_then(|ratio| ratio.median())));
        }
        table.push(row);
    }
    println!("From device to device at half of that rate, with ratios to nginx:\n{table}");
    let mut headings = vec!["offered/s"];
    headings.extend(paths.iter().map(|path| path.name.as_str()));
    let mut table = Table::new(&headings);
    let steps = paths.iter().map(|path| path.losses.len()).max();
    let mut rate = FIRST_RATE;
    for step in 0..steps.unwrap_or(0) {
        let mut row = vec![format!("{rate:.0}")];
        row.extend(paths.iter().map(|path| {
            let loss = path.losses.get(step).and_then(Sample::median);
            loss.map_or_else(|| "-".into(), |loss| format!("{loss:.2} %"))
        }));
        table.push(row);
        rate *= STEP;
    }
    println!("Loss:\n{table}");
    for path in paths {
        print_failed(&path.name, &path.failures);
    }
}

fn workload(paths: &[Path], size: u16, arguments: &arguments::Udp) -> Workload {
    let mut workload = Workload::new(
        &format!("udp-{size}"),
        &format!("Datagrams of {size} B"),
        "Datagrams of many clients through a relay, one way, at rates that rise until some are lost.",
    );
    workload.parameters = vec![
        parameter("datagram", format!("{size} B")),
        parameter("clients", arguments.clients),
        parameter("datagrams in a call", arguments.burst),
    ];
    let samples = |of: &dyn Fn(&Path) -> Sample| -> Vec<_> {
        let samples = paths.iter().map(|path| (path.name.clone(), of(path)));
        samples.collect()
    };
    let rates = Told {
        id: "rate",
        title: "Datagrams a second before loss",
        unit: Unit::Count,
        better: Better::Higher,
    };
    workload.quantities.push(quantity(
        rates,
        REFERENCE,
        &samples(&|path| path.rates.clone()),
    ));
    let cpu = Told {
        id: "cpu",
        title: "CPU time of the relay for a datagram",
        unit: Unit::Microseconds,
        better: Better::Lower,
    };
    workload
        .quantities
        .push(quantity(cpu, REFERENCE, &samples(&|path| path.cpu.clone())));
    for (which, (id, title)) in [("p50", "Median delay"), ("p99", "p99 of the delay")]
        .into_iter()
        .enumerate()
    {
        let delay = Told {
            id,
            title: &format!("{title} at half of the rate before loss"),
            unit: Unit::Microseconds,
            better: Better::Lower,
        };
        let samples = samples(&|path| path.delays[which].clone());
        workload
            .quantities
            .push(quantity(delay, REFERENCE, &samples));
    }
    for path in paths {
        workload.missing.extend(failed(&path.name, &path.failures));
        if path.rates.median().is_none() {
            let why = missing(&path.name, "no round was measured");
            workload.missing.push(results::Missing { ..why });
        }
    }
    workload
}
