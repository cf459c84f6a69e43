//! What was recorded, as trees: one per task, of the functions that call one another.

use std::collections::HashMap;
use std::net::SocketAddr;

use splice_bpf::tracing::{Returned, Traced};
use splice_bpf::types::{TraceEvent, trace_kind};

use super::connection::told;
use super::functions::is_send;

/// One call of a function of the kernel.
#[derive(Clone, Debug)]
pub struct Call {
    /// The function, or the tracepoint.
    pub function: String,
    /// It is a tracepoint: a moment, not a call.
    pub is_point: bool,
    /// Whom a wake-up is for.
    pub wakes: Option<String>,
    /// When it was entered, in nanoseconds after the trace's first send, or before it. With
    /// [`Means::Stacks`](super::Means::Stacks), when it was first seen.
    pub at_ns: i64,
    /// How long it took, with what it called; `None` if it had not returned at the end. With
    /// [`Means::Stacks`](super::Means::Stacks), how long it was seen.
    pub took_ns: Option<u64>,
    /// What it returned, unless it returns nothing.
    pub result: Option<Value>,
    /// The CPU on which it was entered.
    pub cpu: u32,
    /// The interrupt that it ran in.
    pub irq: Option<Irq>,
    /// It copies the message's bytes.
    pub copies: bool,
    /// The socket it works on, or that of the packet: this end and the other one.
    pub socket: Option<(SocketAddr, SocketAddr)>,
    /// What it called.
    pub calls: Vec<Self>,
}

/// An interrupt, as the kernel tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Irq {
    /// What hardware has asked for.
    Hard,
    /// What the kernel had put off, on top of a task or of a hard interrupt.
    Soft,
}

/// What a function returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number.
    Number(i64),
    /// Yes or no.
    Boolean(bool),
    /// An address, which is not told, or null.
    Pointer {
        /// Whether it is null.
        null: bool,
    },
}

/// What one task did.
#[derive(Clone, Debug)]
pub struct Context {
    /// The task's name.
    pub name: String,
    /// Its thread id; 0 for the idle task of a CPU.
    pub thread: u32,
    /// Its process id.
    pub process: u32,
    /// It did not call this: it was interrupted.
    pub is_interrupted: bool,
    /// What it called, in order.
    pub calls: Vec<Call>,
}

/// What was recorded.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// The tasks, in the order in which they began.
    pub contexts: Vec<Context>,
    /// Events that found no room.
    pub lost: u32,
}

impl Call {
    /// A call that has not returned.
    pub(super) fn begun(function: &str, at_ns: i64, cpu: u32) -> Self {
        Self {
            function: function.into(),
            is_point: false,
            wakes: None,
            at_ns,
            took_ns: None,
            result: None,
            cpu,
            irq: None,
            copies: false,
            socket: None,
            calls: Vec::new(),
        }
    }

    /// Whether this or a function below is `function`.
    pub fn has(&self, function: &str) -> bool {
        self.function == function || self.calls.iter().any(|call| call.has(function))
    }

    /// Whether this or a function below works on a socket that is known.
    pub(super) fn has_socket(&self) -> bool {
        self.socket.is_some() || self.calls.iter().any(Self::has_socket)
    }

    /// How long it took without what it called, in nanoseconds, as far as that was recorded.
    pub fn own_ns(&self) -> Option<u64> {
        let below = self.calls.iter().filter_map(|call| call.took_ns).sum();
        self.took_ns.map(|took| took.saturating_sub(below))
    }

    fn shift(&mut self, by_ns: i64) {
        self.at_ns -= by_ns;
        self.calls.iter_mut().for_each(|call| call.shift(by_ns));
    }

    /// How many calls this is, with those below.
    pub fn count(&self) -> usize {
        1 + self.calls.iter().map(Self::count).sum::<usize>()
    }
}

