//! What a trace comes to, and the marks on its calls from which that is counted.

use std::collections::BTreeSet;

use super::tree::{Call, Irq, Trace, Value};

/// Functions that copy the bytes of a message, from or to a process's memory, unless a function below does it. So does what
/// has handed bytes over by `recvmsg` (`sock_recv_length`), and what then looks for the room for further ones.
const COPIES: &[&str] = &[
    "tcp_sendmsg_locked",
    "udp_sendmsg",
    "udpv6_sendmsg",
    "skb_copy_datagram_iter",
    "tcp_bpf_sendmsg",
    "tcp_bpf_recvmsg",
    "tcp_bpf_recvmsg_parser",
];

/// What sends pages by reference: no function below it copies.
const REFERS: &[&str] = &["splice_to_socket", "__skb_send_sock", "skb_send_sock"];

/// Where a function of softirqs begins, by its name on some kernel.
const SOFTIRQS: &[&str] = &[
    "handle_softirqs",
    "__do_softirq",
    "do_softirq",
    "run_ksoftirqd",
];

/// Tracepoints at which a device takes a packet or has brought one, which tell its payload.
const DEVICES: &[&str] = &["net_dev_queue", "netif_rx", "netif_receive_skb"];

/// Tracepoints and functions whose result is how many bytes a socket has taken or given.
const SOCKETS: &[&str] = &[
    "sock_send_length",
    "sock_recv_length",
    "tcp_sendmsg",
    "tcp_recvmsg",
    "tcp_bpf_sendmsg",
    "tcp_bpf_recvmsg",
    "tcp_splice_read",
    "udp_sendmsg",
    "udp_recvmsg",
    "udpv6_sendmsg",
];

/// States of a TCP socket whose streams have both ended, or which was reset (`include/net/tcp_states.h`): `TCP_TIME_WAIT`,
/// `TCP_CLOSE`, `TCP_LAST_ACK` and `TCP_CLOSING`. After one end of a stream, the other one may go on.
const ENDED: &[i64] = &[6, 7, 9, 11];

/// A message's way in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Calls of functions.
    pub calls: usize,
    /// Different functions.
    pub functions: usize,
    /// How often a task was woken that then had part in it, each of which is a context switch or two.
    pub wakeups: usize,
    /// Calls that copied its bytes.
    pub copies: usize,
    /// From the first device that had a packet with its bytes to the last one, in nanoseconds; `None` if less than two had.
    pub device_to_device_ns: Option<u64>,
}

impl Trace {
    /// The way in numbers.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        let mut functions = BTreeSet::new();
        let mut at_devices = Vec::new();
        let names: BTreeSet<_> = (self.contexts.iter())
            .filter(|context| !context.is_interrupted)
            .map(|context| context.name.as_str())
            .collect();
        self.each(&mut |call| {
            if !call.is_point {
                summary.calls += 1;
                functions.insert(call.function.clone());
            } else if is_at(DEVICES, call) {
                at_devices.push(call.at_ns);
            }
            let wakes = call.wakes.as_deref();
            summary.wakeups += usize::from(wakes.is_some_and(|task| names.contains(task)));
            summary.copies += usize::from(call.copies);
        });
        summary.functions = functions.len();
        let ends = (at_devices.iter().min(), at_devices.iter().max());
        if let (Some(first), Some(last)) = ends
            && at_devices.len() > 1
        {
            summary.device_to_device_ns = Some((last - first).unsigned_abs());
        }
        summary
    }

    /// Whether bytes passed. Acknowledgements and the end of a stream have none.
    pub fn has_message(&self) -> bool {
        let mut has = false;
        self.each(&mut |call| has |= is_at(DEVICES, call) || is_at(SOCKETS, call));
        has
    }

    /// Whether a connection ended: both of its streams, or by a reset.
    pub fn has_end(&self) -> bool {
        let is_end = |call: &Call| {
            call.function == "inet_sock_set_state"
                && matches!(call.result, Some(Value::Number(state)) if ENDED.contains(&state))
        };
        let mut has = false;
        self.each(&mut |call| has |= is_end(call));
        has
    }

    fn each(&self, with: &mut dyn FnMut(&Call)) {
        fn below(calls: &[Call], with: &mut dyn FnMut(&Call)) {
            for call in calls {
                with(call);
                below(&call.calls, with);
            }
        }
        for context in &self.contexts {
            below(&context.calls, with);
        }
    }

    /// Marks what runs in interrupts, and what copies.
    pub(super) fn mark(&mut self) {
        for context in &mut self.contexts {
            let irq = context.is_interrupted.then_some(Irq::Hard);
            for call in &mut context.calls {
                mark(call, irq, false);
            }
        }
    }
}

