//! `reproduce mesh`: frames from member to member, through the kernel, through `spliced mesh --engine copy` and through a
//! plain hub in user space.

mod members;

use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use self::members::Members;
use super::arguments;
use super::record::{
    About, Record, Told, failed, in_brackets, output, parameter, print_failed, quantity,
};
use super::turns;
use crate::cpu_time::{Reading, own_cpu_time};
use crate::cpus::Placement;
use crate::relay::{Relay, Start};
use crate::results::{self, Better, Kind, Unit, Workload};
use crate::site::Site;
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{program, require_root};

/// What the ratios are to.
const REFERENCE: &str = "hub";
const SOCKMAP: &str = "sockmap";
const COPY: &str = "copy";

/// More CPUs than a machine for measurements has.
const CPUS: usize = 1024;

/// What was measured of one.
struct Path {
    name: &'static str,
    frames: Sample,
    /// Of a single frame, median and 99th percentile, in µs.
    latency: Sample,
    late: Sample,
    /// CPU time of members, server and the kernel's threads for one frame in bulk, in µs.
    cpu: Sample,
    failures: Vec<String>,
}

pub(crate) fn run(arguments: &arguments::Mesh) -> Result<ExitCode> {
    require_root("reproduce mesh")?;
    let spliced = program(&arguments.spliced)?;
    let shared = &arguments.shared;
    let output = output(shared)?;
    let extent = arguments.extent.sized(shared.quick);
    let record = Record::begin()?;
    let site = Site::build(Placement::Pinned(shared.cpu))?;
    let (workloads, sound) = site.enter(|| measure(&site, &spliced, arguments, &extent))?;
    let how = [
        "one thread, epoll, a buffer for each direction",
        "spliced mesh --engine sockmap: the kernel moves the frames",
        "spliced mesh --engine copy: the process moves the frames",
    ];
    let kinds = [Kind::Peer, Kind::Ours, Kind::Ours];
    let contestants = [REFERENCE, SOCKMAP, COPY].into_iter().zip(how).zip(kinds);
    let about = About {
        site: &site,
        title: "splice-bench reproduce mesh",
        cpu: shared.cpu,
        rounds: extent.rounds,
        warm_up: "none; the members are new in each round",
        spliced: Some(&spliced),
        contestants: contestants
            .map(|((name, how), kind)| results::Contestant {
                name: name.into(),
                how: how.into(),
                kind,
            })
            .collect(),
        absent: Vec::new(),
        notes: Vec::new(),
    };
    record.finish(output.as_ref(), about, workloads, sound)
}

/// All sizes, from the client's namespace. Returns whether nothing failed as well.
fn measure(
    site: &Site,
    spliced: &FilePath,
    arguments: &arguments::Mesh,
    extent: &arguments::Extent,
) -> Result<(Vec<Workload>, bool)> {
    let running = start(site, spliced)?;
    let mut workloads = Vec::new();
    let mut sound = true;
    for (&members, &size) in (arguments.members.iter())
        .flat_map(|members| arguments.size.iter().map(move |size| (members, size)))
    {
        let mut paths = running.each_ref().map(|(name, ..)| Path::new(name));
        eprintln!("{members} members, frames of {size} bytes");
        for index in turns(extent.rounds, paths.len()) {
            let (_, address, relay) = &running[index];
            let path = &mut paths[index];
            let measured = Members::join(*address, members.into(), size)
                .and_then(|members| path.measure(members, relay.pid(), extent.window()));
            if let Err(error) = measured {
                eprintln!("  {} FAILED: {error:#}", path.name);
                path.failures.push(format!("{error:#}"));
            }
        }
        println!(
            "Frames of {size} bytes, header included, of {members} members in a ring; {} ms for each measurement, {} \
             interleaved rounds; all on CPU {}.\n",
            extent.milliseconds, extent.rounds, arguments.shared.cpu
        );
        print(&paths);
        sound &= paths.iter().all(|path| path.failures.is_empty());
        workloads.push(workload(&paths, size, members));
    }
    Ok((workloads, sound))
}

