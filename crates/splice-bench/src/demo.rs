//! `splice-bench demo`: everything once, in a few minutes, for a person to read.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use splice::EngineChoice;

use crate::cli::{self, Workload};
use crate::contestant::Contestant;
use crate::cpus::Placement;
use crate::entrant::{Absent, Entrant, chosen};
use crate::figures;
use crate::measured::{Measured, of};
use crate::site::{Site, require_open_files};
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{self, Usage};
use crate::workload::ping_pong::Extent;
use crate::workload::transfer::Ways;
use crate::workload::{idle, ping_pong, short_connections, stalled, transfer};

/// How long a transfer is timed, per contestant and round: long against the scheduler's slices of a
/// few ms, short enough for nine rounds.
const TRANSFER_FOR: Duration = Duration::from_millis(250);

/// Bytes of a ping-pong's message: small enough for one segment, large enough to carry a request.
const MESSAGE_BYTES: usize = 64;

/// How long short connections are counted, per contestant, way and round.
const SHORT_FOR: Duration = Duration::from_millis(400);

/// Short connections at once in the second way of counting them.
const IN_FLIGHT: usize = 8;

/// Files that this process has open besides the two ends of every idle pair.
const OTHER_FILES: u64 = 100;

/// A contestant that takes part, and what has been found out.
struct Entry {
    measured: Measured,
    entrant: Entrant,
}

impl Entry {
    /// Notes what failed; the other measurements go on.
    fn note(&mut self, site: &Site, what: &str, outcome: Result<()>) -> Result<()> {
        if let Err(error) = outcome {
            eprintln!(
                "  {} FAILED at {what}: {error:#}",
                self.measured.contestant.name()
            );
            self.measured.failures.push(format!("{what}: {error:#}"));
            site.drain()?;
        }
        Ok(())
    }
}

