//! `spliced adopt`: splices two sockets of running processes, and gives them back.

mod adoption;
mod exchange;
mod flow;
mod frozen;
mod held;
mod keeper;
mod list;
mod owner;
mod pipe;
mod side;
mod stand_in;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use self::adoption::{Adoption, Event, State};
use self::held::GivenBack;
use self::side::Side;
use crate::adopt_args::AdoptArgs;
use crate::diagnostics::Diagnostics;
use crate::exit_status::Ended;
use crate::log_file::LogFile;
use crate::log_queue::{LogQueue, Reporter};
use crate::refusal::WrongUsage;
use crate::signal::{Request, Signals};

/// How often the report gets a line.
const REPORT_EVERY: Duration = Duration::from_secs(1);

/// How often the owner is looked at while it writes what it had read.
const SETTLE_EVERY: Duration = Duration::from_millis(1);

/// How often it is looked at later: whether it writes something of its own.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// How often is looked at the end whether all bytes have arrived.
const GIVE_BACK_EVERY: Duration = Duration::from_millis(5);

/// How long the owner is tried to be given sockets back that were reset.
const CUT_PATIENCE: Duration = Duration::from_secs(2);

/// How long the owner may take to write what it had read. A relay does so at once when its socket takes bytes, as a
/// stand-in does.
const SETTLE_PATIENCE: Duration = Duration::from_secs(5);

/// How long the report may take to be written at the end.
const REPORT_PATIENCE: Duration = Duration::from_secs(1);

/// Adopts two sockets until a signal, or until there is nothing left to do.
///
/// # Errors
/// If they cannot be adopted or given back.
pub(crate) fn run(args: &AdoptArgs, signals: Signals, diagnostics: &Diagnostics) -> Result<Ended> {
    if args.keeper {
        return keeper::keep(signals, diagnostics);
    }
    if args.fd.is_empty() {
        signals.leave_to_default()?;
        return list::print(args).map(|()| Ended::Well);
    }
    let [first, second] = named(args)?;
    let (sender, events) = mpsc::channel();
    let progress = signals.watch(diagnostics.clone(), false, {
        let sender = sender.clone();
        move |request| {
            if request == Request::Stop {
                // Nobody listens any more only at the end.
                let _ = sender.send(Event::Stop);
            }
        }
    })?;
    let refused = |error: anyhow::Error| {
        anyhow::Error::from(WrongUsage::new(format!(
            "cannot adopt these sockets: {error:#}"
        )))
    };
    let sides = [
        Side::take(first.0, first.1).map_err(refused)?,
        Side::take(second.0, second.1).map_err(refused)?,
    ];
    sides[0].refuse_peer(&sides[1]).map_err(refused)?;
    let told = sides.each_ref().map(|side| {
        format!(
            "{} of {} ({})",
            side.number,
            side.owner.name(),
            side.addresses()
        )
    });
    let mut report = Report::start(args.json, [first, second])?;
    progress.running();
    let mut adoption = Adoption::begin(sides, sender).map_err(refused)?;
    tracing::info!(
        "adopted {} and {}; the owner stood still for {:.1} ms",
        told[0],
        told[1],
        milliseconds(adoption.stood_still)
    );
    let why = until_over(&mut adoption, &events, &mut report)?;
    adoption.stop();
    let (ended, given) = give_back(&mut adoption, &events);
    let [forth, back] = adoption.moved_bytes();
    report.write(&adoption);
    report.finish();
    let also = given.as_ref().map(keeper::also).unwrap_or_default();
    let stood_still = given.map(|given| given.stood_still).unwrap_or_default();
    match (why, ended) {
        (Why::Refused(why), _) => Err(WrongUsage::new(format!(
            "cannot adopt these sockets: {why}; their owner has them again"
        ))
        .into()),
        (Why::Over(why), Ended::Well) => {
            tracing::info!(
                "given back{also} because of {why}: {forth} bytes moved from {} to {}, {back} bytes back; the owner stood \
                 still for {:.1} ms",
                first.1,
                second.1,
                milliseconds(stood_still)
            );
            Ok(ended)
        }
        (Why::Over(why), Ended::CutShort) => {
            tracing::warn!(
                "both connections were reset: {why}, and a second signal came before the rest was delivered"
            );
            Ok(ended)
        }
    }
}

/// Why the sockets are given back.
enum Why {
    /// The adoption did its work.
    Over(String),
    /// These are no sockets to adopt, as it turned out.
    Refused(String),
}

fn named(args: &AdoptArgs) -> Result<[(u32, u32); 2]> {
    let wrong =
        |why: &str| Err(WrongUsage::new(format!("{why}; see 'spliced adopt --help'")).into());
    let [first, second] = args.fd[..] else {
        return wrong("a splice has two sockets: give --fd twice");
    };
    let named = match args.pid[..] {
        [pid] => [(pid, first), (pid, second)],
        [one, other] => [(one, first), (other, second)],
        _ => return wrong("a splice has two sockets: give --pid once or twice"),
    };
    let [one, other] = named;
    match one == other {
        true => wrong("cannot adopt these sockets: both are the same one"),
        false => Ok(named),
    }
}

