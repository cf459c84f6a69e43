//! `spliced trace`: the way of a message, per engine and on a connection of others.

mod beside;
mod live;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use netlab::{Need, Process, Scratch, available};
use serde_json::Value;

use crate::doctor::{NOBODY, for_anybody};
use crate::relay::{BINARY, command};
use crate::usage::failure;

/// An emulated machine takes longer to load the programs than anybody else wants to wait.
const PATIENT: [&str; 2] = ["--attach-within", "2m"];

/// The message of a trial.
const SENT_BYTES: i64 = 1000;

/// Ends what runs beside a test.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a trace prints, which does not fit into a pipe.
fn printed(command: &mut Command) -> String {
    let scratch = Scratch::new("trace").expect("a directory");
    let path = scratch.path().join("printed");
    let file = File::create(&path).expect("a file");
    command.args(PATIENT).stdin(Stdio::null()).stdout(file);
    let process = Process::spawn(command);
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

/// What a way costs, as far as it is the engine that decides: who is woken, and who copies.
fn check_summary(trace: &Value, engine: &str) {
    let summary = &trace["summary"];
    let number = |name: &str| summary[name].as_u64().expect("a number");
    let (mut calls, mut copies) = (0, 0);
    for context in list(&trace["contexts"]) {
        every_call(&context["calls"], &mut |call| {
            calls += u64::from(call["tracepoint"] == false);
            copies += u64::from(call["copies"] == true);
            let took = call["took_us"].as_f64();
            assert!(call["own_us"].as_f64() <= took, "{call:#}");
            // A softirq is on top of something, and what it calls is in it.
            if call["function"] == "handle_softirqs" {
                assert_eq!(call["irq"], "soft", "{call:#}");
                every_call(&call["calls"], &mut |below| {
                    assert_eq!(below["irq"], "soft")
                });
            }
        });
    }
    assert_eq!((number("calls"), number("copies")), (calls, copies));
    assert!(
        number("functions") > 5 && number("functions") <= calls,
        "{summary}"
    );
    // From the sender's memory, and to the receiver's. A process between them adds two.
    let expected_copies = match engine {
        "copy" | "aio" | "uring" => 4,
        _ => 2,
    };
    assert_eq!(copies, expected_copies, "{engine}: {summary}");
    let wakeups = match engine {
        "direct" | "send-to-local" | "bypass" | "segment" => 1,
        _ => 2,
    };
    assert!(number("wakeups") >= wakeups, "{engine}: {summary}");
    assert_eq!(
        summary["device_to_device_us"].as_f64() > Some(0.0),
        !["send-to-local", "bypass"].contains(&engine),
        "{engine}: {summary}"
    );
}

/// Which functions tell the way of an engine from those of others.
fn check_way(trace: &Value, engine: &str) {
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
        "bypass" => {
            has(&["tcp_bpf_sendmsg", "tcp_bpf_sendmsg_redir"], &sender);
            has(&["tcp_bpf_recvmsg"], &receiver);
            lacks(&["__ip_queue_xmit", "tcp_v4_rcv"], &all);
            assert!(relay.is_empty(), "{relay:?}");
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
            "bypass",
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
        if engine == "bypass"
            && let Some(why) = trace["error"].as_str()
        {
            // It needs a tracepoint of Linux 6.3, or a host with control groups of version 2.
            let lacks = ["sock_recv_length", "control groups of version 2"];
            assert!(lacks.iter().any(|lack| why.contains(lack)), "{why}");
            continue;
        }
        assert!(trace["error"].is_null(), "{engine}: {}", trace["error"]);
        assert_eq!(trace["lost"], 0, "{engine}");
        for context in list(&trace["contexts"]) {
            check_times(&context["calls"], f64::MIN, f64::MAX);
        }
        check_way(trace, engine);
        check_summary(trace, engine);
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
fn the_demonstration_is_a_page_with_a_table_and_a_tree_for_each_way() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let devices = || fs::read_to_string("/proc/thread-self/net/dev").expect("devices");
    let names = |text: &str| -> BTreeSet<String> {
        let name = |line: &str| Some(line.split_once(':')?.0.trim().to_owned());
        text.lines().filter_map(name).collect()
    };
    let before = names(&devices());
    let ways = ["direct", "bypass", "copy", "pipe", "sockmap", "segment"];
    let page = printed(&mut command(&[
        "trace",
        "--demo",
        "--engine",
        &ways.join(","),
    ]));
    assert!(page.starts_with("# "), "{page}");
    for way in ways {
        let row = page
            .lines()
            .find(|line| line.starts_with(&format!("| {way} | ")));
        let cells: Vec<_> = row.expect("a row").trim_matches('|').split(" | ").collect();
        let [_, calls, functions, wakeups, copies, device_to_device] = cells[..] else {
            panic!("six cells: {cells:?}");
        };
        for number in [calls, functions, wakeups] {
            assert!(number.parse::<u32>().is_ok_and(|it| it > 0), "{cells:?}");
        }
        let expected = if way == "copy" { "4" } else { "2" };
        assert_eq!(copies, expected, "{cells:?}");
        // From socket to socket, there is no device.
        let has_devices = way != "bypass";
        let is_time = |text: &str| text.parse::<f64>().is_ok_and(|it| it > 0.0);
        assert_eq!(is_time(device_to_device.trim()), has_devices, "{cells:?}");
        let (_, tree) = page
            .split_once(&format!("\n## {way}\n\n```\n"))
            .expect("a tree");
        let tree = tree.split("\n```\n").next().expect("its end");
        // The packets go through veth devices.
        assert_eq!(tree.contains("veth_xmit"), has_devices, "{way}: {tree}");
        assert_eq!(
            tree.contains("  relay (thread "),
            ["copy", "pipe"].contains(&way),
            "{way}: {tree}"
        );
    }
    assert_eq!(names(&devices()), before);
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

#[test]
fn a_host_whose_loopback_is_down_can_trace_nothing() {
    if !available(Need::Netns) || !available(Need::Bpf) {
        return;
    }
    let mut apart = Process::command("unshare");
    apart
        .args(["--net", "--", BINARY, "trace"])
        .env_remove("SPLICED_LOG");
    let sentence = failure(&mut apart, 1);
    assert!(sentence.contains("no way can be traced"), "{sentence}");
    assert!(sentence.contains("set the interface lo up"), "{sentence}");
}

#[test]
fn an_engine_that_lacks_a_right_says_so() {
    if !available(Need::Bpf) {
        return;
    }
    for engine in ["sockmap", "segment"] {
        let mut without = Process::command("setpriv");
        without
            .args([
                "--bounding-set=-net_admin,-sys_admin",
                "--",
                BINARY,
                "trace",
                "--engine",
                engine,
            ])
            .env_remove("SPLICED_LOG");
        let sentence = failure(&mut without, 1);
        assert!(sentence.contains("CAP_NET_ADMIN"), "{sentence}");
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
            &["--connection", "cookie:x"],
            &["no cookie of a socket", "write cookie:"],
        ),
        (
            &["--connection", "10.0.0.1:80-[::1]:9"],
            &["no connection has both"],
        ),
        (&["--full"], &["--connection"]),
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
        (&["--messages", "2"], &["--connection"]),
        (&["--connection", ":80", "--messages", "0"], &["1..=100"]),
        (&["--connection", ":80", "--session", "1"], &["--session"]),
        (&["--session", "1", "--engine", "copy"], &["--engine"]),
        (&["--filter", "color=red"], &["no field color"]),
        (
            &["--connection", ":80", "--wait", "5"],
            &["write a number and its unit"],
        ),
        (
            &["--connection", ":80", "--wait", "0s"],
            &["longer than zero"],
        ),
        (&["--means", "magic"], &["--means", "'magic'"]),
        (&["--demo", "--connection", ":80"], &["--demo"]),
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
