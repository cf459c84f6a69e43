//! Traces as a person reads them.

use std::fmt::Write as _;
use std::net::SocketAddr;

use splice::trace::{Call, Context, Means, Trace, Value};

use super::Traced;
use super::trial::Place;

pub(super) fn of(means: Means, traces: &[Traced]) -> String {
    let mut text = match means {
        Means::Functions => "Means: entries and exits of functions.\n",
        Means::Stacks => {
            "Means: stacks at tracepoints, since this kernel lets no program be attached to its functions.\n\
             AT is when a function was first seen, TOOK for how long it was seen.\n"
        }
    }
    .to_owned();
    for traced in traces {
        text.push('\n');
        let title = traced.way.map_or("connection", |way| way.as_str());
        match &traced.trace {
            Err(error) => {
                let _ = writeln!(text, "{title}: not traced: {error:#}");
            }
            Ok(trace) => add(&mut text, title, trace, &traced.places),
        }
    }
    text
}

fn add(text: &mut String, title: &str, trace: &Trace, places: &[Place]) {
    let _ = writeln!(text, "{title}: {} calls", trace.count());
    if trace.lost > 0 {
        let _ = writeln!(
            text,
            "  {} events found no room and are missing",
            trace.lost
        );
    }
    for context in &trace.contexts {
        let _ = writeln!(text, "\n  {}", task(context));
        let _ = writeln!(text, "  CPU        AT us   TOOK us  CALLS");
        for call in &context.calls {
            add_call(text, call, 0, None, places);
        }
    }
}

fn task(context: &Context) -> String {
    match context.thread {
        0 => format!("{} (idle)", context.name),
        thread => format!("{} (thread {thread})", context.name),
    }
}

type Socket = (SocketAddr, SocketAddr);

fn add_call(
    text: &mut String,
    call: &Call,
    depth: usize,
    parent: Option<Socket>,
    places: &[Place],
) {
    let indent = depth * 2;
    let took = call.took_ns.map_or_else(|| "-".into(), micros);
    let result = call
        .result
        .map_or_else(String::new, |value| format!(" = {}", as_text(value)));
    let socket = match call.socket {
        Some(socket) if Some(socket) != parent => format!("    # {}", named(socket, places)),
        _ => String::new(),
    };
    if call.is_point {
        let wakes = call.wakes.as_ref();
        let wakes = wakes.map_or_else(String::new, |task| format!(" {task}"));
        let _ = writeln!(
            text,
            "  {:3} {:>12} {:>9}  {:indent$}@ {}{wakes}{result}{socket}",
            call.cpu,
            signed_micros(call.at_ns),
            "",
            "",
            call.function,
        );
        return;
    }
    let end = if call.calls.is_empty() { ";" } else { " {" };
    let shown = if call.calls.is_empty() {
        result.as_str()
    } else {
        ""
    };
    let _ = writeln!(
        text,
        "  {:3} {:>12} {:>9}  {:indent$}{}(){shown}{end}{socket}",
        call.cpu,
        signed_micros(call.at_ns),
        took,
        "",
        call.function,
    );
    if call.calls.is_empty() {
        return;
    }
    for below in &call.calls {
        add_call(text, below, depth + 1, call.socket.or(parent), places);
    }
    let _ = writeln!(
        text,
        "  {:3} {:>12} {:>9}  {:indent$}}} /* {}{result} */",
        "", "", "", "", call.function,
    );
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

fn micros(ns: u64) -> String {
    format!("{}.{:03}", ns / 1000, ns % 1000)
}

fn signed_micros(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "" };
    format!("{sign}{}", micros(ns.unsigned_abs()))
}
