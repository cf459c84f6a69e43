//! Trees from the stacks of functions that were seen at tracepoints.
//!
//! Two stacks of one task that begin with the same calls show the same calls. A call is the same if the
//! function, its caller and the place in the caller are, and the system call that all of it is in.
//!
//! Where few tracepoints are watched, none says when an interrupt ends. Then each packet that a device has brought in an
//! interrupt begins a new one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;

use splice_bpf::tracing::{Stacks, Watch};
use splice_bpf::types::TraceStack;

use super::connection::told;
use super::tree::{Call, Context, Trace, Value, put, task_name};

/// What is below every system call, kernel thread and interrupt, and says nothing.
const ROOTS: &[&str] = &[
    "entry_SYSCALL_64_after_hwframe",
    "do_syscall_64",
    "x64_sys_call",
    "ret_from_fork_asm",
    "ret_from_fork",
    "kthread",
    "worker_thread",
    "process_one_work",
    "el0t_64_sync",
    "el0t_64_sync_handler",
    "el0_svc",
    "do_el0_svc",
    "el0_svc_common",
    "invoke_syscall",
];

/// How the functions begin through which an interrupt comes, on x86-64 and on AArch64.
const INTERRUPTS: &[&str] = &["asm_", "el0t_64_irq", "el1h_64_irq"];

/// How the functions begin that lead from a tracepoint to its BPF program.
const TRACERS: &[&str] = &[
    "bpf_prog_",
    "bpf_trace_run",
    "bpf_get_stack",
    "__bpf_trace_",
    "__traceiter_",
    "__do_trace_",
    "__probestub_",
    "call_trace_",
    "trace_call_",
];

/// How the functions of the memory allocator begin. Their tracepoints serve to see who calls them.
const ALLOCATORS: &[&str] = &[
    "kmem_cache_",
    "kfree",
    "kmalloc_",
    "__kmalloc",
    "___kmalloc",
    "__kfree",
    "alloc_pages",
    "__alloc_pages",
    "__alloc_frozen_pages",
    "alloc_frozen_pages",
    "__slab_",
    "new_slab",
    "___slab",
    "allocate_slab",
];

/// Tracepoints that are moments of the message's way.
const MOMENTS: &[&str] = &[
    "workqueue_queue_work",
    "sock_send_length",
    "sock_recv_length",
    "sk_data_ready",
    "inet_sock_set_state",
    "tcp_probe",
    "net_dev_queue",
    "netif_rx",
    "netif_receive_skb",
    "sched_waking",
    "io_uring_submit_req",
    "io_uring_complete",
    "io_uring_poll_arm",
    "io_uring_task_add",
];

/// Those that tell how many bytes of the message there are, and the new state of a socket.
const TELLING: &[&str] = &[
    "sock_send_length",
    "sock_recv_length",
    "net_dev_queue",
    "netif_rx",
    "netif_receive_skb",
    "inet_sock_set_state",
];

/// Parts of the names of system calls that belong to the way although they have no socket.
const WAITS: &[&str] = &["poll", "io_uring", "io_submit", "io_getevents", "splice"];

/// How functions begin that work on a socket. A wake-up below none of them, such as that of a timer in the same softirq, is
/// not of the message.
const OF_SOCKETS: &[&str] = &["sock_", "sk_", "tcp_", "udp_", "udpv6_"];

/// A task on the way: the calls that are open, each with the place in its caller.
struct Open {
    context: usize,
    calls: Vec<(Call, u64)>,
    /// When the system call began that no function was seen of.
    begun_ns: Option<i64>,
    /// What tells the system call from others of this task.
    system_call: u32,
}

impl Trace {
    /// The trees of stacks, which may be in any order of their tasks.
    pub(super) fn of_stacks(mut events: Vec<TraceStack>, names: &Stacks, lost: u32) -> Self {
        let watch = names.watch();
        events.sort_by_key(|stack| stack.event.time_ns);
        let mut trace = Self {
            contexts: Vec::new(),
            lost,
        };
        let origin = events.first().map_or(0, |stack| stack.event.time_ns);
        let mut tasks: HashMap<(u32, u32, bool), Open> = HashMap::new();
        for stack in &events {
            let event = &stack.event;
            let frames = path(stack, names);
            let (is_interrupted, path) = above_interrupt(&frames);
            let cpu = if event.thread == 0 { event.cpu } else { 0 };
            let key = (event.thread, cpu, is_interrupted);
            let task = match tasks.entry(key) {
                Entry::Occupied(known) => known.into_mut(),
                Entry::Vacant(free) => {
                    trace.contexts.push(Context {
                        name: task_name(event),
                        thread: event.thread,
                        process: event.process,
                        is_interrupted,
                        calls: Vec::new(),
                    });
                    free.insert(Open {
                        context: trace.contexts.len() - 1,
                        calls: Vec::new(),
                        begun_ns: None,
                        system_call: event.call,
                    })
                }
            };
            let context = &mut trace.contexts[task.context];
            let at_ns = event.time_ns as i64 - origin as i64;
            task.see(stack, at_ns, path, watch, context);
        }
        for (_, mut task) in tasks {
            task.close(0, &mut trace.contexts[task.context]);
        }
        for context in &mut trace.contexts {
            context.calls.retain(belongs);
        }
        trace.sort();
        trace.begin_at_first_send();
        trace.mark();
        trace.lift_softirqs();
        trace.sort();
        trace
    }
}

