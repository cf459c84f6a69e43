//! `reproduce echo`: the four echo servers of 2019, and what has become of them.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use netlab::{Lab, Namespace, Spinner};

use super::arguments::{self, OwnEcho};
use super::record::{About, Record, Told, in_brackets, missing, output, parameter, quantity};
use crate::cpu_time::{Reading, Spent};
use crate::cpus::Placement;
use crate::relay::{Relay, Start};
use crate::results::{
    self, Better, Candlestick, Candlesticks, Kind, Missing, Spread, Stalled, Stalls, Unit, Workload,
};
use crate::site::Site;
use crate::statistics::{Sample, Times, Values};
use crate::table::Table;
use crate::usage::{Usage, program, require_root};
use crate::workload::echo::Bursts;

/// Between connecting and the first burst, as in the original: the socket has to be in its map before
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
        let own = [
            OwnEcho::ReadWrite,
            OwnEcho::Sockmap2019,
            OwnEcho::Sockmap2019Untuned,
        ]
        .map(Self::Own);
        let spliced = ENGINES.map(Self::Spliced);
        own.into_iter().chain(spliced).collect()
    }

    fn name(self) -> String {
        match self {
            Self::Own(OwnEcho::ReadWrite) => "read/write".into(),
            Self::Own(OwnEcho::Sockmap2019) => "sockmap-2019".into(),
            Self::Own(OwnEcho::Sockmap2019Untuned) => "sockmap-2019 untuned".into(),
            Self::Spliced(engine) => format!("spliced {engine}"),
        }
    }

    /// Whether a person means this one by `text`.
    fn is_called(self, text: &str) -> bool {
        let name = self.name();
        let is = |name: &str| name.eq_ignore_ascii_case(text);
        is(&name) || name.strip_prefix("spliced ").is_some_and(is)
    }

    fn told(self) -> results::Contestant {
        let (how, kind) = match self {
            Self::Own(OwnEcho::ReadWrite) => (
                "a blocking read and a write, in a loop; 128 KiB".into(),
                Kind::Reference,
            ),
            Self::Own(OwnEcho::Sockmap2019) => (
                "a parser and a verdict that redirects everything; SO_SNDBUF 32 MiB".into(),
                Kind::Peer,
            ),
            Self::Own(OwnEcho::Sockmap2019Untuned) => (
                "the same with the send buffer that the kernel gives".into(),
                Kind::Peer,
            ),
            Self::Spliced(engine) => (format!("spliced echo --engine {engine}"), Kind::Ours),
        };
        results::Contestant {
            name: self.name(),
            how,
            kind,
        }
    }

    /// Whether losing bytes is a failure, and not what is to be found out.
    fn is_sound(self) -> bool {
        matches!(self, Self::Spliced(_) | Self::Own(OwnEcho::ReadWrite))
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

/// What the kernel has counted in the namespaces of client and server.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Packets that the server's device took and gave.
    packets: u64,
    /// Packets that a busy-polling receiver took from the device.
    polled: u64,
}

impl Counts {
    fn read(site: &Site) -> Result<Self> {
        let (client, server) = (site.lab.client(), site.lab.relay());
        let polled = |namespace: &Namespace| namespace.tcp_counter("BusyPollRxPackets");
        Ok(Self {
            packets: server.packets(Lab::TO_CLIENT)?,
            polled: polled(client)? + polled(server)?,
        })
    }

    fn add(&mut self, after: Self, before: Self) {
        self.packets += after.packets.saturating_sub(before.packets);
        self.polled += after.polled.saturating_sub(before.polled);
    }
}

/// What was measured with one size of a burst.
#[derive(Default)]
struct Measured {
    times: Times,
    /// Median of each run, in µs.
    medians: Sample,
    spent: Spent,
    counts: Counts,
}

impl Measured {
    /// Wake-ups of the server, µs of kernel workers, packets, and polled packets, of a burst.
    fn per_burst(&self) -> Option<[f64; 4]> {
        let counted = [
            self.spent.wake_ups as f64,
            self.spent.kworkers.as_secs_f64() * 1e6,
            self.counts.packets as f64,
            self.counts.polled as f64,
        ];
        let bursts = self.times.len() as f64;
        (bursts > 0.0).then(|| counted.map(|count| count / bursts))
    }
}

/// What the measurements need to know.
struct Setting<'a> {
    site: &'a Site,
    arguments: &'a arguments::Echo,
    spliced: &'a Path,
}

