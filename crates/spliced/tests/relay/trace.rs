//! `spliced trace`: the way of a message, per engine and on a connection of others.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use netlab::{Need, Process, Scratch, available};
use rustix::process::Signal;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::doctor::{NOBODY, for_anybody};
use crate::patience::until;
use crate::relay::command;
use crate::usage::failure;

/// The message of a trial.
const SENT_BYTES: i64 = 1000;

/// What a trace prints, which does not fit into a pipe.
fn printed(command: &mut Command) -> String {
    let scratch = Scratch::new("trace").expect("a directory");
    let path = scratch.path().join("printed");
    let file = File::create(&path).expect("a file");
    let process = Process::spawn(command.stdin(Stdio::null()).stdout(file));
    let ended = process.expect("started").wait_at_most(netlab::PATIENCE);
    let status = ended.expect("waited").expect("it ends");
    assert_eq!(status.code(), Some(0), "{command:?}");
    fs::read_to_string(&path).expect("text")
}

fn report(arguments: &[&str]) -> Value {
    let text = printed(command(&["trace", "--json"]).args(arguments));
    serde_json::from_str(&text).expect("JSON")
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("text")
}

/// Calls `each` with every call below `calls`.
fn every_call(calls: &Value, each: &mut dyn FnMut(&Value)) {
    for call in list(calls) {
        each(call);
        every_call(&call["calls"], each);
    }
}

/// The functions that tasks have called whose name begins with `task`.
fn functions(trace: &Value, task: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for context in list(&trace["contexts"]) {
        if text(&context["task"]).starts_with(task) {
            every_call(&context["calls"], &mut |call| {
                found.insert(text(&call["function"]).to_owned());
            });
        }
    }
    found
}

/// Time passes: a call begins when its caller runs, after the call before it, and ends before its caller.
fn check_times(calls: &Value, begin: f64, end: f64) {
    /// Half of a nanosecond, the unit of what was measured.
    const ROUNDING: f64 = 0.0005;
    let mut last = begin;
    for call in list(calls) {
        let at = call["at_us"].as_f64().expect("a time");
        let took = call["took_us"].as_f64();
        assert!(at + ROUNDING >= last, "before {last}: {call:#}");
        assert!(at - ROUNDING <= end, "after {end}: {call:#}");
        let ended = took.map_or(end, |took| at + took);
        assert!(ended - ROUNDING <= end, "ends after {end}: {call:#}");
        check_times(&call["calls"], at, ended);
        last = at;
    }
}

#[test]
fn each_engine_shows_its_own_way() {
    if !available(Need::Bpf) {
        return;
    }
    let report = report(&[]);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    assert_eq!(report["kernel"], kernel.trim());
    assert!(["functions", "stacks"].contains(&text(&report["means"])));
    let traces = list(&report["traces"]);
    let engines: Vec<_> = traces.iter().map(|trace| text(&trace["engine"])).collect();
    assert_eq!(
        engines,
        [
            "direct",
            "send-to-local",
            "copy",
            "pipe",
            "aio",
            "uring",
            "sockmap",
            "segment"
        ]
    );
    for trace in traces {
        let engine = text(&trace["engine"]);
        if engine == "uring" && !trace["error"].is_null() {
            // Many systems forbid io_uring.
            continue;
        }
        assert!(trace["error"].is_null(), "{engine}: {}", trace["error"]);
        assert_eq!(trace["lost"], 0, "{engine}");
        for context in list(&trace["contexts"]) {
            check_times(&context["calls"], f64::MIN, f64::MAX);
        }
        let [all, relay, receiver] = ["", "relay", "receiver"].map(|task| functions(trace, task));
        let sender = functions(trace, "sender");
        assert!(sender.contains("__sys_sendto"), "{engine}: {sender:?}");
        assert!(
            receiver.contains("__sys_recvfrom"),
            "{engine}: {receiver:?}"
        );
        let has = |names: &[&str], among: &BTreeSet<String>| {
            for name in names {
                assert!(among.contains(*name), "{engine} without {name}: {among:?}");
            }
        };
        let lacks = |names: &[&str], among: &BTreeSet<String>| {
            for name in names {
                assert!(!among.contains(*name), "{engine} with {name}: {among:?}");
            }
        };
        match engine {
            "direct" => {
                has(&["tcp_sendmsg", "tcp_v4_rcv", "tcp_recvmsg"], &all);
                assert!(relay.is_empty(), "{relay:?}");
            }
            "send-to-local" => {
                has(&["tcp_bpf_sendmsg", "tcp_bpf_sendmsg_redir"], &sender);
                has(&["tcp_bpf_recvmsg"], &receiver);
                lacks(&["__ip_queue_xmit", "tcp_v4_rcv"], &all);
            }
            "copy" => has(&["tcp_recvmsg", "tcp_sendmsg"], &relay),
            "pipe" => has(&["tcp_splice_read", "splice_to_socket"], &relay),
            "aio" => has(&["io_submit_one", "tcp_recvmsg", "tcp_sendmsg"], &relay),
            "uring" => has(&["io_recv", "io_send"], &relay),
            "sockmap" => {
                has(&["sk_psock_verdict_recv"], &all);
                has(&["sk_psock_backlog"], &functions(trace, "kworker"));
                lacks(&["tcp_recvmsg", "tcp_sendmsg"], &relay);
            }
            "segment" => {
                has(&["tcp_v4_rcv"], &all);
                lacks(&["tcp_recvmsg", "tcp_sendmsg"], &relay);
                lacks(&["sk_psock_backlog"], &all);
            }
            other => panic!("{other}"),
        }
        let mut received = Vec::new();
        for context in list(&trace["contexts"]) {
            if context["task"] == "receiver" {
                every_call(&context["calls"], &mut |call| {
                    received.extend(call["result"].as_i64());
                });
            }
        }
        assert!(received.contains(&SENT_BYTES), "{engine}: {received:?}");
    }
}

