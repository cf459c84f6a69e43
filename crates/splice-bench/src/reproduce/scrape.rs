//! `reproduce scrape`: what reading the metrics of a relay with many sessions costs one that is busy.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::arguments;
use super::beside::{Measured, OTHER_FILES, WARM_UP_OF, start};
use super::latency::{About as Ping, MESSAGE_BYTES, Paths};
use super::record::{Record, output, parameter};
use super::turns;
use crate::cpus::Placement;
use crate::site::{Connection, PATIENCE, Site, require_open_files};
use crate::statistics::Latencies;
use crate::usage::{program, require_root};
use crate::workload::ping_pong::Game;

const QUIET: &str = "not scraped";
const SCRAPED: &str = "scraped";

/// The last line of OpenMetrics.
const END: &str = "# EOF\n";

pub(crate) fn run(arguments: &arguments::Scrape) -> Result<ExitCode> {
    require_root("reproduce scrape")?;
    let spliced = program(&arguments.spliced)?;
    let output = output(&arguments.shared)?;
    let extent = arguments.extent.sized(arguments.shared.quick);
    let every = Duration::from_millis(arguments.every);
    let record = Record::begin()?;
    let site = Site::build(Placement::Pinned(arguments.shared.cpu))?;
    require_open_files(2 * u64::from(arguments.sessions) + OTHER_FILES)?;
    let (paths, scrapes) = site.enter(|| {
        let metrics = Site::relay(1);
        let relay = start(
            &site,
            &spliced,
            &arguments.engine,
            ["--metrics".as_ref(), metrics.to_string().as_ref()],
        )?;
        let sessions = (0..arguments.sessions).map(|_| site.connect(relay.address()));
        let _idle: Vec<Connection> = sessions.collect::<Result<_>>()?;
        let mut game = Game::begin(site.connect(relay.address())?, MESSAGE_BYTES)?;
        let mut paths = Paths::new(&[QUIET, SCRAPED]);
        let mut scrapes = Latencies::new();
        let window = extent.window();
        for index in turns(extent.rounds, 2) {
            let is_over = AtomicBool::new(false);
            let measured = thread::scope(|scope| {
                let scraper = (index == 1).then(|| {
                    let entered = || site.enter(|| scrape_until(&is_over, metrics, every));
                    scope.spawn(entered)
                });
                let played = game
                    .warm_up(window / WARM_UP_OF)
                    .and_then(|()| game.measure(window));
                is_over.store(true, Ordering::Relaxed);
                let took = scraper.map(|scraper| scraper.join().expect("it does not panic"));
                Ok::<_, anyhow::Error>((played?, took.transpose()?))
            });
            let outcome = measured.map(|(played, took)| {
                paths.all[index].add(&played);
                if let Some(took) = took {
                    scrapes.add(&took);
                }
            });
            paths.all[index].note(outcome);
        }
        Ok((paths, scrapes))
    })?;
    let took = |quantile| format!("{:.1} ms", scrapes.microseconds(quantile) / 1e3);
    let (median, longest) = (took(0.5), took(1.0));
    println!(
        "Client, relay, server and scraper share CPU {}, kept awake; messages of {MESSAGE_BYTES} bytes on one of {} \
         sessions, engine {}; {} interleaved rounds, in every other of them a scrape each {} ms.\nOne way, half of the \
         round trip, in µs; in brackets the ratio to a round that is {QUIET}.\n",
        arguments.shared.cpu,
        arguments.sessions + 1,
        arguments.engine,
        extent.rounds,
        arguments.every,
    );
    paths.print(QUIET);
    let count = scrapes.histogram().len();
    println!("\n{count} scrapes: median {median}, longest {longest}");
    let ping = Ping {
        id: "scrape",
        title: "Ping-pong beside scrapes",
        description: "A message there and back through a relay with many idle sessions, whose metrics are read or not.",
        reference: QUIET,
    };
    let mut workload = paths.workload(&ping, output.as_ref())?;
    workload.parameters.extend([
        parameter("sessions", arguments.sessions),
        parameter("engine", &arguments.engine),
        parameter("between scrapes", format!("{} ms", arguments.every)),
        parameter("scrape, median", median),
        parameter("scrape, longest", longest),
    ]);
    let measured = Measured {
        site: &site,
        title: "splice-bench reproduce scrape",
        cpu: arguments.shared.cpu,
        rounds: extent.rounds,
        spliced: &spliced,
        workload,
        is_sound: paths.is_sound(),
    };
    measured.finish(record, output.as_ref())
}

/// Scrapes until `is_over`, and once at least. Returns how long each took.
fn scrape_until(is_over: &AtomicBool, metrics: SocketAddr, every: Duration) -> Result<Latencies> {
    let mut took = Latencies::new();
    loop {
        let begun = Instant::now();
        scrape(metrics).context("a scrape failed")?;
        took.record(begun.elapsed());
        if is_over.load(Ordering::Relaxed) {
            return Ok(took);
        }
        thread::sleep(every.saturating_sub(begun.elapsed()));
    }
}

fn scrape(metrics: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect_timeout(&metrics, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(END),
        "the answer is not whole: {} bytes",
        answer.len()
    );
    Ok(())
}
