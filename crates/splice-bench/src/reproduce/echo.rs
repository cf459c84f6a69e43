//! `reproduce echo`: the four echo servers of 2019, and what has become of them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use netlab::Spinner;

use super::arguments::{self, OwnEcho};
use crate::contestant;
use crate::cpu_time::{Reading, Spent};
use crate::relay::{Relay, Start};
use crate::site::Site;
use crate::statistics::{Sample, Times, Values};
use crate::table::Table;
use crate::workload::echo::Bursts;

/// Between connecting and the first burst, as in the seed: the socket has to be in its map before
/// anything arrives, since SOCKMAP does not see what was queued before.
const AFTER_CONNECTING: Duration = Duration::from_secs(1);

/// A burst that takes longer stood still: far above any burst, below the 65 ms of 2019.
const STALL: Duration = Duration::from_millis(50);

/// The engines that `spliced echo` may have.
const ENGINES: [&str; 5] = ["copy", "pipe", "aio", "uring", "sockmap"];

/// What everybody is held against.
const REFERENCE: Server = Server::Own(OwnEcho::ReadWrite);

/// An echo server that may take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Server {
    /// The bench's own.
    Own(OwnEcho),
    /// `spliced echo` with this engine.
    Spliced(&'static str),
}

impl Server {
    fn all() -> Vec<Self> {
        let own = [REFERENCE, Self::Own(OwnEcho::Sockmap2019)];
        let spliced = ENGINES.map(Self::Spliced);
        own.into_iter().chain(spliced).collect()
    }

    fn name(self) -> String {
        match self {
            Self::Own(OwnEcho::ReadWrite) => "read/write".into(),
            Self::Own(OwnEcho::Sockmap2019) => "sockmap-2019".into(),
            Self::Spliced(engine) => format!("spliced {engine}"),
        }
    }

    /// Whether losing bytes is a failure, and not what is to be found out.
    fn is_sound(self) -> bool {
        self != Self::Own(OwnEcho::Sockmap2019)
    }
}

/// A server with or without SO_BUSY_POLL, and what was measured of it.
struct Entry {
    server: Server,
    busy_poll: bool,
    address: SocketAddr,
    process: Option<Relay>,
    /// One for each size of a burst.
    measured: Vec<Measured>,
    failures: Vec<String>,
}

/// What was measured with one size of a burst.
#[derive(Default)]
struct Measured {
    times: Times,
    /// Median of each run, in µs.
    medians: Sample,
    spent: Spent,
    /// Packets that a busy-polling receiver took from the device.
    polled: u64,
}

/// What the measurements need to know.
struct Setting<'a> {
    site: &'a Site,
    arguments: &'a arguments::Echo,
    spliced: &'a Path,
}