#[test]
fn the_text_is_a_tree() {
    if !available(Need::Bpf) {
        return;
    }
    let text = printed(&mut command(&["trace", "--engine", "copy,direct"]));
    assert!(text.starts_with("Means: "), "{text}");
    let (copy, direct) = text.split_once("\ndirect: ").expect("both, in this order");
    assert!(copy.contains("\ncopy: "), "{copy}");
    assert!(copy.contains("\n  relay (thread "), "{copy}");
    assert!(!direct.contains("\n  relay (thread "), "{direct}");
    let opened = text.lines().filter(|line| line.contains("() {")).count();
    let closed = text.matches("} /* ").count();
    assert!(
        opened > 0 && opened == closed,
        "{opened} and {closed}: {text}"
    );
}

/// A connection within this test, of which one thread sends and the other receives.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

/// Ends what runs beside a test.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Pair {
    /// Both ends have an address that nobody else uses: a filter names one end, and elsewhere on the machine the same
    /// port may belong to another connection.
    fn new() -> Self {
        let [_, _, high, low] = std::process::id().to_be_bytes();
        let any_port = SocketAddr::from((Ipv4Addr::new(127, 200, high, low), 0));
        let listener = TcpListener::bind(any_port).expect("a listener");
        let address = listener.local_addr().expect("an address");
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        client.bind(&any_port.into()).expect("bound");
        client.connect(&address.into()).expect("connected");
        let client = TcpStream::from(client);
        let (server, _) = listener.accept().expect("accepted");
        Self { client, server }
    }

    fn pass(&mut self) {
        self.client.write_all(b"message").expect("sent");
        let mut buffer = [0; 7];
        self.server.read_exact(&mut buffer).expect("received");
        assert_eq!(&buffer, b"message");
    }

    fn address(&self) -> String {
        self.client.local_addr().expect("an address").to_string()
    }
}

#[test]
fn only_the_connection_that_is_asked_for_is_traced() {
    if !available(Need::Bpf) {
        return;
    }
    let mut quiet = Pair::new();
    let mut busy = Pair::new();
    let ours = [
        quiet.address(),
        quiet.server.local_addr().expect("an address").to_string(),
    ];
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        // Also after a failure, or the scope would wait for ever.
        let ends = Ends(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                busy.pass();
            }
        });
        scope.spawn(|| {
            // It cannot be seen from outside when the programs are attached.
            while !over.load(Ordering::Relaxed) {
                quiet.pass();
                thread::sleep(Duration::from_millis(50));
            }
        });
        let one = ours[0].clone();
        let both = ours.join("-");
        let reports = [one, both].map(|filter| report(&["--connection", &filter]));
        drop(ends);
        for report in reports {
            let trace = &report["traces"][0];
            assert!(trace["engine"].is_null());
            let all = functions(trace, "");
            for name in ["__sys_sendto", "tcp_sendmsg", "tcp_recvmsg"] {
                assert!(all.contains(name), "no {name}: {all:?}");
            }
            let mut sockets = 0;
            for context in list(&trace["contexts"]) {
                every_call(&context["calls"], &mut |call| {
                    let socket = &call["socket"];
                    if !socket.is_null() {
                        sockets += 1;
                        for end in ["local", "remote"] {
                            let end = text(&socket[end]).to_owned();
                            assert!(ours.contains(&end), "{end} is not in {ours:?}");
                        }
                    }
                });
            }
            assert!(sockets > 0, "{trace:#}");
        }
    });
}

