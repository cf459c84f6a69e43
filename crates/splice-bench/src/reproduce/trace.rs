//! `reproduce trace`: what following a message on one connection costs the others, and a page with a message for each
//! engine.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use netlab::{Process, Scratch};

use super::arguments;
use super::beside::{Measured, OTHER_FILES, WARM_UP_OF, start};
use super::latency::{About as Ping, MESSAGE_BYTES, Paths};
use super::record::{Record, output, parameter};
use super::turns;
use crate::cpus::Placement;
use crate::site::{Connection, Site, require_open_files};
use crate::usage::{program, require_root};
use crate::workload::ping_pong::Game;

const QUIET: &str = "not traced";
const TRACED: &str = "traced";

/// Between two messages on the connection that may be traced.
const PACE: Duration = Duration::from_millis(50);

/// What `spliced trace` logs when its programs are attached.
const ATTACHED: &str = "attached to ";

pub(crate) fn run(arguments: &arguments::Trace) -> Result<ExitCode> {
    require_root("reproduce trace")?;
    let spliced = program(&arguments.spliced)?;
    if let Some(page) = &arguments.page {
        write_page(&spliced, page)?;
    }
    let output = output(&arguments.shared)?;
    let extent = arguments.extent.sized(arguments.shared.quick);
    let record = Record::begin()?;
    // Before this thread is pinned.
    let tracer_cpus = others(arguments.shared.cpu);
    let site = Site::build(Placement::Pinned(arguments.shared.cpu))?;
    require_open_files(2 * u64::from(arguments.connections) + OTHER_FILES)?;
    let scratch = Scratch::new("bench-trace")?;
    let control = scratch.path().join("control.sock");
    let paths = site.enter(|| {
        let relay = start(
            &site,
            &spliced,
            &arguments.engine,
            ["--control".as_ref(), control.as_ref()],
        )?;
        let others =
            (0..arguments.connections.saturating_sub(2)).map(|_| site.connect(relay.address()));
        let _idle: Vec<Connection> = others.collect::<Result<_>>()?;
        let watched = site.connect(relay.address())?;
        let client = watched.client.local_addr()?.to_string();
        let mut watched = Game::begin(watched, MESSAGE_BYTES)?;
        let mut game = Game::begin(site.connect(relay.address())?, MESSAGE_BYTES)?;
        let mut paths = Paths::new(&[QUIET, TRACED]);
        let window = extent.window();
        for index in turns(extent.rounds, 2) {
            let is_over = AtomicBool::new(false);
            let measured = thread::scope(|scope| {
                let paced = scope.spawn(|| paced(&mut watched, &is_over));
                let mut round = || {
                    let tracer = (index == 1)
                        .then(|| Tracer::start(&spliced, &control, &client, &tracer_cpus))
                        .transpose()?;
                    game.warm_up(window / WARM_UP_OF)?;
                    let played = game.measure(window)?;
                    if let Some(mut tracer) = tracer {
                        ensure!(
                            tracer.is_running()?,
                            "the trace has ended within the measurement"
                        );
                    }
                    Ok::<_, anyhow::Error>(played)
                };
                let played = round();
                is_over.store(true, Ordering::Relaxed);
                paced.join().expect("it does not panic")?;
                played
            });
            let outcome = measured.map(|played| paths.all[index].add(&played));
            paths.all[index].note(outcome);
        }
        Ok(paths)
    })?;
    println!(
        "Client, relay and server share CPU {}, kept awake; the tracer has another one. Messages of {MESSAGE_BYTES} bytes on one \
         of {} connections, engine {}, while another one has a message every {} ms; {} interleaved rounds, in every other of \
         them that one is traced.\nOne way, half of the round trip, in µs; in brackets the ratio to a round that is {QUIET}.\n",
        arguments.shared.cpu,
        arguments.connections,
        arguments.engine,
        PACE.as_millis(),
        extent.rounds,
    );
    paths.print(QUIET);
    let ping = Ping {
        id: "trace",
        title: "Ping-pong beside a trace",
        description: "A message there and back through a relay, while another connection of it is traced or not.",
        reference: QUIET,
    };
    let mut workload = paths.workload(&ping, output.as_ref())?;
    workload.parameters.extend([
        parameter("connections", arguments.connections),
        parameter("engine", &arguments.engine),
    ]);
    let measured = Measured {
        site: &site,
        title: "splice-bench reproduce trace",
        cpu: arguments.shared.cpu,
        rounds: extent.rounds,
        spliced: &spliced,
        workload,
        is_sound: paths.is_sound(),
    };
    measured.finish(record, output.as_ref())
}

/// The page of `spliced trace --demo`.
fn write_page(spliced: &Path, page: &Path) -> Result<()> {
    let mut command = Process::command(spliced);
    let output = command.args(["trace", "--demo"]).output();
    let output = output.context("cannot run spliced trace --demo")?;
    ensure!(
        output.status.success(),
        "spliced says: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    fs::write(page, output.stdout).with_context(|| format!("cannot write {}", page.display()))
}

/// Plays now and then until `is_over`.
fn paced(game: &mut Game, is_over: &AtomicBool) -> Result<()> {
    while !is_over.load(Ordering::Relaxed) {
        game.warm_up(Duration::from_nanos(1))?;
        thread::sleep(PACE);
    }
    Ok(())
}

/// A trace of one message after the other, which goes on until this is dropped.
struct Tracer(Process);

impl Tracer {
    /// Starts it on `cpus`, and waits until its programs are attached.
    fn start(spliced: &Path, control: &Path, client: &str, cpus: &str) -> Result<Self> {
        let mut command = Process::command("taskset");
        command
            .args(["--cpu-list", cpus])
            .arg(spliced)
            .args([
                "trace",
                "--messages",
                "100",
                "--filter",
                &format!("client={client}"),
                "--control",
            ])
            .arg(control)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut process =
            Process::spawn(&mut command).context("cannot run taskset (util-linux)")?;
        let stderr = process
            .child_mut()
            .stderr
            .take()
            .context("it has no stderr")?;
        let mut line = String::new();
        BufReader::new(stderr).read_line(&mut line)?;
        ensure!(
            line.contains(ATTACHED),
            "spliced trace says: {}",
            line.trim()
        );
        Ok(Self(process))
    }

    fn is_running(&mut self) -> Result<bool> {
        Ok(self.0.try_wait()?.is_none())
    }
}

/// The CPUs but `cpu`, as taskset(1) takes them; that one if it is the only one.
fn others(cpu: usize) -> String {
    let count = thread::available_parallelism().map_or(1, usize::from);
    let others: Vec<_> = (0..count)
        .filter(|other| *other != cpu || count == 1)
        .map(|other| other.to_string())
        .collect();
    others.join(",")
}