pub(crate) fn run(arguments: arguments::Echo) -> Result<ExitCode> {
    let spliced = super::prepare(&arguments.shared)?;
    let servers = contestant::named(
        &arguments.shared.only,
        &Server::all(),
        Server::name,
        &[REFERENCE],
    )?;
    let begin = Instant::now();
    let site = Site::build(arguments.shared.cpu)?;
    if arguments.napi {
        site.lab.enable_napi()?;
    }
    // Its own, like the client's: a CPU that sleeps is slow to wake.
    let _awake = arguments.server_cpu.map(Spinner::start).transpose()?;
    let setting = Setting {
        site: &site,
        arguments: &arguments,
        spliced: &spliced,
    };
    let (entries, absent) = site.enter(|| measure(&setting, &servers))?;
    print(&setting, &entries, &absent);
    eprintln!("took {:.0} s", begin.elapsed().as_secs_f64());
    let sound = |entry: &Entry| !entry.server.is_sound() || entry.failures.is_empty();
    Ok(if entries.iter().all(sound) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Who took part, and who could not, with the reason.
type Outcome = (Vec<Entry>, Vec<(String, String)>);

fn measure(setting: &Setting<'_>, servers: &[Server]) -> Result<Outcome> {
    let arguments = setting.arguments;
    let (mut entries, mut absent) = (Vec::<Entry>::new(), Vec::new());
    let ways = servers
        .iter()
        .flat_map(|&server| [(server, false), (server, true)]);
    for (index, (server, busy_poll)) in (0..).zip(ways) {
        let mut entry = Entry {
            server,
            busy_poll,
            address: Site::relay(index),
            process: None,
            measured: arguments
                .block
                .iter()
                .map(|_| Measured::default())
                .collect(),
            failures: Vec::new(),
        };
        match entry.start(setting)? {
            Ok(()) => entries.push(entry),
            Err(why) => {
                eprintln!("{} does not take part: {why}", entry.name());
                absent.push((entry.name(), why));
            }
        }
    }
    for run in 0..arguments.runs as usize {
        for (number, &block) in arguments.block.iter().enumerate() {
            eprintln!(
                "run {} of {}: bursts of {}",
                run + 1,
                arguments.runs,
                size(block)
            );
            one_run(setting, &mut entries, run, number, block)?;
        }
    }
    Ok((entries, absent))
}

/// Measures everybody once. All connect first, so that they wait together.
fn one_run(
    setting: &Setting<'_>,
    entries: &mut [Entry],
    run: usize,
    number: usize,
    block: usize,
) -> Result<()> {
    let mut connected: Vec<_> = entries
        .iter()
        .map(|entry| Some(Bursts::connect(entry.address, block, entry.busy_poll)))
        .collect();
    thread::sleep(AFTER_CONNECTING);
    let count = entries.len();
    for position in 0..count {
        // Whoever goes first may find the machine different: everybody does, in turn.
        let index = (run + position) % count;
        let entry = &mut entries[index];
        let Some(bursts) = connected[index].take() else {
            continue;
        };
        if let Err(error) = bursts.and_then(|bursts| entry.send(setting, number, bursts)) {
            let what = format!("run {}, bursts of {}: {error:#}", run + 1, size(block));
            eprintln!("  {} FAILED: {what}", entry.name());
            entry.failures.push(what);
            // What it still holds of this connection must not disturb the next.
            if let Err(why) = entry.start(setting)? {
                bail!("{} ran before but now says: {why}", entry.name());
            }
        }
    }
    Ok(())
}

impl Entry {
    fn name(&self) -> String {
        let way = if self.busy_poll { ", busy poll" } else { "" };
        format!("{}{way}", self.server.name())
    }

    /// Starts its process, in place of one that may be running; or the reason why it refuses.
    fn start(&mut self, setting: &Setting<'_>) -> Result<Result<(), String>> {
        // The port has to be free first.
        self.process = None;
        let site = setting.site;
        let program = match self.server {
            Server::Own(_) => std::env::current_exe().context("this program has no path")?,
            Server::Spliced(_) => setting.spliced.into(),
        };
        let program = program.to_string_lossy();
        let mut command = match setting.arguments.server_cpu {
            None => site.lab.relay().command(&program),
            Some(cpu) => {
                let mut command = site.lab.relay().command("taskset");
                command.args(["--cpu-list", &cpu.to_string(), &program]);
                command
            }
        };
        let listen = self.address.to_string();
        match self.server {
            Server::Own(OwnEcho::ReadWrite) => command.args(["echo-server", "read-write", &listen]),
            Server::Own(OwnEcho::Sockmap2019) => {
                command.args(["echo-server", "sockmap-2019", &listen])
            }
            Server::Spliced(engine) => command.args(["echo", &listen, "--engine", engine]),
        };
        if self.busy_poll {
            command.arg("--busy-poll");
        }
        match Relay::start_alone(site, &self.name(), command, self.address)? {
            Start::Running(process) => {
                self.process = Some(process);
                Ok(Ok(()))
            }
            Start::Refused(why) => Ok(Err(why)),
        }
    }

    fn send(&mut self, setting: &Setting<'_>, number: usize, mut bursts: Bursts) -> Result<()> {
        let pid = self
            .process
            .as_ref()
            .context("its server does not run")?
            .pid();
        let arguments = setting.arguments;
        let cpus = [
            arguments.shared.cpu,
            arguments.server_cpu.unwrap_or(arguments.shared.cpu),
        ];
        let (before, polled_before) = (Reading::take(pid, &cpus)?, polled(setting.site)?);
        let times = bursts.send(arguments.bursts)?;
        let spent = Reading::take(pid, &cpus)?.since(&before);
        let measured = &mut self.measured[number];
        measured.polled += polled(setting.site)?.saturating_sub(polled_before);
        measured.spent.add(spent);
        if let Some(values) = times.whole() {
            measured.medians.push(values.med);
        }
        measured.times.extend(&times);
        bursts.finish()
    }
}

/// Packets that busy polling has taken from devices in the namespaces of client and server.
fn polled(site: &Site) -> Result<u64> {
    [site.lab.client(), site.lab.relay()]
        .into_iter()
        .map(|namespace| namespace.tcp_counter("BusyPollRxPackets"))
        .sum()
}

/// `2 MiB`.
fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

fn print(setting: &Setting<'_>, entries: &[Entry], absent: &[(String, String)]) {
    let (site, arguments) = (setting.site, setting.arguments);
    for (number, &block) in arguments.block.iter().enumerate() {
        for entry in entries {
            let measured = &entry.measured[number];
            println!("{}, bursts of {}", entry.name(), size(block));
            if let (Some(whole), Some(trimmed)) = (measured.times.whole(), measured.times.trimmed())
            {
                println!(
                    "{whole}\nwithout the worst 1 %: {trimmed}\n{}",
                    measured.times.bands()
                );
            }
        }
    }
    let cpu = arguments.shared.cpu;
    let cpus = arguments.server_cpu.map_or_else(
        || format!("Client and servers share CPU {cpu}"),
        |server| format!("Client on CPU {cpu}, servers on CPU {server}"),
    );
    println!(
        "{cpus}, kept awake; congestion control {} (2019: cubic); devices {} NAPI; {} interleaved \
         runs of {} bursts.\nTimes in µs; in brackets the ratio to {} in the same run, median over \
         the runs.",
        site.congestion_control,
        if arguments.napi { "with" } else { "without" },
        arguments.runs,
        arguments.bursts,
        REFERENCE.name(),
    );
    for (number, &block) in arguments.block.iter().enumerate() {
        for busy_poll in [false, true] {
            let way = if busy_poll { "SO_BUSY_POLL" } else { "normal" };
            println!("\nBursts of {}, {way}", size(block));
            print!("{}", table(entries, number, busy_poll));
        }
    }
    for (name, why) in absent {
        println!("{name}: {why}");
    }
    for entry in entries {
        for failure in &entry.failures {
            println!("{} FAILED: {failure}", entry.name());
        }
    }
}

fn table(entries: &[Entry], number: usize, busy_poll: bool) -> Table {
    let mut table = Table::new(&[
        "server",
        "med (ratio)",
        "avg",
        "dev",
        "max",
        "best 99 %: med",
        "avg",
        "dev",
        "max",
        "> 50 ms",
        "wake-ups/burst",
        "kworkers µs/burst",
        "polled/burst",
    ]);
    let of_way = || entries.iter().filter(|entry| entry.busy_poll == busy_poll);
    let reference = of_way()
        .find(|entry| entry.server == REFERENCE)
        .map(|entry| &entry.measured[number].medians);
    for entry in of_way() {
        let measured = &entry.measured[number];
        let (Some(whole), Some(trimmed)) = (measured.times.whole(), measured.times.trimmed())
        else {
            continue;
        };
        let ratio = reference
            .and_then(|reference| measured.medians.ratio_to(reference).median())
            .map_or_else(String::new, |ratio| format!(" ({ratio:.2})"));
        let bursts = whole.count as f64;
        let mut row = vec![entry.server.name(), format!("{:.1}{ratio}", whole.med)];
        let values = |values: Values| [values.avg, values.dev, values.max];
        row.extend(values(whole).map(|value| format!("{value:.1}")));
        row.push(format!("{:.1}", trimmed.med));
        row.extend(values(trimmed).map(|value| format!("{value:.1}")));
        row.push(measured.times.longer_than(STALL).to_string());
        row.push(format!("{:.2}", measured.spent.wake_ups as f64 / bursts));
        row.push(format!(
            "{:.2}",
            measured.spent.kworkers.as_secs_f64() * 1e6 / bursts
        ));
        row.push(format!("{:.2}", measured.polled as f64 / bursts));
        table.push(row);
    }
    table
}
