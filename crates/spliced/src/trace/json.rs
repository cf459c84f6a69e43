//! Traces as a program reads them.

use serde_json::{Value, json};
use splice::trace::{Call, Context, Means, Value as Result};

use super::Traced;
use super::text::named;
use super::trial::Place;

pub(super) fn of(means: Means, traces: &[Traced]) -> Value {
    json!({
        "kernel": rustix::system::uname().release().to_string_lossy(),
        "means": means.as_str(),
        "traces": traces.iter().map(traced).collect::<Vec<_>>(),
    })
}

fn traced(traced: &Traced) -> Value {
    let context = |context: &Context| {
        json!({
            "task": context.name,
            "thread": context.thread,
            "process": context.process,
            "calls": calls(&context.calls, &traced.places),
        })
    };
    let trace = traced.trace.as_ref();
    json!({
        "engine": traced.way.map(|way| way.as_str()),
        "error": trace.err().map(|error| format!("{error:#}")),
        "lost": trace.map_or(0, |trace| trace.lost),
        "contexts": trace.map_or_else(
            |_| Vec::new(),
            |trace| trace.contexts.iter().map(context).collect::<Vec<_>>(),
        ),
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
        "result": result,
        "cpu": call.cpu,
        "socket": socket,
        "calls": calls(&call.calls, places),
    })
}