/// The ids of the BPF programs that a process has.
fn programs(process: u32) -> BTreeSet<u32> {
    let directory = format!("/proc/{process}/fdinfo");
    let infos = fs::read_dir(Path::new(&directory)).into_iter().flatten();
    infos
        .filter_map(|info| fs::read_to_string(info.ok()?.path()).ok())
        .flat_map(|info| {
            let ids = info
                .lines()
                .filter_map(|line| line.strip_prefix("prog_id:"));
            ids.filter_map(|id| id.trim().parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn nothing_is_left_however_it_ends() {
    if !available(Need::Bpf) {
        return;
    }
    let idle = Pair::new();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut waiting = command(&["trace", "--connection", &idle.address(), "--wait", "10m"]);
        let mut waiting = Process::spawn(waiting.stdout(Stdio::null())).expect("started");
        // Once all are attached, their number does not change.
        let mut attached = BTreeSet::new();
        until("the programs are attached", || {
            let before = std::mem::replace(&mut attached, programs(waiting.id()));
            thread::sleep(Duration::from_millis(100));
            attached.len() > 10 && attached == before
        });
        waiting.signal(signal).expect("a signal");
        until("it ends", || waiting.try_wait().expect("waited").is_some());
        until("its programs are gone", || {
            ProgInfoIter::default().all(|program| !attached.contains(&program.id))
        });
    }
}

#[test]
fn a_silent_connection_is_told() {
    if !available(Need::Bpf) {
        return;
    }
    let idle = Pair::new();
    let arguments = ["trace", "--connection", &idle.address(), "--wait", "200ms"];
    let sentence = failure(&mut command(&arguments), 1);
    for part in [
        &idle.address(),
        "nothing passed on",
        "within 200ms",
        "--wait",
    ] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

#[test]
fn the_capabilities_that_are_missing_are_named() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("trace").expect("a directory");
    let spliced = for_anybody(&scratch);
    for (capabilities, missing) in [
        ("", "lacks CAP_BPF and CAP_PERFMON"),
        (",+bpf", "lacks CAP_PERFMON"),
        (",+perfmon", "lacks CAP_BPF"),
    ] {
        let mut command = Process::command("setpriv");
        command
            .args(["--reuid", NOBODY, "--clear-groups"])
            .arg(format!("--inh-caps=-all{capabilities}"))
            .arg(format!("--ambient-caps=-all{capabilities}"))
            .arg("--")
            .arg(&spliced)
            .arg("trace")
            .env_remove("SPLICED_LOG");
        let sentence = failure(&mut command, 1);
        for part in ["cannot trace", missing, "run it as root, or give it"] {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
}

#[test]
fn each_mistake_is_one_sentence() {
    for (arguments, parts) in [
        (&["--engine", "smoke"][..], &["--engine", "'smoke'"][..]),
        (
            &["--connection", "10.0.0.1"],
            &["has no port", "write 10.0.0.1:80"],
        ),
        (
            &["--connection", "host:80"],
            &["no IP address", "write 10.0.0.1:80"],
        ),
        (&["--connection", "::1:80"], &["without [ and ]"]),
        (&["--connection", ":0"], &["port 0"]),
        (
            &["--connection", ":70000"],
            &["not a number from 1 to 65535"],
        ),
        (&["--connection", ":80-"], &["has no port"]),
        (
            &["--connection", ":80", "--engine", "copy"],
            &["--connection", "--engine"],
        ),
        (&["--wait", "5s"], &["--connection"]),
        (
            &["--connection", ":80", "--wait", "5"],
            &["write a number and its unit"],
        ),
        (
            &["--connection", ":80", "--wait", "0s"],
            &["longer than zero"],
        ),
        (&["--means", "magic"], &["--means", "'magic'"]),
        (&["extra"], &["'extra'"]),
    ] {
        let mut command = command(&["trace"]);
        let sentence = failure(command.args(arguments), 2);
        for part in parts {
            assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
        }
    }
    let mut command: Command = command(&["trace"]);
    for port in 1..=9 {
        command.args(["--connection", &format!(":{port}")]);
    }
    let sentence = failure(&mut command, 2);
    assert!(sentence.contains("8 times"), "{sentence}");
}
