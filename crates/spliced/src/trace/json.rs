//! Traces as a program reads them.

use serde_json::{Value, json};
use splice::trace::{Call, Context, Irq, Summary, Value as Result};

use super::text::named;
use super::trial::Place;
use super::{Observed, Traced, What};

pub(super) fn of(observed: &Observed, traces: &[Traced]) -> Value {
    json!({
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "means": observed.means.as_str(),
        "places": observed.places,
        "missing": observed.missing,
        "late": observed.late,
        "attached_in_ms": observed.attached_in.as_micros() as f64 / 1e3,
        "traces": traces.iter().map(traced).collect::<Vec<_>>(),
    })
}

fn traced(traced: &Traced) -> Value {
    let context = |context: &Context| {
        json!({
            "task": context.name,
            "thread": context.thread,
            "process": context.process,
            "interrupted": context.is_interrupted,
            "calls": calls(&context.calls, &traced.places),
        })
    };
    let trace = traced.trace.as_ref();
    let (engine, message) = match &traced.what {
        What::Trial(way) => (Some(way.as_str()), 1),
        What::Message(number) => (None, *number),
    };
    json!({
        "engine": engine,
        "message": message,
        "error": trace.err().map(|error| format!("{error:#}")),
        "summary": trace.map_or(Value::Null, |trace| summary(trace.summary())),
        "lost": trace.map_or(0, |trace| trace.lost),
        "contexts": trace.map_or_else(
            |_| Vec::new(),
            |trace| trace.contexts.iter().map(context).collect::<Vec<_>>(),
        ),
    })
}

fn summary(summary: Summary) -> Value {
    json!({
        "calls": summary.calls,
        "functions": summary.functions,
        "wakeups": summary.wakeups,
        "copies": summary.copies,
        "device_to_device_us": summary.device_to_device_ns.map(|ns| ns as f64 / 1000.0),
    })
}

fn calls(calls: &[Call], places: &[Place]) -> Vec<Value> {
    calls.iter().map(|below| call(below, places)).collect()
}

fn call(call: &Call, places: &[Place]) -> Value {
    let result = call.result.map(|result| match result {
        Result::Number(number) => json!(number),
        Result::Boolean(yes) => json!(yes),
        Result::Pointer { null: true } => Value::Null,
        Result::Pointer { null: false } => json!("set"),
    });
    let socket = call.socket.map(|(local, remote)| {
        json!({
            "local": local.to_string(),
            "remote": remote.to_string(),
            "name": places.iter().any(|place| place.socket == (local, remote))
                .then(|| named((local, remote), places)),
        })
    });
    json!({
        "function": call.function,
        "tracepoint": call.is_point,
        "wakes": call.wakes,
        "at_us": call.at_ns as f64 / 1000.0,
        "took_us": call.took_ns.map(|ns| ns as f64 / 1000.0),
        "own_us": call.own_ns().map(|ns| ns as f64 / 1000.0),
        "result": result,
        "cpu": call.cpu,
        "irq": call.irq.map(|irq| match irq {
            Irq::Soft => "soft",
            Irq::Hard => "hard",
        }),
        "copies": call.copies,
        "socket": socket,
        "calls": calls(&call.calls, places),
    })
}