/// Runs the demo. Exit code 1 says that bytes were lost or a measurement failed; a figure that was
/// missed does not.
pub(crate) fn run(arguments: cli::Demo) -> Result<ExitCode> {
    usage::require_root("the demo")?;
    let spliced = usage::program(&arguments.spliced)?;
    let all = Contestant::all().into_iter().filter(|&one| competes(one));
    let contestants = chosen(all.collect(), &arguments.only, &[]).map_err(Usage)?;
    let begin = Instant::now();
    let site = Site::build(Placement::Pinned(arguments.cpu))?;
    require_open_files(2 * u64::from(arguments.idle_pairs) + OTHER_FILES)?;

    let (all, absent) = site.enter(|| measure(&site, &arguments, &spliced, &contestants))?;
    print(&arguments, &site, &all, &absent);
    eprintln!("took {:.0} s", begin.elapsed().as_secs_f64());
    let sound = all.iter().all(Measured::is_sound);
    Ok(if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Whether the demo has the contestant: `auto` is one of the engines shown already, and a process per
/// connection or a load balancer of 1998 would not tell a first reader more.
fn competes(contestant: Contestant) -> bool {
    !matches!(
        contestant,
        Contestant::Spliced(EngineChoice::Auto) | Contestant::Socat | Contestant::Pen
    )
}

/// Everything that was measured, and who could not take part.
type Outcome = (Vec<Measured>, Vec<Absent>);

fn measure(
    site: &Site,
    arguments: &cli::Demo,
    spliced: &Path,
    contestants: &[Contestant],
) -> Result<Outcome> {
    let (entrants, absent) = Entrant::start_all(site, spliced, contestants)?;
    let entry = |entrant: Entrant| Entry {
        measured: Measured::nothing_of(entrant.contestant),
        entrant,
    };
    let mut entries: Vec<Entry> = entrants.into_iter().map(entry).collect();

    for entry in &mut entries {
        eprintln!("{}: comparing hashes", entry.measured.contestant.name());
        let outcome = transfer::check(site, entry.entrant.address(), arguments.bytes)
            .map(|same| entry.measured.same_bytes = Some(same));
        entry.note(site, "comparing hashes", outcome)?;
    }
    for round in 0..arguments.rounds as usize {
        eprintln!("round {} of {}", round + 1, arguments.rounds);
        // Whoever goes first may find the machine different: everybody does, in turn.
        let count = entries.len();
        for position in 0..count {
            let entry = &mut entries[(round + position) % count];
            // One that failed has said so; without further rounds its others stay comparable.
            if entry.measured.failures.is_empty() {
                one_round(site, arguments, entry)?;
            }
        }
    }
    for entry in entries
        .iter_mut()
        .filter(|entry| entry.entrant.relay.is_some())
    {
        if arguments.wants(Workload::Idle) {
            eprintln!("{}: idle pairs", entry.measured.contestant.name());
            entry.entrant.restart(site, spliced)?;
            let outcome = memory_of_idle(site, arguments, entry);
            entry.note(site, "idle pairs", outcome)?;
        }
        if arguments.wants(Workload::Stalled) {
            eprintln!("{}: stalled receivers", entry.measured.contestant.name());
            entry.entrant.restart(site, spliced)?;
            let outcome = memory_of_stalled(site, entry);
            entry.note(site, "stalled receivers", outcome)?;
        }
    }
    Ok((
        entries.into_iter().map(|entry| entry.measured).collect(),
        absent,
    ))
}

fn one_round(site: &Site, arguments: &cli::Demo, entry: &mut Entry) -> Result<()> {
    let address = entry.entrant.address();
    if arguments.wants(Workload::Transfer) {
        let outcome = transfer::flow(site, address, Ways::Both, TRANSFER_FOR).map(|flow| {
            let measured = &mut entry.measured;
            measured
                .gigabits_per_second
                .push(flow.gigabits_per_second());
            measured
                .cpu_seconds_per_gigabyte
                .push(flow.cpu_seconds_per_gigabyte());
        });
        entry.note(site, "transfer", outcome)?;
    }
    if arguments.wants(Workload::PingPong) {
        let extent = Extent::Times(arguments.ping_pongs);
        let outcome = ping_pong::play(site, address, MESSAGE_BYTES, extent).map(|round_trips| {
            let one_way = |quantile| round_trips.microseconds(quantile) / 2.0;
            entry.measured.p50_microseconds.push(one_way(0.5));
            entry.measured.p99_microseconds.push(one_way(0.99));
        });
        entry.note(site, "ping-pong", outcome)?;
    }
    if arguments.wants(Workload::ShortConnections) {
        let outcome = short_connections::rate(site, address, 1, SHORT_FOR)
            .map(|rate| entry.measured.one_at_a_time_per_second.push(rate));
        entry.note(site, "short connections", outcome)?;
        let outcome = short_connections::rate(site, address, IN_FLIGHT, SHORT_FOR)
            .map(|rate| entry.measured.in_flight_per_second.push(rate));
        entry.note(site, "short connections in flight", outcome)?;
    }
    Ok(())
}

fn memory_of_idle(site: &Site, arguments: &cli::Demo, entry: &mut Entry) -> Result<()> {
    let cost = idle::cost_per_pair(site, &entry.entrant, arguments.idle_pairs)?;
    entry.measured.idle_pair_bytes = cost.process_bytes;
    Ok(())
}

fn memory_of_stalled(site: &Site, entry: &mut Entry) -> Result<()> {
    if let Some(relay) = &entry.entrant.relay {
        entry.measured.held = Some(stalled::hold(site, relay)?);
    }
    Ok(())
}

fn print(arguments: &cli::Demo, site: &Site, all: &[Measured], absent: &[Absent]) {
    println!(
        "Client, relay and server share CPU {}, kept awake; congestion control {}; median of {} \
         interleaved rounds.\nIn brackets: the ratio to direct and, with ±, half of what lies \
         between the lowest and the highest round.\n",
        arguments.cpu, site.congestion_control, arguments.rounds
    );
    print!("{}", paths(all));
    println!("\n{}", other(all));
    for (contestant, why) in absent {
        println!("{}: {why}", contestant.name());
    }
    for measured in all {
        for failure in &measured.failures {
            println!("{} FAILED: {failure}", measured.contestant.name());
        }
    }
    println!("{}", figures::table(all));
}

/// The table that the demo is about.
fn paths(all: &[Measured]) -> Table {
    let mut table = Table::new(&[
        "path",
        "hash",
        "Gb/s (ratio)",
        "one-way p50 µs (ratio)",
        "p99 µs (ratio)",
        "CPU s/GB (ratio)",
    ])
    .align_left(2);
    for measured in all {
        let hash = match measured.same_bytes {
            Some(true) => "ok",
            Some(false) => "MISMATCH",
            None => "FAILED",
        };
        let cell = |sample: fn(&Measured) -> &Sample, digits| {
            let direct = of(all, Contestant::Direct).map(sample);
            with_ratio(sample(measured), direct, digits)
        };
        table.push(vec![
            measured.contestant.name(),
            hash.into(),
            cell(|measured| &measured.gigabits_per_second, 2),
            cell(|measured| &measured.p50_microseconds, 2),
            cell(|measured| &measured.p99_microseconds, 2),
            cell(|measured| &measured.cpu_seconds_per_gigabyte, 3),
        ]);
    }
    table
}

/// What else was measured, of everybody.
fn other(all: &[Measured]) -> Table {
    let mut table = Table::new(&[
        "path",
        "short conn/s (ratio)",
        "8 in flight (ratio)",
        "idle pair",
        "held when nobody reads",
        "of it sockets",
        "pipes",
        "process",
    ]);
    let mebibytes = |bytes: u64| format!("{:.2} MiB", bytes as f64 / f64::from(1 << 20));
    for measured in all {
        let cell = |sample: fn(&Measured) -> &Sample| {
            with_ratio(sample(measured), of(all, Contestant::Direct).map(sample), 0)
        };
        let held = measured.held.map_or_else(
            || std::array::from_fn(|_| "-".into()),
            |held| {
                [
                    held.total_bytes(),
                    held.sockets_bytes,
                    held.pipes_bytes,
                    held.process_bytes,
                ]
                .map(mebibytes)
            },
        );
        let idle = measured
            .idle_pair_bytes
            .map_or_else(|| "-".into(), |bytes| format!("{bytes:.0} B"));
        let mut row = vec![
            measured.contestant.name(),
            cell(|measured| &measured.one_at_a_time_per_second),
            cell(|measured| &measured.in_flight_per_second),
            idle,
        ];
        row.extend(held);
        table.push(row);
    }
    table
}

/// `12.34 (0.98 ±1 %)`: the median, its ratio to the direct path and the spread of that ratio. For
/// the direct path itself the spread of the measured values.
fn with_ratio(sample: &Sample, direct: Option<&Sample>, digits: usize) -> String {
    let Some(median) = sample.median() else {
        return "-".into();
    };
    let percent = |spread: Option<f64>| spread.map_or(0.0, |spread| 50.0 * spread);
    let ratio = direct.map(|direct| sample.ratio_to(direct));
    match ratio
        .as_ref()
        .and_then(|ratio| Some((ratio.median()?, ratio.spread())))
    {
        Some((ratio, spread)) if ratio != 1.0 || spread != Some(0.0) => {
            format!("{median:.digits$} ({ratio:.2} ±{:.0} %)", percent(spread))
        }
        _ => format!("{median:.digits$} (±{:.0} %)", percent(sample.spread())),
    }
}
