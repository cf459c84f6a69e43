//! `reproduce mesh`: frames from member to member, through the kernel and through a hub in user space.

mod members;

use std::net::SocketAddr;
use std::path::Path as FilePath;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use self::members::Members;
use super::arguments;
use super::record::{
    About, Record, Told, failed, in_brackets, output, parameter, print_failed, quantity,
};
use super::turns;
use crate::cpus::Placement;
use crate::relay::{Relay, Start};
use crate::results::{self, Better, Kind, Unit, Workload};
use crate::site::Site;
use crate::statistics::Sample;
use crate::table::Table;
use crate::usage::{program, require_root};

/// What the ratios are to.
const REFERENCE: &str = "hub";
const MESH: &str = "spliced mesh";

/// What was measured of one.
struct Path {
    name: &'static str,
    frames: Sample,
    latency: Sample,
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
        "frames are delivered by the kernel",
    ];
    let kinds = [Kind::Peer, Kind::Ours];
    let contestants = [REFERENCE, MESH].into_iter().zip(how).zip(kinds);
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
    for &size in &arguments.size {
        let mut paths = running.each_ref().map(|(name, ..)| Path::new(name));
        eprintln!("frames of {size} bytes");
        for index in turns(extent.rounds, paths.len()) {
            let (_, address, _) = running[index];
            let path = &mut paths[index];
            let members = arguments.members.into();
            let measured = Members::join(address, members, size).and_then(|mut members| {
                let latencies = members.ping(extent.window())?;
                path.latency.push(latencies.microseconds(0.5));
                path.frames.push(members.flood(extent.window())?);
                Ok(())
            });
            if let Err(error) = measured {
                eprintln!("  {} FAILED: {error:#}", path.name);
                path.failures.push(format!("{error:#}"));
            }
        }
        println!(
            "Frames of {size} bytes, header included, of {} members in a ring; {} ms for each measurement, {} \
             interleaved rounds; all on CPU {}.\n",
            arguments.members, extent.milliseconds, extent.rounds, arguments.shared.cpu
        );
        print(&paths);
        sound &= paths.iter().all(|path| path.failures.is_empty());
        workloads.push(workload(&paths, size, arguments));
    }
    Ok((workloads, sound))
}

/// Starts both.
fn start(site: &Site, spliced: &FilePath) -> Result<[(&'static str, SocketAddr, Relay); 2]> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let hub = Site::relay(0);
    let mut command = site.lab.relay().command(&own.to_string_lossy());
    command.args(["mesh-hub", &hub.to_string()]);
    let hub = (REFERENCE, hub, started(site, REFERENCE, command, hub)?);
    let mesh = Site::relay(1);
    let mut command = site.lab.relay().command(&spliced.to_string_lossy());
    command.args(["mesh", &mesh.to_string(), "--frame", "u32be@0"]);
    Ok([hub, (MESH, mesh, started(site, MESH, command, mesh)?)])
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
            failures: Vec::new(),
        }
    }
}

fn print(paths: &[Path]) {
    let mut table = Table::new(&["", "frames/s (ratio)", "p50 of a frame in µs (ratio)"]);
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
            cell(&path.latency, &|path| path.latency.clone(), 1),
        ]);
    }
    println!("{table}");
    for path in paths {
        print_failed(path.name, &path.failures);
    }
}

fn workload(paths: &[Path], size: usize, arguments: &arguments::Mesh) -> Workload {
    let mut workload = Workload::new(
        &format!("mesh-{size}"),
        &format!("Frames of {size} B"),
        "Frames from member to member: one after another, and as many as go.",
    );
    workload.parameters = vec![
        parameter("frame", format!("{size} B")),
        parameter("members", arguments.members),
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
    workload.quantities = vec![
        quantity(frames, REFERENCE, &samples(&|path| path.frames.clone())),
        quantity(latency, REFERENCE, &samples(&|path| path.latency.clone())),
    ];
    for path in paths {
        workload.missing.extend(failed(path.name, &path.failures));
    }
    workload
}