impl Trace {
    /// The trees of events, which may be in any order of their tasks.
    pub(super) fn of(mut events: Vec<TraceEvent>, functions: &[Traced], lost: u32) -> Self {
        events.sort_by_key(|event| event.time_ns);
        let sent = events.iter().find(|event| {
            u32::from(event.kind) == trace_kind::ENTERED && is_send(name_of(event, functions))
        });
        let origin = sent
            .or_else(|| events.first())
            .map_or(0, |event| event.time_ns);
        let mut trace = Self {
            contexts: Vec::new(),
            lost,
        };
        // By task, its context and the calls that have not returned.
        let mut open: HashMap<(u32, u32), (usize, Vec<Call>)> = HashMap::new();
        for event in &events {
            let key = (event.thread, if event.thread == 0 { event.cpu } else { 0 });
            let (context, calls) = open.entry(key).or_insert_with(|| {
                trace.contexts.push(Context {
                    name: task_name(event),
                    thread: event.thread,
                    process: event.process,
                    is_interrupted: false,
                    calls: Vec::new(),
                });
                (trace.contexts.len() - 1, Vec::new())
            });
            let context = &mut trace.contexts[*context];
            let Some(function) = functions.get(usize::from(event.function)) else {
                continue;
            };
            let at_ns = event.time_ns as i64 - origin as i64;
            if u32::from(event.kind) == trace_kind::ENTERED {
                calls.push(Call {
                    socket: (event.known != 0).then(|| {
                        (
                            told(event.local, event.local_port),
                            told(event.remote, event.remote_port),
                        )
                    }),
                    ..Call::begun(function.name, at_ns, event.cpu)
                });
                continue;
            }
            // What was entered before the recording began is not shown.
            if !calls.iter().any(|call| call.function == function.name) {
                continue;
            }
            while let Some(mut call) = calls.pop() {
                let ends = call.function == function.name;
                if ends {
                    call.took_ns = Some((at_ns - call.at_ns).unsigned_abs());
                    call.result = value(event.result, function.returned);
                }
                put(call, calls, context);
                if ends {
                    break;
                }
            }
        }
        for (context, mut calls) in open.into_values() {
            while let Some(call) = calls.pop() {
                put(call, &mut calls, &mut trace.contexts[context]);
            }
        }
        trace.sort();
        trace.mark();
        trace
    }

    /// Puts the tasks into the order in which the message came to them, and leaves out those that did nothing.
    pub(super) fn sort(&mut self) {
        self.contexts.retain(|context| !context.calls.is_empty());
        self.contexts.sort_by_key(|context| {
            let mut calls = context.calls.iter();
            let came = calls.find(|call| call.has_socket());
            came.or_else(|| context.calls.first())
                .map(|call| call.at_ns)
        });
    }

    /// Counts the time from the first send, if there is one.
    pub(super) fn begin_at_first_send(&mut self) {
        let calls = self.contexts.iter().flat_map(|context| &context.calls);
        let sends = calls.filter(|call| is_send(&call.function));
        let Some(first) = sends.map(|call| call.at_ns).min() else {
            return;
        };
        let calls = self
            .contexts
            .iter_mut()
            .flat_map(|context| &mut context.calls);
        calls.for_each(|call| call.shift(first));
    }

    /// Leaves out what began after the first message: when the task that sent it sends again.
    pub(super) fn cut_after_first_message(&mut self) {
        let sends = self.contexts.iter().filter_map(|context| {
            let mut sends = context.calls.iter().filter(|call| is_send(&call.function));
            Some((sends.next()?.at_ns, sends.next().map(|call| call.at_ns)))
        });
        if let Some((_, Some(next))) = sends.min() {
            for context in &mut self.contexts {
                context.calls.retain(|call| call.at_ns < next);
            }
        }
        self.sort();
    }

    /// Whether a task called `function`.
    pub fn has(&self, function: &str) -> bool {
        let mut calls = self.contexts.iter().flat_map(|context| &context.calls);
        calls.any(|call| call.has(function))
    }

    /// How many calls were recorded.
    pub fn count(&self) -> usize {
        let calls = self.contexts.iter().flat_map(|context| &context.calls);
        calls.map(Call::count).sum()
    }
}

pub(super) fn put(call: Call, open: &mut [Call], context: &mut Context) {
    match open.last_mut() {
        Some(parent) => parent.calls.push(call),
        None => context.calls.push(call),
    }
}

fn name_of(event: &TraceEvent, functions: &[Traced]) -> &'static str {
    (functions.get(usize::from(event.function))).map_or("", |function| function.name)
}

pub(super) fn task_name(event: &TraceEvent) -> String {
    let name = event.name.split(|&byte| byte == 0).next();
    String::from_utf8_lossy(name.unwrap_or_default()).into_owned()
}

fn value(raw: u64, of: Returned) -> Option<Value> {
    // The register has more bits than the type.
    let unused = |bits: u8| 64 - u32::from(bits.clamp(1, 64));
    match of {
        Returned::Nothing => None,
        Returned::Signed(bits) => Some(Value::Number(
            ((raw << unused(bits)) as i64) >> unused(bits),
        )),
        Returned::Unsigned(bits) => Some(Value::Number(
            ((raw << unused(bits)) >> unused(bits)) as i64,
        )),
        Returned::Boolean => Some(Value::Boolean(raw & 1 != 0)),
        Returned::Pointer => Some(Value::Pointer { null: raw == 0 }),
    }
}