/// Starts all.
fn start(site: &Site, spliced: &FilePath) -> Result<[(&'static str, SocketAddr, Relay); 3]> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let hub = Site::relay(0);
    let mut command = site.lab.relay().command(&own.to_string_lossy());
    command.args(["mesh-hub", &hub.to_string()]);
    let hub = (REFERENCE, hub, started(site, REFERENCE, command, hub)?);
    let mesh = |engine, index| {
        let address = Site::relay(index);
        let mut command = site.lab.relay().command(&spliced.to_string_lossy());
        let listen = address.to_string();
        command.args(["mesh", &listen, "--frame", "u32be@0", "--engine", engine]);
        let relay = started(site, engine, command, address)?;
        anyhow::Ok((engine, address, relay))
    };
    Ok([hub, mesh(SOCKMAP, 1)?, mesh(COPY, 2)?])
}

fn started(
    site: &Site,
    name: &str,
    command: std::process::Command,
    address: SocketAddr,
) -> Result<Relay> {
    match Relay::start_alone(site, name, command, address)? {
        Start::Running(relay) => Ok(relay),
        Start::Refused(why) => bail!("{name} does not start: {why}"),
    }
}

impl Path {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            frames: Sample::default(),
            latency: Sample::default(),
            late: Sample::default(),
            cpu: Sample::default(),
            failures: Vec::new(),
        }
    }

    /// Has new members send through the server with this process id.
    fn measure(&mut self, mut members: Members, server: u32, window: Duration) -> Result<()> {
        let latencies = members.ping(window)?;
        let cpus: Vec<usize> = (0..CPUS).collect();
        let (before, own) = (Reading::take(Some(server), &cpus)?, own_cpu_time());
        let (rate, frames) = members.flood(window)?;
        let own = own_cpu_time() - own;
        let spent = Reading::take(Some(server), &cpus)?.since(&before);
        let cpu = own + spent.process + spent.kworkers + spent.softirqs;
        self.latency.push(latencies.microseconds(0.5));
        self.late.push(latencies.microseconds(0.99));
        self.frames.push(rate);
        self.cpu.push(cpu.as_secs_f64() * 1e6 / frames as f64);
        Ok(())
    }
}

fn print(paths: &[Path]) {
    let mut table = Table::new(&[
        "",
        "frames/s (ratio)",
        "CPU for a frame in µs (ratio)",
        "p50 of a frame in µs (ratio)",
        "p99 of a frame in µs (ratio)",
    ]);
    let reference = paths.iter().find(|path| path.name == REFERENCE);
    let cell = |sample: &Sample, of: &dyn Fn(&Path) -> Sample, digits: usize| {
        let Some(median) = sample.median() else {
            return "-".into();
        };
        let ratio = reference.map(|reference| in_brackets(&sample.ratio_to(&of(reference))));
        format!("{median:.digits$}{}", ratio.unwrap_or_default())
    };
    for path in paths {
        table.push(vec![
            path.name.into(),
            cell(&path.frames, &|path| path.frames.clone(), 0),
            cell(&path.cpu, &|path| path.cpu.clone(), 2),
            cell(&path.latency, &|path| path.latency.clone(), 1),
            cell(&path.late, &|path| path.late.clone(), 1),
        ]);
    }
    println!("{table}");
    for path in paths {
        print_failed(path.name, &path.failures);
    }
}

fn workload(paths: &[Path], size: usize, members: u16) -> Workload {
    let mut workload = Workload::new(
        &format!("mesh-{members}-{size}"),
        &format!("{members} members, frames of {size} B"),
        "Frames from member to member: one after another, and as many as go.",
    );
    workload.parameters = vec![
        parameter("frame", format!("{size} B")),
        parameter("members", members),
    ];
    let samples = |of: &dyn Fn(&Path) -> Sample| -> Vec<_> {
        let samples = paths.iter().map(|path| (path.name.into(), of(path)));
        samples.collect()
    };
    let frames = Told {
        id: "frames",
        title: "Frames a second",
        unit: Unit::Count,
        better: Better::Higher,
    };
    let latency = Told {
        id: "latency",
        title: "From member to member, median",
        unit: Unit::Microseconds,
        better: Better::Lower,
    };
    let late = Told {
        id: "late",
        title: "From member to member, 99th percentile",
        unit: Unit::Microseconds,
        better: Better::Lower,
    };
    let cpu = Told {
        id: "cpu",
        title: "CPU time of members, server and kernel threads for a frame in bulk",
        unit: Unit::Microseconds,
        better: Better::Lower,
    };
    workload.quantities = vec![
        quantity(frames, REFERENCE, &samples(&|path| path.frames.clone())),
        quantity(cpu, REFERENCE, &samples(&|path| path.cpu.clone())),
        quantity(latency, REFERENCE, &samples(&|path| path.latency.clone())),
        quantity(late, REFERENCE, &samples(&|path| path.late.clone())),
    ];
    for path in paths {
        workload.missing.extend(failed(path.name, &path.failures));
    }
    workload
}