pub(crate) fn run(arguments: arguments::Echo) -> Result<ExitCode> {
    require_root("reproduce echo")?;
    let spliced = program(&arguments.who.spliced)?;
    let servers = chosen(&arguments.who.only)?;
    let output = output(&arguments.shared)?;
    let record = Record::begin()?;
    let site = Site::build(Placement::Pinned(arguments.shared.cpu))?;
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
    let sound = |entry: &Entry| !entry.server.is_sound() || entry.failures.is_empty();
    let about = About {
        site: &site,
        title: "splice-bench reproduce echo",
        cpu: arguments.shared.cpu,
        rounds: arguments.runs,
        warm_up: "none, as in the original; 1 s between connecting and the first burst",
        spliced: Some(&spliced),
        contestants: servers.iter().copied().map(Server::told).collect(),
        absent,
        notes: vec![setting.words()],
    };
    let workloads = told(&arguments, &entries);
    record.finish(output.as_ref(), about, workloads, entries.iter().all(sound))
}

/// The servers that `--only` leaves; the reference always runs.
fn chosen(only: &[String]) -> Result<Vec<Server>> {
    let all = Server::all();
    if let Some(unknown) = only
        .iter()
        .find(|name| !all.iter().any(|one| one.is_called(name)))
    {
        let names: Vec<String> = all.into_iter().map(Server::name).collect();
        bail!(Usage(format!(
            "--only does not know {unknown:?}: choose from {}",
            names.join(", ")
        )));
    }
    let wanted = |one: &Server| {
        only.is_empty() || *one == REFERENCE || only.iter().any(|name| one.is_called(name))
    };
    Ok(all.into_iter().filter(wanted).collect())
}

/// Who took part, and who could not, with the reason.
type Outcome = (Vec<Entry>, Vec<Missing>);

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
                absent.push(missing(&entry.name(), &why));
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
            if netlab::interrupted().is_some() {
                return Ok((entries, absent));
            }
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
            Server::Own(kind) => {
                // Every kind has a name to be called by.
                let name = kind.to_possible_value();
                let name = name.context("an echo server without a name")?;
                command.args(["echo-server", name.get_name(), &listen])
            }
            Server::Spliced(engine) => {
                command.args(["echo", &listen, "--engine", engine, "--threads", "1"])
            }
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
        let pid = self.process.as_ref().map(Relay::pid);
        let arguments = setting.arguments;
        let cpus = [
            arguments.shared.cpu,
            arguments.server_cpu.unwrap_or(arguments.shared.cpu),
        ];
        let (before, counted) = (Reading::take(pid, &cpus)?, Counts::read(setting.site)?);
        let times = bursts.send(arguments.bursts)?;
        if netlab::interrupted().is_some() {
            return Ok(());
        }
        let spent = Reading::take(pid, &cpus)?.since(&before);
        let measured = &mut self.measured[number];
        measured.counts.add(Counts::read(setting.site)?, counted);
        measured.spent.add(spent);
        if let Some(values) = times.whole() {
            measured.medians.push(values.med);
        }
        measured.times.extend(&times);
        bursts.finish()
    }
}

/// `2 MiB`.
fn size(bytes: usize) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

impl Setting<'_> {
    /// How it was measured.
    fn words(&self) -> String {
        let (site, arguments) = (self.site, self.arguments);
        let cpu = arguments.shared.cpu;
        let cpus = arguments.server_cpu.map_or_else(
            || format!("Client and servers share CPU {cpu}"),
            |server| format!("Client on CPU {cpu}, servers on CPU {server}"),
        );
        let devices = if arguments.napi {
            "segments of one MTU and NAPI, as a network card has them"
        } else {
            "segments of up to 64 KiB and no NAPI, as a veth comes"
        };
        format!(
            "{cpus}, kept awake; devices with {devices}; congestion control {} (2019: cubic); {} \
             interleaved runs of {} bursts. Times in µs; in brackets the ratio to {} in the same run, \
             median over the runs and where it can be trusted to lie.",
            site.congestion_control,
            arguments.runs,
            arguments.bursts,
            REFERENCE.name(),
        )
    }
}

fn print(setting: &Setting<'_>, entries: &[Entry], absent: &[Missing]) {
    let arguments = setting.arguments;
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
    println!("{}", setting.words());
    for (number, &block) in arguments.block.iter().enumerate() {
        for busy_poll in [false, true] {
            let way = series(busy_poll);
            println!("\nBursts of {}, {way}", size(block));
            print!("{}", table(entries, number, busy_poll));
        }
    }
    absent
        .iter()
        .for_each(|one| println!("{}: {}", one.what, one.why));
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
        "packets/burst",
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
            .map(|reference| in_brackets(&measured.medians.ratio_to(reference)))
            .unwrap_or_default();
        let mut row = vec![entry.server.name(), format!("{:.1}{ratio}", whole.med)];
        let values = |values: Values| [values.avg, values.dev, values.max];
        row.extend(values(whole).map(|value| format!("{value:.1}")));
        row.push(format!("{:.1}", trimmed.med));
        row.extend(values(trimmed).map(|value| format!("{value:.1}")));
        row.push(measured.times.longer_than(STALL).to_string());
        let [wake_ups, kworkers, packets, polled] = measured.per_burst().unwrap_or_default();
        row.push(format!("{wake_ups:.2}"));
        row.push(format!("{kworkers:.2}"));
        row.push(format!("{packets:.1}"));
        row.push(format!("{polled:.2}"));
        table.push(row);
    }
    table
}