fn until_over(
    adoption: &mut Adoption,
    events: &Receiver<Event>,
    report: &mut Report,
) -> Result<Why> {
    let mut report_at = Instant::now();
    loop {
        if let Err(error) = adoption.settle() {
            return Ok(Why::Refused(format!("{error:#}")));
        }
        if let Some(why) = adoption.overdue(SETTLE_PATIENCE) {
            return Ok(Why::Refused(why));
        }
        if Instant::now() >= report_at {
            report.write(adoption);
            report_at += REPORT_EVERY;
        }
        let pause = match adoption.state {
            State::Settling => SETTLE_EVERY,
            _ => LOOK_EVERY,
        };
        match events.recv_timeout(pause) {
            Ok(event) => {
                if let Some(why) = adoption.note(event) {
                    return Ok(Why::Over(why));
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => unreachable!("the adoption has a sender"),
        }
    }
}

/// Gives the sockets back as soon as what their owner has written is with them.
fn give_back(adoption: &mut Adoption, events: &Receiver<Event>) -> (Ended, Option<GivenBack>) {
    let mut has_warned = false;
    let mut cut_at: Option<Instant> = None;
    let ended = |cut_at: Option<Instant>| match cut_at {
        None => Ended::Well,
        Some(_) => Ended::CutShort,
    };
    loop {
        match adoption.give_back() {
            Ok(Some(given)) => return (ended(cut_at), Some(given)),
            Ok(None) => {}
            Err(error) if !has_warned => {
                has_warned = true;
                tracing::warn!("cannot give the sockets back yet: {error:#}");
            }
            Err(_) => {}
        }
        if cut_at.is_some_and(|at| at.elapsed() > CUT_PATIENCE) {
            adoption.leave();
            return (Ended::CutShort, None);
        }
        // The owner goes on meanwhile: a peer that does not read may take its time.
        match events.recv_timeout(GIVE_BACK_EVERY) {
            Ok(Event::Stop) => {
                adoption.cut();
                cut_at = Some(cut_at.unwrap_or_else(Instant::now));
            }
            Ok(event) => drop(adoption.note(event)),
            Err(_) => {}
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// The report on standard output, which waits for no reader.
struct Report {
    lines: LogQueue,
    is_json: bool,
    named: [(u32, u32); 2],
    since: Instant,
    /// When the last line was written, and how many bytes had moved then.
    before: (Instant, [u64; 2]),
}

#[derive(Serialize)]
struct Line {
    seconds: f64,
    state: &'static str,
    /// In the beginning.
    stood_still_seconds: f64,
    directions: [Direction; 2],
}

#[derive(Serialize)]
struct Direction {
    from_pid: u32,
    from_fd: u32,
    to_pid: u32,
    to_fd: u32,
    bytes: u64,
    /// Since the last line.
    bytes_per_second: f64,
    /// Why nothing has moved since the last line.
    reason: Option<String>,
}

impl Report {
    fn start(is_json: bool, named: [(u32, u32); 2]) -> Result<Self> {
        let file =
            LogFile::standard_stream(&std::io::stdout()).context("cannot write the report")?;
        let lines = LogQueue::start("report", file, Silent).context("cannot start a thread")?;
        let now = Instant::now();
        Ok(Self {
            lines,
            is_json,
            named,
            since: now,
            before: (now, [0; 2]),
        })
    }

    fn write(&mut self, adoption: &Adoption) {
        let now = Instant::now();
        let moved = adoption.moved_bytes();
        let (before, moved_before) = std::mem::replace(&mut self.before, (now, moved));
        let elapsed_s = (now - before).as_secs_f64().max(1e-3);
        let mut obstacles = adoption.obstacles().into_iter();
        let [one, other] = self.named;
        let ways = [(one, other), (other, one)];
        let directions = [0, 1].map(|at| {
            let bytes = moved[at] - moved_before[at];
            let (from, to) = ways[at];
            Direction {
                from_pid: from.0,
                from_fd: from.1,
                to_pid: to.0,
                to_fd: to.1,
                bytes: moved[at],
                bytes_per_second: (bytes as f64 / elapsed_s).round(),
                reason: obstacles.next().filter(|_| bytes == 0),
            }
        });
        let line = Line {
            seconds: (self.since.elapsed().as_millis() as f64) / 1000.0,
            state: match adoption.state {
                State::Settling => "settling",
                State::Adopted => "adopted",
                State::GivingBack => "giving-back",
                State::Over => "over",
            },
            stood_still_seconds: adoption.stood_still.as_secs_f64(),
            directions,
        };
        let text = match self.is_json {
            // It has no map whose keys could not be written.
            true => serde_json::to_string(&line).unwrap_or_default(),
            false => line.in_words(),
        };
        self.lines.push(format!("{text}\n").into_bytes());
    }

    fn finish(self) {
        let _ = self.lines.finish(REPORT_PATIENCE);
    }
}

impl Line {
    fn in_words(&self) -> String {
        let directions = self.directions.each_ref().map(Direction::in_words);
        format!(
            "{:9.3} s  {:<11}  {}",
            self.seconds,
            self.state,
            directions.join("  ")
        )
    }
}

impl Direction {
    fn in_words(&self) -> String {
        let Self {
            from_pid,
            from_fd,
            to_pid,
            to_fd,
            bytes,
            ..
        } = self;
        let now = match &self.reason {
            None => format!("{} bytes/s", self.bytes_per_second),
            Some(reason) => reason.clone(),
        };
        format!("{from_pid}:{from_fd} to {to_pid}:{to_fd}: {bytes} bytes ({now})")
    }
}

/// A reader who has gone away misses nothing that matters here.
struct Silent;

impl Reporter for Silent {
    fn failed(&mut self, _: &std::io::Error) {}

    fn recovered(&mut self, _: u64) -> Option<Vec<u8>> {
        None
    }

    fn reopened(&mut self, _: std::io::Result<()>) {}
}
