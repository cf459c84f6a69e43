//! `splice-bench demo`: everything once, in a few minutes, for a person to read.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::cli::{self, Workload};
use crate::contestant::Contestant;
use crate::figures;
use crate::measured::{Measured, of};
use crate::relay::{Relay, Start};
use crate::site::{Site, require_open_files};
use crate::statistics::Sample;
use crate::table::Table;
use crate::workload::{idle, ping_pong, short_connections, stalled, transfer};

/// Bytes each way of one timed transfer: a quarter of a second at 8 Gb/s, long against the start of
/// a connection and short enough for nine rounds.
const TIMED_BYTES: u64 = 128 << 20;

/// How long short connections are counted, per contestant, way and round.
const SHORT_FOR: Duration = Duration::from_millis(400);

/// Short connections at once in the second way of counting them.
const IN_FLIGHT: usize = 8;

/// Files that this process has open besides the two ends of every idle pair.
const OTHER_FILES: u64 = 100;

/// A contestant that takes part, and its relay while that runs.
struct Entry {
    measured: Measured,
    index: u16,
    relay: Option<Relay>,
}

impl Entry {
    fn address(&self) -> std::net::SocketAddr {
        self.relay
            .as_ref()
            .map_or_else(Site::server, Relay::address)
    }

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
    ensure!(
        rustix::process::geteuid().is_root(),
        "the demo makes network namespaces, which needs root: run it with sudo"
    );
    ensure!(
        arguments.spliced.is_file(),
        "there is no program {}: build it with `cargo build --release -p spliced`",
        arguments.spliced.display()
    );
    // A bare file name would be looked for in the search path, not in this directory.
    let spliced = arguments
        .spliced
        .canonicalize()
        .with_context(|| format!("cannot find {}", arguments.spliced.display()))?;
    let contestants = chosen(&arguments.only)?;
    let begin = Instant::now();
    let site = Site::build(arguments.cpu)?;
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

/// The contestants that `--only` leaves; the direct path always runs, as the others are held
/// against it.
fn chosen(only: &[String]) -> Result<Vec<Contestant>> {
    let all = Contestant::all();
    let is = |contestant: Contestant, name: &String| contestant.name().eq_ignore_ascii_case(name);
    if let Some(unknown) = only
        .iter()
        .find(|name| !all.iter().any(|&one| is(one, name)))
    {
        let names: Vec<String> = all.into_iter().map(Contestant::name).collect();
        bail!(
            "--only does not know {unknown:?}: choose from {}",
            names.join(", ")
        );
    }
    let wanted = |one: &Contestant| {
        only.is_empty() || !one.relays() || only.iter().any(|name| is(*one, name))
    };
    Ok(all.into_iter().filter(wanted).collect())
}

/// Everything that was measured, and who could not take part, with the reason.
type Outcome = (Vec<Measured>, Vec<(Contestant, String)>);

fn measure(
    site: &Site,
    arguments: &cli::Demo,
    spliced: &Path,
    contestants: &[Contestant],
) -> Result<Outcome> {
    let (mut entries, mut absent) = (Vec::new(), Vec::new());
    for (index, &contestant) in (0..).zip(contestants) {
        let relay = if contestant.relays() {
            match contestant.start(site, spliced, index)? {
                Start::Running(relay) => Some(relay),
                Start::Refused(why) => {
                    eprintln!("{} does not take part: {why}", contestant.name());
                    absent.push((contestant, why));
                    continue;
                }
            }
        } else {
            None
        };
        entries.push(Entry {
            measured: Measured::nothing_of(contestant),
            index,
            relay,
        });
    }

    for entry in &mut entries {
        eprintln!("{}: comparing hashes", entry.measured.contestant.name());
        let outcome = transfer::check(site, entry.address(), arguments.bytes)
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
    for entry in entries.iter_mut().filter(|entry| entry.relay.is_some()) {
        if arguments.wants(Workload::Idle) {
            eprintln!("{}: idle pairs", entry.measured.contestant.name());
            restart(site, spliced, entry)?;
            let outcome = memory_of_idle(site, arguments, entry);
            entry.note(site, "idle pairs", outcome)?;
        }
        if arguments.wants(Workload::Stalled) {
            eprintln!("{}: stalled receivers", entry.measured.contestant.name());
            restart(site, spliced, entry)?;
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
    let address = entry.address();
    if arguments.wants(Workload::Transfer) {
        let outcome = time_bulk(site, arguments, address, &mut entry.measured);
        entry.note(site, "transfer", outcome)?;
    }
    if arguments.wants(Workload::PingPong) {
        let outcome = ping_pong::play(site, address, arguments.ping_pongs).map(|one_way| {
            entry
                .measured
                .p50_microseconds
                .push(one_way.p50_microseconds);
            entry
                .measured
                .p99_microseconds
                .push(one_way.p99_microseconds);
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

fn time_bulk(
    site: &Site,
    arguments: &cli::Demo,
    address: std::net::SocketAddr,
    measured: &mut Measured,
) -> Result<()> {
    let bytes = TIMED_BYTES.min(arguments.bytes);
    let cost = transfer::time(site, address, bytes)?;
    let gigabytes = 2.0 * bytes as f64 / 1e9;
    measured
        .gigabits_per_second
        .push(gigabytes * 8.0 / cost.elapsed.as_secs_f64());
    measured
        .cpu_seconds_per_gigabyte
        .push(cost.busy.as_secs_f64() / gigabytes);
    Ok(())
}

/// Replaces the relay by a fresh one: memory is measured of a process that has not been busy.
fn restart(site: &Site, spliced: &Path, entry: &mut Entry) -> Result<()> {
    // The port has to be free first.
    entry.relay = None;
    let contestant = entry.measured.contestant;
    match contestant.start(site, spliced, entry.index)? {
        Start::Running(relay) => entry.relay = Some(relay),
        Start::Refused(why) => bail!("{} ran before but now says: {why}", contestant.name()),
    }
    Ok(())
}

fn memory_of_idle(site: &Site, arguments: &cli::Demo, entry: &mut Entry) -> Result<()> {
    if let Some(relay) = &entry.relay {
        let bytes = idle::bytes_per_pair(site, relay, arguments.idle_pairs)?;
        entry.measured.idle_pair_bytes = Some(bytes);
    }
    Ok(())
}

fn memory_of_stalled(site: &Site, entry: &mut Entry) -> Result<()> {
    if let Some(relay) = &entry.relay {
        entry.measured.held = Some(stalled::hold(site, relay)?);
    }
    Ok(())
}

fn print(arguments: &cli::Demo, site: &Site, all: &[Measured], absent: &[(Contestant, String)]) {
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