/// Whether one of `names` tells of bytes.
fn is_at(names: &[&str], call: &Call) -> bool {
    names.contains(&call.function.as_str())
        && matches!(call.result, Some(Value::Number(bytes)) if bytes > 0)
}

/// Returns whether it copies, itself or below.
fn mark(call: &mut Call, irq: Option<Irq>, refers: bool) -> bool {
    let is = |names: &[&str]| names.contains(&call.function.as_str());
    let has_handed_over = call.calls.iter().any(|it| {
        is_at(&["sock_recv_length"], it)
            || it.function == "tcp_rcv_space_adjust" && call.function == "tcp_recvmsg_locked"
    });
    let (is_softirq, may_copy) = (is(SOFTIRQS), !refers && (is(COPIES) || has_handed_over));
    let refers = refers || is(REFERS);
    call.irq = if is_softirq { Some(Irq::Soft) } else { irq };
    let mut has_copied = false;
    for below in &mut call.calls {
        // A softirq on top of it copies something else.
        has_copied |= mark(below, call.irq, refers) && below.irq == call.irq;
    }
    call.copies = may_copy && !has_copied;
    has_copied || call.copies
}

#[cfg(test)]
mod tests {
    use super::super::tree::Context;
    use super::*;

    fn call(function: &str, calls: Vec<Call>) -> Call {
        Call {
            calls,
            ..Call::begun(function, 0, 0)
        }
    }

    fn point(name: &str, at_ns: i64, result: i64) -> Call {
        Call {
            is_point: true,
            at_ns,
            result: Some(Value::Number(result)),
            ..call(name, Vec::new())
        }
    }

    fn trace(calls: Vec<Call>) -> Trace {
        let context = Context {
            name: "relay".into(),
            thread: 7,
            process: 7,
            is_interrupted: false,
            calls,
        };
        let mut trace = Trace {
            contexts: vec![context],
            lost: 0,
        };
        trace.mark();
        trace
    }

    #[test]
    fn copies_wakeups_and_devices_are_counted() {
        let woken = |task: &str| Call {
            wakes: Some(task.into()),
            ..point("sched_waking", 3, 0)
        };
        let trace = trace(vec![
            call(
                "__sys_sendto",
                vec![call(
                    "tcp_sendmsg_locked",
                    vec![
                        point("net_dev_queue", 1000, 100),
                        call(
                            "do_softirq",
                            vec![point("netif_receive_skb", 5000, 100), woken("relay")],
                        ),
                        point("net_dev_queue", 9000, 0),
                    ],
                )],
            ),
            call(
                "splice_to_socket",
                vec![call("tcp_sendmsg_locked", vec![woken("another")])],
            ),
        ]);
        let expected = Summary {
            calls: 5,
            functions: 4,
            wakeups: 1,
            copies: 1,
            device_to_device_ns: Some(4000),
        };
        assert_eq!(trace.summary(), expected);
        let sendto = &trace.contexts[0].calls[0];
        assert_eq!(sendto.irq, None);
        assert_eq!(sendto.calls[0].calls[1].calls[0].irq, Some(Irq::Soft));
    }

    #[test]
    fn an_acknowledgement_or_an_end_is_no_message() {
        let message = trace(vec![call(
            "do_softirq",
            vec![point("netif_receive_skb", 0, 7)],
        )]);
        assert!(message.has_message() && !message.has_end());
        let end = trace(vec![call(
            "tcp_fin",
            vec![
                point("netif_receive_skb", 0, 0),
                point("inet_sock_set_state", 0, 9),
            ],
        )]);
        assert!(!end.has_message() && end.has_end());
        // TCP_CLOSE_WAIT: the other stream may go on.
        assert!(!trace(vec![point("inet_sock_set_state", 0, 8)]).has_end());
        assert!(trace(vec![point("sock_recv_length", 0, 7)]).has_message());
        assert!(!trace(vec![point("sock_recv_length", 0, -11)]).has_message());
    }

    #[test]
    fn own_time_is_without_what_was_called() {
        let timed = |took, calls| Call {
            took_ns: Some(took),
            ..call("function", calls)
        };
        let outer = timed(
            100,
            vec![
                timed(30, Vec::new()),
                timed(50, vec![timed(40, Vec::new())]),
            ],
        );
        assert_eq!(outer.own_ns(), Some(20));
        assert_eq!(outer.calls[1].own_ns(), Some(10));
        assert_eq!(call("function", Vec::new()).own_ns(), None);
    }
}
