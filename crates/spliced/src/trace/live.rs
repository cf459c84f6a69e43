//! A message on a connection of others.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use splice::trace::{CONNECTIONS_MOST, Recorder};

use super::Traced;
use crate::refusal::WrongUsage;
use crate::trace_arguments::TraceArgs;

/// How long to wait for a message.
const WAIT: Duration = Duration::from_secs(10);

/// How soon to look for further events.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A message is over when no event came for so long, or on a busy connection after the longer time.
const QUIET: Duration = Duration::from_millis(20);
const MESSAGE_MOST: Duration = Duration::from_millis(100);

pub(super) fn trace(args: &TraceArgs, recorder: &mut Recorder) -> Result<Traced> {
    if args.connection.len() > CONNECTIONS_MOST {
        bail!(WrongUsage::new(format!(
            "--connection can be given {CONNECTIONS_MOST} times; leave out the others"
        )));
    }
    recorder.start(&args.connection, false)?;
    let wait = args.wait.unwrap_or(WAIT);
    let begin = Instant::now();
    let mut events = 0;
    let mut first = None;
    let mut last = begin;
    loop {
        let now = recorder.events();
        if now != events {
            (events, last) = (now, Instant::now());
            first.get_or_insert(last);
        }
        match first {
            Some(first) if last.elapsed() >= QUIET || first.elapsed() >= MESSAGE_MOST => break,
            None if begin.elapsed() >= wait => {
                let filters: Vec<_> = args.connection.iter().map(ToString::to_string).collect();
                bail!(
                    "nothing passed on {} within {}; see that it is a connection of this host (ss -tn), or \
                     set a longer --wait",
                    filters.join(" and "),
                    humantime::format_duration(wait)
                );
            }
            _ => thread::sleep(LOOK_AGAIN),
        }
    }
    Ok(Traced {
        way: None,
        places: Vec::new(),
        trace: Ok(recorder.finish_first_message()?),
    })
}
