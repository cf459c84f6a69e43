//! `spliced trace`: prints the way of one message through the functions of the kernel.

mod bypassed;
mod interruption;
mod json;
mod live;
mod markdown;
mod session;
mod stage;
mod text;
mod trial;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use splice::trace::{ATTACH_WITHIN, Means, Points, Recorder, Trace};

use self::interruption::Interruption;
use self::live::Watched;
use self::stage::Stage;
use self::trial::Place;
use crate::resource_limit::raise_descriptor_limit;
use crate::signal::Signals;
use crate::standard_output::print;
use crate::trace_arguments::{TraceArgs, Way};

/// What came of one way.
#[derive(Debug)]
struct Traced {
    what: What,
    /// The sockets of the trial, by what they are.
    places: Vec<Place>,
    /// Or why the way could not be gone.
    trace: Result<Trace>,
}

/// What was traced.
#[derive(Debug)]
enum What {
    Trial(Way),
    /// A message on connections of others, by its number.
    Message(u16),
}

/// How the kernel was observed.
#[derive(Debug)]
struct Observed {
    means: Means,
    /// How many functions or tracepoints have a program.
    places: usize,
    /// Where this kernel has none, or takes no program.
    missing: Vec<&'static str>,
    /// Where there was no time to attach one.
    late: Vec<&'static str>,
    attached_in: Duration,
}

impl Observed {
    fn in_words(&self) -> String {
        let places = match self.means {
            Means::Functions => "functions",
            Means::Stacks => "tracepoints",
        };
        let missing = match &self.missing[..] {
            [] => String::new(),
            names => format!(", but not to {}, which this kernel lacks", names.join(", ")),
        };
        let late = match &self.late[..] {
            [] => String::new(),
            names => format!(
                "; there was no time for {}, which a longer --attach-within gives",
                names.join(", ")
            ),
        };
        format!(
            "attached to {} {places} in {} ms{missing}{late}",
            self.places,
            self.attached_in.as_millis()
        )
    }
}

/// Traces and prints.
///
/// # Errors
/// If the kernel refuses the programs, no message comes, or what was found cannot be printed.
pub(crate) fn run(args: &TraceArgs, signals: Signals) -> Result<()> {
    let interruption = Interruption::of(signals)?;
    raise_descriptor_limit(None);
    let watched = match () {
        () if args.asks_for_session() => Some(session::pick(args)?),
        () if args.connection.is_empty() => None,
        () => Some(Watched::connections(&args.connection)?),
    };
    let begin = Instant::now();
    // Beside connections of others, everybody on the host is to pay little.
    let points = match &watched {
        Some(watched) if !args.full => watched.points,
        _ => Points::All,
    };
    let within = args.attach_within.unwrap_or(ATTACH_WITHIN);
    let mut recorder = match args.means {
        Some(means) => Recorder::with(means.means(), points, within)?,
        None => Recorder::new(points, within)?,
    };
    let observed = Observed {
        means: recorder.means(),
        places: recorder.places(),
        missing: recorder.missing(),
        late: recorder.late().to_vec(),
        attached_in: begin.elapsed(),
    };
    let traces = match watched {
        None => trials(args, &mut recorder)?,
        Some(watched) => {
            // What passes from the line on is seen.
            recorder.start(&watched.filters, false)?;
            tracing::info!(
                "{}; waits for a message on {}",
                observed.in_words(),
                watched.name
            );
            live::trace(args, &watched, &mut recorder, &interruption)?
        }
    };
    // Before the text: a reader that does not read would keep the programs attached.
    drop(recorder);
    let text = match (args.json, args.demo) {
        (true, _) => format!("{:#}\n", json::of(&observed, &traces)),
        (false, true) => markdown::of(&observed, &traces),
        (false, false) => text::of(&observed, &traces),
    };
    print(&text)
}

/// The ways that were asked for; without any, all of them, and then one that does not work here is no
/// failure.
fn trials(args: &TraceArgs, recorder: &mut Recorder) -> Result<Vec<Traced>> {
    let asked = &args.engine;
    let stage = Arc::new(match args.demo {
        true => Stage::namespaces()?,
        false => Stage::Loopback,
    });
    let ways = if asked.is_empty() {
        &Way::ALL[..]
    } else {
        asked
    };
    let mut traces = Vec::new();
    for &way in ways {
        let (places, trace) = match trial::run(way, &stage, recorder) {
            Ok((places, trace)) => (places, Ok(trace)),
            Err(error) if asked.is_empty() => (Vec::new(), Err(error)),
            Err(error) => return Err(error.context(format!("cannot trace {}", way.as_str()))),
        };
        traces.push(Traced {
            what: What::Trial(way),
            places,
            trace,
        });
    }
    // One that does not work here is no failure, but all of them are.
    if traces.iter().all(|traced| traced.trace.is_err())
        && let Some(first) = traces.pop()
    {
        first.trace.context("no way can be traced")?;
    }
    Ok(traces)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_attached_is_named_with_the_reason() {
        let mut observed = Observed {
            means: Means::Stacks,
            places: 30,
            missing: vec!["sock_recv_length", "sock_send_length"],
            late: vec!["sched_waking"],
            attached_in: Duration::from_millis(140),
        };
        assert_eq!(
            observed.in_words(),
            "attached to 30 tracepoints in 140 ms, but not to sock_recv_length, sock_send_length, which this kernel lacks; there \
             was no time for sched_waking, which a longer --attach-within gives"
        );
        observed.missing.clear();
        observed.late.clear();
        assert_eq!(observed.in_words(), "attached to 30 tracepoints in 140 ms");
    }
}
