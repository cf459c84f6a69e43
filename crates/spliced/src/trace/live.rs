//! Messages on connections of others.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use splice::trace::{CONNECTIONS_MOST, ConnectionFilter, Means, Points, Recorder, Trace};

use super::interruption::Interruption;
use super::{Traced, What};
use crate::refusal::WrongUsage;
use crate::trace_arguments::{Named, TraceArgs};

/// How long to wait for a message.
const WAIT: Duration = Duration::from_secs(10);

/// How soon to look for further events. Each look wakes this process, on a CPU that others use.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A message is over when no event came for so long, or on a busy connection after the longer time.
const QUIET: Duration = Duration::from_millis(20);
const MESSAGE_MOST: Duration = Duration::from_millis(100);

/// The connections that messages are waited for on.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) filters: Vec<ConnectionFilter>,
    /// What they are, in words.
    pub(super) name: String,
    /// What everybody on the host pays for.
    pub(super) points: Points,
    /// They are known, and none can come in the place of one that has ended.
    pub(super) are_known: bool,
}

impl Watched {
    /// Those that somebody has named.
    ///
    /// # Errors
    /// If there are too many.
    pub(super) fn connections(named: &[Named]) -> Result<Self> {
        if named.len() > CONNECTIONS_MOST {
            bail!(WrongUsage::new(format!(
                "--connection can be given {CONNECTIONS_MOST} times; leave out the others"
            )));
        }
        let filters: Vec<_> = named.iter().map(Named::filter).collect::<Result<_, _>>()?;
        let names: Vec<_> = filters.iter().map(ToString::to_string).collect();
        Ok(Self {
            name: names.join(" and "),
            points: Points::Sparse,
            are_known: filters.iter().all(ConnectionFilter::has_both_ends),
            filters,
        })
    }
}

/// Traces as many messages as were asked for, or until somebody interrupts it. If one does not come, the last trace says
/// why.
///
/// # Errors
/// If not even the first one comes, or the kernel refuses.
pub(super) fn trace(
    args: &TraceArgs,
    watched: &Watched,
    recorder: &mut Recorder,
    interruption: &Interruption,
) -> Result<Vec<Traced>> {
    let wait = args.wait.unwrap_or(WAIT);
    let mut traces = Vec::new();
    let mut has_ended = false;
    let count = args.messages.unwrap_or(1);
    for number in 1..=count {
        let Some(trace) = message(watched, has_ended, wait, recorder, interruption).transpose()
        else {
            break;
        };
        let has_failed = trace.is_err();
        interruption.has_something();
        if count > 1 && !has_failed {
            tracing::info!("has message {number} of {count}");
        }
        // The end may come with the message.
        has_ended |= trace.as_ref().is_ok_and(Trace::has_end);
        if has_failed && number == 1 {
            trace?;
            break;
        }
        traces.push(Traced {
            what: What::Message(number),
            places: Vec::new(),
            trace,
        });
        if has_failed {
            break;
        }
    }
    Ok(traces)
}

/// The next message, or `None` if somebody has interrupted. With `has_ended`, a connection has ended before.
fn message(
    watched: &Watched,
    mut has_ended: bool,
    wait: Duration,
    recorder: &mut Recorder,
    interruption: &Interruption,
) -> Result<Option<Trace>> {
    let begin = Instant::now();
    let name = &watched.name;
    loop {
        if has_ended && watched.are_known {
            bail!(
                "{name} ended before a message passed; name one that goes on ('spliced sessions', ss -tn)"
            );
        }
        let recorded = recorded(watched, begin + wait, recorder, interruption)?;
        if interruption.is_asked() {
            return Ok(None);
        }
        let Some(trace) = recorded else {
            bail!(
                "no message passed on {name} within {}{}; see that it is a connection of this host (ss -tn), or set a \
                 longer --wait",
                humantime::format_duration(wait),
                if has_ended {
                    ", and a connection ended"
                } else {
                    ""
                }
            );
        };
        // Entries and exits of functions do not tell what a packet has that no socket gets.
        if trace.has_message() || recorder.means() == Means::Functions {
            return Ok(Some(trace));
        }
        has_ended |= trace.has_end();
    }
}

/// What happens next, up to a pause; `None` if nothing does until `deadline`, or somebody has interrupted.
fn recorded(
    watched: &Watched,
    deadline: Instant,
    recorder: &mut Recorder,
    interruption: &Interruption,
) -> Result<Option<Trace>> {
    recorder.start(&watched.filters, false)?;
    let mut events = 0;
    let mut times: Option<(Instant, Instant)> = None;
    loop {
        let seen = recorder.events();
        let now = Instant::now();
        if seen != events {
            events = seen;
            times = Some((times.map_or(now, |(first, _)| first), now));
        }
        match times {
            Some((first, last)) if now - last >= QUIET || now - first >= MESSAGE_MOST => {
                return Ok(Some(recorder.finish_first_message()?));
            }
            None if now >= deadline => return Ok(None),
            _ if interruption.is_asked() => return Ok(None),
            _ => thread::sleep(LOOK_AGAIN),
        }
    }
}