impl Trace {
    /// A softirq runs on top of whatever task is there. If what the task was doing has nothing to do with the message, it
    /// has not called it either.
    fn lift_softirqs(&mut self) {
        let mut lifted = Vec::new();
        for context in self.contexts.iter_mut().filter(|it| !it.is_interrupted) {
            let (own, others): (Vec<_>, _) =
                mem::take(&mut context.calls).into_iter().partition(is_own);
            context.calls = own;
            let mut softirqs = Vec::new();
            for call in others {
                take_softirqs(call, &mut softirqs);
            }
            if !softirqs.is_empty() {
                lifted.push(Context {
                    name: context.name.clone(),
                    is_interrupted: true,
                    calls: softirqs,
                    ..*context
                });
            }
        }
        self.contexts.extend(lifted);
    }
}

/// Whether a call works on a socket that is watched, or waits for one, itself or below, but for softirqs.
fn is_own(call: &Call) -> bool {
    fn has_socket(call: &Call) -> bool {
        call.irq.is_none() && (call.socket.is_some() || call.calls.iter().any(has_socket))
    }
    call.irq.is_some() || waits(call) || has_socket(call)
}

fn take_softirqs(call: Call, into: &mut Vec<Call>) {
    if call.irq.is_some() {
        return into.push(call);
    }
    for below in call.calls {
        take_softirqs(below, into);
    }
}

fn waits(call: &Call) -> bool {
    WAITS.iter().any(|part| call.function.contains(part))
}

/// Whether a call has to do with a socket that is watched.
fn belongs(call: &Call) -> bool {
    waits(call) || call.has_socket()
}

impl Open {
    fn see(
        &mut self,
        stack: &TraceStack,
        at_ns: i64,
        path: &[(&str, u64)],
        watch: Watch,
        context: &mut Context,
    ) {
        let event = &stack.event;
        let point = Stacks::point(event.function);
        let is_next = if context.is_interrupted {
            watch == Watch::Little && point == "netif_receive_skb"
        } else {
            self.system_call != event.call
        };
        if is_next {
            self.close(0, context);
            self.system_call = event.call;
        }
        match point {
            "sys_enter" => {
                self.close(0, context);
                self.begun_ns = Some(at_ns);
                return;
            }
            "sys_exit" => {
                if let Some((call, _)) = self.calls.first_mut() {
                    call.took_ns = Some((at_ns - call.at_ns).unsigned_abs());
                    call.result = Some(Value::Number(event.result as i64));
                }
                self.close(0, context);
                self.begun_ns = None;
                return;
            }
            "workqueue_execute_start" | "workqueue_execute_end" => {
                self.close(0, context);
                return;
            }
            _ => {}
        }
        let socket = (event.known != 0).then(|| {
            (
                told(event.local, event.local_port),
                told(event.remote, event.remote_port),
            )
        });
        if is_aside(path, context.is_interrupted, socket.is_some()) {
            return;
        }
        let same = path
            .iter()
            .zip(&self.calls)
            .take_while(|((name, place), (call, called_at))| {
                call.function == *name && called_at == place
            })
            .count();
        // What is within a window of its task may have nothing to do with the message.
        let is_of_socket =
            |(name, _): &(&str, u64)| OF_SOCKETS.iter().any(|of| name.starts_with(of));
        let is_beside_socket = self.calls[..same].iter().any(|(call, _)| call.has_socket());
        if watch == Watch::Little
            && socket.is_none()
            && !(is_beside_socket && path.iter().any(is_of_socket))
        {
            return;
        }
        self.close(same, context);
        for (name, place) in &path[same..] {
            let begun = if self.calls.is_empty() {
                self.begun_ns.take()
            } else {
                None
            };
            let begun = begun.unwrap_or(at_ns);
            self.calls
                .push((Call::begun(name, begun, event.cpu), *place));
        }
        for (call, _) in &mut self.calls {
            if at_ns > call.at_ns {
                call.took_ns = Some((at_ns - call.at_ns).unsigned_abs());
            }
        }
        if let Some((innermost, _)) = self.calls.last_mut() {
            if innermost.socket.is_none() {
                innermost.socket = socket;
            }
            if MOMENTS.contains(&point) {
                let mut moment = Call {
                    is_point: true,
                    socket,
                    ..Call::begun(point, at_ns, event.cpu)
                };
                if TELLING.contains(&point) {
                    moment.result = Some(Value::Number(i64::from(event.result as i32)));
                }
                let other = stack.other.split(|&byte| byte == 0).next();
                moment.wakes = other
                    .filter(|name| !name.is_empty())
                    .map(|name| String::from_utf8_lossy(name).into_owned());
                innermost.calls.push(moment);
            }
        }
        // The next interrupt may look the same.
        if point == "softirq_exit" && context.is_interrupted {
            self.close(0, context);
        }
    }

