//! `spliced bypass capture`: what is redirected, as a file of packets.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use splice::bypass::{
    Capture, CaptureEnd, CaptureOptions, Captured, Connection, Message, State, status,
};
use splice::trace::ConnectionFilter;

use super::pcapng::File;
use crate::bypass_args::CaptureArgs;
use crate::diagnostics::Diagnostics;
use crate::exit_status::{Ended, FAILED};
use crate::signal::{Request, Signals};

/// How often to take what was captured.
const TURN_EVERY: Duration = Duration::from_millis(10);

/// Several times in the second for which it counts.
const BEAT_EVERY: Duration = Duration::from_millis(100);

/// Captures until a signal comes, as many messages were captured as were asked for, or the bypass ends.
///
/// # Errors
/// If there is no bypass or no such connection, the file cannot be written, or the bypass is killed meanwhile.
pub(super) fn run(
    args: &CaptureArgs,
    signals: Signals,
    diagnostics: &Diagnostics,
) -> Result<Ended> {
    look(args)?;
    let options = CaptureOptions {
        connection: args.connection,
        snap_bytes: args.snap_bytes,
        with_passed: args.with_passed,
        ..CaptureOptions::of(args.pins.pins.clone())
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let progress = signals.watch(diagnostics.clone(), false, {
        let is_over = Arc::clone(&is_over);
        move |request| {
            if request == Request::Stop && is_over.swap(true, Ordering::Relaxed) {
                // It waits for the reader of a pipe.
                std::process::exit(FAILED.into());
            }
        }
    })?;
    // Before the file: what cannot be captured makes none.
    let capture = Capture::start(&options)?;
    let output = open(&args.write)?;
    progress.running();
    // A reader that does not read keeps the other thread from saying it.
    let heartbeat = capture.heartbeat();
    let beating = thread::Builder::new().name("heartbeat".into());
    beating
        .spawn(move || {
            while heartbeat.beat() {
                thread::sleep(BEAT_EVERY);
            }
        })
        .context("cannot start a thread")?;
    let written = write(args, capture, output, &is_over);
    match written {
        // Its reader has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(Ended::Well),
        written => {
            let captured =
                written.with_context(|| format!("cannot write {}", args.write.display()))?;
            tell(&captured.captured);
            match captured.ended {
                Some(CaptureEnd::Superseded) => bail!(
                    "the capture stood still for over five seconds, and was taken for dead: what was sent since is missing from {}",
                    args.write.display()
                ),
                Some(CaptureEnd::BypassGone) => bail!(
                    "the process of the bypass was killed or stands still: {} has what was redirected until then, and all \
                     else goes over TCP; start the bypass again, or end it with 'spliced bypass off'",
                    args.write.display()
                ),
                Some(CaptureEnd::BypassEnded) | None => Ok(Ended::Well),
            }
        }
    }
}

/// What has become of a capture.
struct Written {
    captured: Captured,
    /// `None`: it was asked to end.
    ended: Option<CaptureEnd>,
}

fn is_broken_pipe(error: &io::Error) -> bool {
    error.kind() == ErrorKind::BrokenPipe
}

/// Says which connections there are to capture.
fn look(args: &CaptureArgs) -> Result<()> {
    let pins = &args.pins.pins;
    let Some(status) = status(pins)? else {
        bail!(
            "no bypass has its pins in {}; start one with 'spliced bypass --cgroup PATH', or name its pins with --pins",
            pins.display()
        );
    };
    let Some(filter) = args.connection else {
        return Ok(());
    };
    let found: Vec<&Connection> = (status.connections.iter())
        .filter(|of| is_taken(filter, of))
        .collect();
    if found.is_empty() {
        bail!(
            "no connection of the bypass is {filter}: see 'spliced bypass status', or leave out --connection to capture all"
        );
    }
    if found.iter().all(|of| of.state != State::Redirected) {
        let why = found[0]
            .reason
            .map_or_else(String::new, |why| format!(", since {why}"));
        tracing::warn!(
            "{filter} goes over TCP now{why}: nothing of it is captured while that is so; tcpdump sees it"
        );
    }
    Ok(())
}

fn is_taken(filter: ConnectionFilter, of: &Connection) -> bool {
    let mut ends = [of.client, of.server].into_iter().flatten();
    ends.any(|end| filter.takes(end.local, end.remote))
}

fn open(path: &Path) -> Result<Box<dyn Write>> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout().lock()));
    }
    // What others say to one another is nobody else's.
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    let file = file.with_context(|| format!("cannot write {}", path.display()))?;
    Ok(Box::new(file))
}

fn write(
    args: &CaptureArgs,
    mut capture: Capture,
    output: Box<dyn Write>,
    is_over: &AtomicBool,
) -> io::Result<Written> {
    let mut file = File::begin(BufWriter::new(output), args.snap_bytes)?;
    file.flush()?;
    tracing::info!("captures; a signal ends it");
    let mut left = args.count.unwrap_or(u64::MAX);
    let mut add = |file: &mut File<_>, message: &Message<'_>| -> io::Result<()> {
        if left == 0 {
            return Ok(());
        }
        left -= 1;
        if left == 0 {
            is_over.store(true, Ordering::Relaxed);
        }
        file.add(message)
    };
    let mut ended = None;
    while !is_over.load(Ordering::Relaxed) {
        ended = capture.turn(|message| add(&mut file, message))?;
        file.flush()?;
        match ended {
            None => thread::sleep(TURN_EVERY),
            Some(why) => {
                if why == CaptureEnd::BypassEnded {
                    tracing::info!("the bypass has ended, and the capture with it");
                }
                break;
            }
        }
    }
    let mut captured = capture.finish(|message| add(&mut file, message))?;
    // More may have come than were asked for.
    captured.messages = captured.messages.min(args.count.unwrap_or(u64::MAX));
    file.finish(captured)?;
    Ok(Written { captured, ended })
}

fn tell(captured: &Captured) {
    let Captured {
        messages,
        lost,
        torn,
        ..
    } = *captured;
    if lost > 0 {
        tracing::warn!(
            "{messages} messages captured; {lost} were lost, since they came faster than they could be written"
        );
    } else {
        tracing::info!("{messages} messages captured, none lost");
    }
    if torn > 0 {
        tracing::warn!(
            "{torn} of the messages have less of their bytes than they should: the kernel was short of memory"
        );
    }
}