/// What the runs with and without SO_BUSY_POLL are called.
fn series(busy_poll: bool) -> &'static str {
    if busy_poll { "busy poll" } else { "normal" }
}

/// Everything for the results: a workload for each size of a burst.
fn told(arguments: &arguments::Echo, entries: &[Entry]) -> Vec<Workload> {
    let blocks = arguments.block.iter().enumerate();
    blocks
        .map(|(number, &block)| workload(arguments, entries, number, block))
        .collect()
}

fn workload(
    arguments: &arguments::Echo,
    entries: &[Entry],
    number: usize,
    block: usize,
) -> Workload {
    let title = format!("Echo, bursts of {}", size(block));
    let mut workload = Workload::new(
        &format!("echo-{block}"),
        &title,
        "A socket spliced to itself sends back what it gets. A burst is sent while what comes back is \
         received, and the time is that until all of it is back; the payload is compared.",
    );
    workload.parameters = vec![
        parameter("burst", size(block)),
        parameter("bursts of a run", arguments.bursts),
    ];
    for busy_poll in [false, true] {
        let of_way = || {
            entries
                .iter()
                .filter(move |entry| entry.busy_poll == busy_poll)
        };
        let medians: Vec<_> = of_way()
            .map(|entry| (entry.server.name(), entry.measured[number].medians.clone()))
            .collect();
        let told = Told {
            id: if busy_poll {
                "median-busy-poll"
            } else {
                "median"
            },
            title: &format!("Median time of a burst, {}", series(busy_poll)),
            unit: Unit::Microseconds,
            better: Better::Lower,
        };
        workload
            .quantities
            .push(quantity(told, &REFERENCE.name(), &medians));
    }
    let measured = || {
        entries
            .iter()
            .map(|entry| (entry, &entry.measured[number].times))
    };
    let stick = |(entry, times): (&Entry, &Times)| Candlestick {
        contestant: entry.server.name(),
        series: series(entry.busy_poll).into(),
        whole: times.whole().map(spread),
        trimmed: times.trimmed().map(spread),
        buckets: times
            .bands()
            .iter()
            .map(|(end, count)| (end as f64, count))
            .collect(),
    };
    workload.candlesticks = Some(Candlesticks {
        title: format!("Time until {} are back", size(block)),
        unit: Unit::Microseconds,
        trimmed_percent: Times::TRIMMED_PERCENT,
        sticks: measured().map(stick).collect(),
    });
    let stalled = |(entry, times): (&Entry, &Times)| Stalled {
        contestant: entry.server.name(),
        series: Some(series(entry.busy_poll).into()),
        stalls: times.longer_than(STALL) as u64,
        of: times.len() as u64,
        longest_milliseconds: times.whole().map_or(0.0, |values| values.max / 1e3),
    };
    workload.stalls = Some(Stalls {
        over_milliseconds: STALL.as_secs_f64() * 1e3,
        counted: measured().map(stalled).collect(),
    });
    for busy_poll in [false, true] {
        let of_way = entries.iter().filter(|entry| entry.busy_poll == busy_poll);
        let counted: Vec<String> = of_way.filter_map(|entry| counted(entry, number)).collect();
        let note = format!(
            "Counted by the kernel, per burst, {}: {}.",
            series(busy_poll),
            counted.join("; ")
        );
        workload.notes.push(note);
    }
    for entry in entries {
        let failed = entry.failures.iter().map(|why| missing(&entry.name(), why));
        workload.missing.extend(failed);
    }
    workload
}

/// What the kernel has counted of somebody, in words.
fn counted(entry: &Entry, number: usize) -> Option<String> {
    let measured = &entry.measured[number];
    let [wake_ups, kworkers, packets, polled] = measured.per_burst()?;
    Some(format!(
        "{} {wake_ups:.2} wake-ups of the server, {kworkers:.2} µs of kernel workers, {packets:.1} packets, \
         {polled:.2} of them polled",
        entry.server.name()
    ))
}

fn spread(values: Values) -> Spread {
    Spread {
        min: values.min,
        mean: Some(values.avg),
        median: values.med,
        max: values.max,
        deviation: values.dev,
        count: Some(values.count as u64),
    }
}