    /// Ends all calls but the outermost `left`.
    fn close(&mut self, left: usize, context: &mut Context) {
        while self.calls.len() > left {
            let Some((call, _)) = self.calls.pop() else {
                return;
            };
            match self.calls.last_mut() {
                Some((parent, _)) => parent.calls.push(call),
                None => put(call, &mut [], context),
            }
        }
    }
}

/// Whether a stack has nothing to do with the message: the scheduler at work, or an interrupt that does not
/// bring the message and in which no softirq does.
fn is_aside(path: &[(&str, u64)], is_interrupted: bool, has_socket: bool) -> bool {
    let has = |is: &dyn Fn(&str) -> bool| path.iter().any(|(name, _)| is(name));
    has(&|name| name == "schedule" || name == "__schedule")
        || !has_socket && is_interrupted && !has(&|name| name.contains("softirq"))
}

/// What runs in an interrupt, without the task on top of which it does, which has not called it. The second interrupt
/// of two on top of each other counts.
fn above_interrupt<'a, 'b>(path: &'a [(&'b str, u64)]) -> (bool, &'a [(&'b str, u64)]) {
    let is_entry = |(name, _): &(&str, u64)| INTERRUPTS.iter().any(|start| name.starts_with(start));
    match path.iter().rposition(is_entry) {
        Some(at) => (true, &path[at + 1..]),
        None => (false, path),
    }
}

/// The name that a function has in the source: the compiler appends what it has made of it, such as
/// `.part.0`, `.constprop.0` or `.isra.0`.
fn as_written(name: &str) -> &str {
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// The functions of a stack, the outermost first, each with the place in its caller.
fn path<'a>(stack: &TraceStack, names: &'a Stacks) -> Vec<(&'a str, u64)> {
    let is_one = |name: &str, of: &[&str]| of.iter().any(|start| name.starts_with(start));
    let mut frames = stack
        .frames
        .iter()
        .take_while(|&&frame| frame != 0)
        .map(|&frame| (as_written(names.name(frame)), frame))
        .skip_while(|(name, _)| is_one(name, TRACERS))
        .skip_while(|(name, _)| is_one(name, ALLOCATORS))
        .collect::<Vec<_>>();
    frames.reverse();
    let places = [0]
        .into_iter()
        .chain(frames.iter().map(|(_, frame)| *frame))
        .collect::<Vec<_>>();
    frames
        .iter()
        .zip(places)
        .map(|((name, _), place)| (*name, place))
        .skip_while(|(name, _)| ROOTS.contains(name))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tree::Irq;
    use super::*;

    fn call(function: &str, irq: Option<Irq>, calls: Vec<Call>) -> Call {
        Call {
            irq,
            calls,
            ..Call::begun(function, 0, 0)
        }
    }

    #[test]
    fn a_softirq_on_top_of_something_else_is_not_called_by_it() {
        let socket = Some((told([1; 16], 1), told([2; 16], 2)));
        let softirq = || Call {
            socket,
            ..call("handle_softirqs", Some(Irq::Soft), Vec::new())
        };
        let sends = |socket| Call {
            socket,
            ..call(
                "__sys_sendto",
                None,
                vec![call("do_softirq", None, vec![softirq()])],
            )
        };
        let waits = call("do_epoll_wait", None, vec![softirq()]);
        for (task, expected) in [
            (sends(socket), &[("__sys_sendto", false)][..]),
            (sends(None), &[("handle_softirqs", true)]),
            (waits, &[("do_epoll_wait", false)]),
        ] {
            let context = Context {
                name: "task".into(),
                thread: 7,
                process: 7,
                is_interrupted: false,
                calls: vec![task],
            };
            let mut trace = Trace {
                contexts: vec![context],
                lost: 0,
            };
            trace.lift_softirqs();
            trace.sort();
            let found: Vec<_> = (trace.contexts.iter())
                .map(|it| (it.calls[0].function.as_str(), it.is_interrupted))
                .collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn an_interrupt_is_not_called_by_what_it_interrupts() {
        let path = |names: &[&'static str]| names.iter().map(|name| (*name, 0)).collect::<Vec<_>>();
        for (names, expected) in [
            (&["__sys_sendto", "tcp_sendmsg"][..], (false, 2)),
            (
                &[
                    "__sys_sendto",
                    "asm_common_interrupt",
                    "common_interrupt",
                    "handle_softirqs",
                ],
                (true, 2),
            ),
            // Within the tracer, and one on top of the other.
            (
                &[
                    "tcp_sendmsg",
                    "bpf_trace_run2",
                    "asm_sysvec_apic_timer_interrupt",
                    "handle_softirqs",
                    "asm_common_interrupt",
                    "common_interrupt",
                ],
                (true, 1),
            ),
        ] {
            let path = path(names);
            let (is_interrupted, rest) = above_interrupt(&path);
            assert_eq!((is_interrupted, rest.len()), expected, "{names:?}");
            assert_eq!(rest, &path[path.len() - rest.len()..]);
        }
    }
}
