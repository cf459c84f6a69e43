//! Traces as a person reads them.

use std::fmt::Write as _;
use std::net::SocketAddr;

use splice::trace::{Call, Context, Irq, Means, Summary, Trace, Value};

use super::trial::Place;
use super::{Observed, Traced, What};
use crate::plural::counted;

pub(super) fn of(observed: &Observed, traces: &[Traced]) -> String {
    let mut text = match observed.means {
        Means::Functions => "Means: entries and exits of functions.\n",
        Means::Stacks => {
            "Means: stacks at tracepoints.\n\
             AT is when a function was first seen, TOOK for how long it was seen, and OWN is that without what it called.\n"
        }
    }
    .to_owned();
    let _ = writeln!(text, "Spliced {}.", observed.in_words());
    text += "IRQ is s in a softirq and h in a hard interrupt. A function marked with + copies the message.\n";
    for traced in traces {
        text.push('\n');
        let title = match &traced.what {
            What::Trial(way) => way.as_str().to_owned(),
            What::Message(number) => format!("message {number}"),
        };
        match &traced.trace {
            Err(error) => {
                let _ = writeln!(text, "{title}: not traced: {error:#}");
            }
            Ok(trace) => add(&mut text, &title, trace, &traced.places),
        }
    }
    let summaries: Vec<_> = (traces.iter())
        .filter(|traced| matches!(traced.what, What::Message(_)))
        .filter_map(|traced| Some(traced.trace.as_ref().ok()?.summary()))
        .collect();
    if summaries.len() > 1 {
        let _ = writeln!(text, "\n{}", of_all(&summaries));
    }
    text
}

/// What several messages have come to.
fn of_all(summaries: &[Summary]) -> String {
    let range = |of: &dyn Fn(&Summary) -> Option<u64>, written: &dyn Fn(u64) -> String| {
        let values = summaries.iter().filter_map(of);
        let (least, most) = (values.clone().min()?, values.max()?);
        Some(match least == most {
            true => written(least),
            false => format!("{} to {}", written(least), written(most)),
        })
    };
    let number = |of: &dyn Fn(&Summary) -> usize, what: &str| {
        let range = range(&|it| Some(of(it) as u64), &|number| number.to_string());
        format!("{} {what}", range.unwrap_or_default())
    };
    let devices = range(&|it| it.device_to_device_ns, &micros);
    format!(
        "{} messages, each with {}, {}, {}{}",
        summaries.len(),
        number(&|it| it.calls, "calls"),
        number(&|it| it.wakeups, "wake-ups"),
        number(&|it| it.copies, "copies"),
        devices.map_or_else(String::new, |us| format!(", {us} us from device to device")),
    )
}

fn add(text: &mut String, title: &str, trace: &Trace, places: &[Place]) {
    let _ = writeln!(text, "{title}: {}", in_words(trace.summary()));
    if trace.lost > 0 {
        let _ = writeln!(
            text,
            "  {} events found no room and are missing",
            trace.lost
        );
    }
    add_tree(text, trace, places, Braces::Closed);
}

/// Whether a tree has a line for the end of each call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Braces {
    Closed,
    /// The indentation says it.
    None,
}

/// The tasks with their calls.
pub(super) fn add_tree(text: &mut String, trace: &Trace, places: &[Place], braces: Braces) {
    for context in &trace.contexts {
        let _ = writeln!(text, "\n  {}", task(context));
        let _ = writeln!(text, "  CPU IRQ        AT us   TOOK us    OWN us  CALLS");
        let mut tree = Tree {
            text: &mut *text,
            places,
            braces,
        };
        for call in &context.calls {
            tree.add(call, 0, None);
        }
    }
}

fn in_words(summary: Summary) -> String {
    let Summary {
        calls,
        functions,
        wakeups,
        copies,
        device_to_device_ns,
    } = summary;
    let devices = device_to_device_ns.map_or_else(String::new, |ns| {
        format!(", {} us from device to device", micros(ns))
    });
    format!(
        "{}, {}, {}{devices}",
        format_args!(
            "{} of {}",
            counted(calls, "call"),
            counted(functions, "function")
        ),
        counted(wakeups, "wake-up"),
        match copies {
            1 => "1 copy".into(),
            _ => format!("{copies} copies"),
        },
    )
}

fn task(context: &Context) -> String {
    let task = match context.thread {
        0 => format!("{} (idle)", context.name),
        thread => format!("{} (thread {thread})", context.name),
    };
    match context.is_interrupted {
        true => format!("interrupts of {task}"),
        false => task,
    }
}

type Socket = (SocketAddr, SocketAddr);

struct Tree<'a> {
    text: &'a mut String,
    places: &'a [Place],
    braces: Braces,
}

impl Tree<'_> {
    fn add(&mut self, call: &Call, depth: usize, parent: Option<Socket>) {
        let indent = depth * 2;
        let [took, own] =
            [call.took_ns, call.own_ns()].map(|ns| ns.map_or_else(|| "-".into(), micros));
        let irq = match call.irq {
            None => "",
            Some(Irq::Soft) => "s",
            Some(Irq::Hard) => "h",
        };
        let copies = if call.copies { "    +" } else { "" };
        let result = call
            .result
            .map_or_else(String::new, |value| format!(" = {}", as_text(value)));
        let socket = match call.socket {
            Some(socket) if Some(socket) != parent => {
                format!("    # {}", named(socket, self.places))
            }
            _ => String::new(),
        };
        if call.is_point {
            let wakes = call.wakes.as_ref();
            let wakes = wakes.map_or_else(String::new, |task| format!(" {task}"));
            let _ = writeln!(
                self.text,
                "  {:3} {irq:>3} {:>12} {:>9} {:>9}  {:indent$}@ {}{wakes}{result}{socket}",
                call.cpu,
                signed_micros(call.at_ns),
                "",
                "",
                "",
                call.function,
            );
            return;
        }
        let (end, shown) = match (self.braces, call.calls.is_empty()) {
            (Braces::None, _) => ("", result.as_str()),
            (Braces::Closed, true) => (";", result.as_str()),
            (Braces::Closed, false) => (" {", ""),
        };
        let _ = writeln!(
            self.text,
            "  {:3} {irq:>3} {:>12} {:>9} {:>9}  {:indent$}{}(){shown}{end}{copies}{socket}",
            call.cpu,
            signed_micros(call.at_ns),
            took,
            own,
            "",
            call.function,
        );
        for below in &call.calls {
            self.add(below, depth + 1, call.socket.or(parent));
        }
        if call.calls.is_empty() || self.braces == Braces::None {
            return;
        }
        let _ = writeln!(
            self.text,
            "  {:3} {:3} {:>12} {:>9} {:>9}  {:indent$}}} /* {}{result} */",
            "", "", "", "", "", "", call.function,
        );
    }
}

/// A socket by its place in the trial, or by its addresses.
pub(super) fn named((local, remote): Socket, places: &[Place]) -> String {
    let place = places.iter().find(|place| place.socket == (local, remote));
    place.map_or_else(
        || format!("{local} from {remote}"),
        |place| place.name.into(),
    )
}

fn as_text(value: Value) -> String {
    match value {
        Value::Number(number) => number.to_string(),
        Value::Boolean(yes) => yes.to_string(),
        Value::Pointer { null: true } => "NULL".into(),
        Value::Pointer { null: false } => "set".into(),
    }
}

pub(super) fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn signed_micros(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", micros(ns.unsigned_abs()))
}
