//! Messages on connections of others, and in sessions of a relay.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use netlab::{Need, Process, Scratch, available};
use rustix::net::sockopt;
use rustix::process::Signal;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::{Ends, PATIENT, every_call, functions, list, report, text};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::relay::{Relay, command, output};
use crate::server::Server;
use crate::usage::failure;

/// A connection within this test, of which one thread sends and the other receives.
struct Pair {
    client: TcpStream,
    server: TcpStream,
}

impl Pair {
    fn new() -> Self {
        Self::to(own_address().into())
    }

    /// Its listener is at `host`.
    fn to(host: IpAddr) -> Self {
        let listener = TcpListener::bind((host, 0)).expect("a listener");
        let port = listener.local_addr().expect("an address").port();
        let any_port = SocketAddr::from((own_address(), 0));
        let address = SocketAddr::from((own_address(), port));
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

/// An address that nobody else uses: a filter names one end, and elsewhere on the machine the same port may belong to another
/// connection.
fn own_address() -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 200, high, low)
}

/// What is printed of a connection while messages pass on it.
fn traced(pair: &mut Pair, arguments: &[&str]) -> Value {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ends = Ends(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                pair.pass();
                thread::sleep(Duration::from_millis(50));
            }
        });
        let report = report(arguments);
        drop(ends);
        report
    })
}

/// The functions in a report of several messages: on a busy machine one may begin or end within a message.
fn all_functions(report: &Value) -> BTreeSet<String> {
    let traces = list(&report["traces"]).iter();
    traces.flat_map(|trace| functions(trace, "")).collect()
}

/// The ends of all sockets in a report.
fn ends_of(report: &Value) -> BTreeSet<String> {
    let mut ends = BTreeSet::new();
    let traces = list(&report["traces"]).iter();
    for context in traces.flat_map(|trace| list(&trace["contexts"])) {
        every_call(&context["calls"], &mut |call| {
            if !call["socket"].is_null() {
                let end = |end: &str| text(&call["socket"][end]).to_owned();
                ends.extend([end("local"), end("remote")]);
            }
        });
    }
    ends
}

#[test]
fn a_connection_is_named_by_the_cookie_of_a_socket() {
    if !available(Need::Bpf) {
        return;
    }
    let mut pair = Pair::new();
    let server = pair.server.local_addr().expect("an address").to_string();
    let ours = BTreeSet::from([pair.address(), server]);
    let cookie = sockopt::socket_cookie(&pair.client).expect("a cookie");
    let other = sockopt::socket_cookie(&pair.server).expect("a cookie");
    for name in [format!("cookie:{cookie}"), format!("cookie:{other:#x}")] {
        assert_eq!(ends_of(&traced(&mut pair, &["--connection", &name])), ours);
    }
    drop(pair);
    let name = format!("cookie:{cookie}");
    let sentence = failure(&mut command(&["trace", "--connection", &name]), 1);
    let part = format!("no TCP or UDP socket of this network namespace has the cookie {cookie}");
    assert!(sentence.contains(&part), "{sentence}");
}

/// An IPv6 socket may have a peer of IPv4, which is mapped.
#[test]
fn a_mapped_address_is_that_of_ipv4() {
    if !available(Need::Bpf) {
        return;
    }
    let mut pair = Pair::to(Ipv6Addr::UNSPECIFIED.into());
    let server = pair.server.local_addr().expect("an address");
    assert!(server.is_ipv6(), "{server}");
    let port = server.port();
    let ours = BTreeSet::from([pair.address(), format!("{}:{port}", own_address())]);
    let own = pair.address();
    let mapped = |address: &str| {
        let (host, port) = address.rsplit_once(':').expect("a port");
        format!("[::ffff:{host}]:{port}")
    };
    let both = format!("{own}-{}:{port}", own_address());
    for filter in [both, mapped(&own)] {
        let report = traced(&mut pair, &["--connection", &filter, "--messages", "3"]);
        assert_eq!(ends_of(&report), ours, "{filter}");
        let all = all_functions(&report);
        for name in ["tcp_sendmsg", "tcp_recvmsg"] {
            assert!(all.contains(name), "no {name}: {all:?}");
        }
    }
}

/// Others pay for each place, so there are few unless all are asked for.
#[test]
fn a_live_trace_looks_at_few_places_unless_told() {
    if !available(Need::Bpf) {
        return;
    }
    let mut pair = Pair::new();
    let address = pair.address();
    let mut places = |more: &[&str]| {
        let arguments = [&["--connection", &address, "--means", "stacks"], more].concat();
        let report = traced(&mut pair, &arguments);
        assert_eq!(report["late"], Value::Array(Vec::new()));
        report["places"].as_u64().expect("a number")
    };
    let (few, all) = (places(&[]), places(&["--full"]));
    assert!(few < 12 && all > 25, "{few} and {all}");
}

#[test]
fn a_trace_without_time_to_attach_says_so() {
    if !available(Need::Bpf) {
        return;
    }
    let arguments = ["trace", "--connection", ":9", "--attach-within", "1ns"];
    let sentence = failure(&mut command(&arguments), 1);
    for part in ["no program was attached in the time", "give it more time"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
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
        let reports =
            [one, both].map(|filter| report(&["--connection", &filter, "--messages", "3"]));
        drop(ends);
        for report in reports {
            assert!(report["traces"][0]["engine"].is_null());
            let all = all_functions(&report);
            for name in ["__sys_sendto", "tcp_sendmsg", "tcp_recvmsg"] {
                assert!(all.contains(name), "no {name}: {all:?}");
            }
            assert_eq!(ends_of(&report), BTreeSet::from(ours.clone()));
        }
    });
}

/// A relay with one session, whose server answers.
struct Session {
    _relay: Relay,
    client: Peer,
    far: Peer,
    control: String,
    _scratch: Scratch,
}

impl Session {
    fn of_engine(engine: &str) -> Self {
        let server = Server::new();
        let scratch = Scratch::new("trace").expect("a directory");
        let path = scratch.path().join("control.sock");
        let control = path.to_str().expect("UTF-8").to_owned();
        let relay = Relay::to(
            &server.address,
            &["--engine", engine, "--control", &control],
        );
        let client = Peer::connect(&relay.address);
        let far = server.accept();
        let session = Self {
            _relay: relay,
            client,
            far,
            control,
            _scratch: scratch,
        };
        session.pass();
        session
    }

    fn pass(&self) {
        let payload = Payload::new(5);
        self.client.send(payload, 0, 700);
        self.far.expect(payload, 0, 700);
    }

    /// What is printed while messages pass.
    fn traced(&self, arguments: &[&str]) -> Value {
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let ends = Ends(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    self.pass();
                    thread::sleep(Duration::from_millis(50));
                }
            });
            let report = report(&[&["--control", &self.control], arguments].concat());
            drop(ends);
            report
        })
    }
}

#[test]
fn both_connections_of_a_session_are_traced() {
    if !available(Need::Bpf) {
        return;
    }
    let session = Session::of_engine("copy");
    for arguments in [
        &["--session", "1"][..],
        // As it was asked to listen.
        &["--listener", "127.0.0.1:0"],
        &[
            "--filter",
            "listener=127.0.0.1:0",
            "--filter",
            "engine=copy",
        ],
        &[],
    ] {
        let report = session.traced(&[arguments, &["--messages", "3"]].concat());
        let traces = list(&report["traces"]);
        let numbers: Vec<_> = traces.iter().map(|it| it["message"].as_u64()).collect();
        assert_eq!(numbers, [Some(1), Some(2), Some(3)]);
        // All of them together: on a busy machine one may begin or end within a message.
        let mut ends = BTreeSet::new();
        let mut times = 0;
        for trace in traces {
            assert!(trace["error"].is_null(), "{trace:#}");
            times += usize::from(trace["summary"]["device_to_device_us"].is_number());
            for context in list(&trace["contexts"]) {
                every_call(&context["calls"], &mut |call| {
                    if call["tracepoint"] == true && call["function"] == "netif_receive_skb" {
                        ends.insert(text(&call["socket"]["remote"]).to_owned());
                    }
                });
            }
        }
        assert!(times > 0, "{report:#}");
        // The client's packet, and the relay's.
        for from in [session.client.local_address(), session.far.peer_address()] {
            assert!(ends.contains(&from), "nothing from {from}: {ends:?}");
        }
    }
}

#[test]
fn a_session_that_is_not_there_is_told() {
    if !available(Need::Bpf) {
        return;
    }
    let session = Session::of_engine("copy");
    for arguments in [
        &["--session", "77"][..],
        &["--filter", "engine=segment"],
        &["--listener", "web"],
    ] {
        let arguments = [&["trace", "--control", &session.control], arguments].concat();
        assert_eq!(
            failure(&mut command(&arguments), 1),
            "there is no such session; 'spliced sessions' lists those that there are"
        );
    }
}

/// The end of a stream is no message, and neither is an acknowledgement.
#[test]
fn a_session_that_ends_meanwhile_is_told() {
    if !available(Need::Bpf) {
        return;
    }
    let session = Session::of_engine("copy");
    let client = session.client.local_address();
    let mut waiting = command(&[
        "trace",
        "--control",
        &session.control,
        "--session",
        "1",
        "--wait",
        "10m",
    ]);
    let (mut waiting, mut stderr) = self::waiting(waiting.stdout(Stdio::null()));
    session.client.end_stream();
    session.far.expect_end();
    session.far.end_stream();
    session.client.expect_end();
    until("it ends", || waiting.try_wait().expect("waited").is_some());
    let mut said = String::new();
    stderr.read_to_string(&mut said).expect("text");
    let expected = format!("session 1 of {client} with");
    assert!(said.contains(&expected), "{said}");
    assert!(said.contains("ended before a message passed"), "{said}");
}

/// Its end may belong to the last message, and nothing comes behind it.
#[test]
fn a_session_that_ends_with_its_message_is_told() {
    if !available(Need::Bpf) {
        return;
    }
    let session = Session::of_engine("copy");
    let arguments = ["trace", "--control", &session.control, "--session", "1"];
    let options = ["--messages", "2", "--wait", "10m", "--json"];
    let mut waiting = command(&[&arguments[..], &options].concat());
    let (mut waiting, _stderr) = self::waiting(waiting.stdout(Stdio::piped()));
    session.pass();
    session.client.reset();
    let mut said = String::new();
    let stdout = waiting.child_mut().stdout.take();
    stdout
        .expect("a pipe")
        .read_to_string(&mut said)
        .expect("text");
    let report: Value = serde_json::from_str(&said).expect("JSON");
    let traces = list(&report["traces"]);
    assert_eq!(traces.len(), 2, "{report:#}");
    assert!(traces[0]["error"].is_null(), "{report:#}");
    let why = text(&traces[1]["error"]);
    assert!(why.contains("ended before a message passed"), "{why}");
    waiting.wait_at_most(netlab::PATIENCE).expect("it ends");
}

/// Starts a trace and waits until it says that it waits for a message. Returns what it says after that, too.
fn waiting(command: &mut Command) -> (Process, BufReader<ChildStderr>) {
    command.args(PATIENT).stderr(Stdio::piped());
    let mut process = Process::spawn(command).expect("started");
    let stderr = process.child_mut().stderr.take().expect("a pipe");
    let mut stderr = BufReader::new(stderr);
    let mut said = String::new();
    stderr.read_line(&mut said).expect("read");
    assert!(said.contains("waits for a message on"), "{said}");
    (process, stderr)
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
        let (mut waiting, _stderr) = self::waiting(waiting.stdout(Stdio::null()));
        let attached = programs(waiting.id());
        assert!(!attached.is_empty());
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
    let output = output(&mut command(&arguments));
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).expect("UTF-8");
    let [attached, sentence] = said.lines().collect::<Vec<_>>()[..] else {
        panic!("two lines: {said}");
    };
    assert!(attached.contains("attached to "), "{attached}");
    for part in [
        &idle.address(),
        "no message passed on",
        "within 200ms",
        "--wait",
    ] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}

/// What has come until then is printed, and not lost.
#[test]
fn an_interrupted_trace_prints_the_messages_so_far() {
    if !available(Need::Bpf) {
        return;
    }
    let session = Session::of_engine("copy");
    for signal in [Signal::INT, Signal::TERM] {
        let arguments = ["trace", "--control", &session.control, "--session", "1"];
        let options = ["--messages", "100", "--wait", "10m"];
        let scratch = Scratch::new("trace").expect("a directory");
        let path = scratch.path().join("printed");
        let file = File::create(&path).expect("a file");
        let mut waiting = command(&[&arguments[..], &options].concat());
        let (mut waiting, mut stderr) = self::waiting(waiting.stdout(file));
        let over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends = Ends(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    session.pass();
                    thread::sleep(Duration::from_millis(50));
                }
            });
            for number in [1, 2] {
                let mut said = String::new();
                stderr.read_line(&mut said).expect("read");
                assert!(
                    said.contains(&format!("has message {number} of 100")),
                    "{said}"
                );
            }
        });
        waiting.signal(signal).expect("a signal");
        let status = waiting.wait_at_most(netlab::PATIENCE).expect("waited");
        assert_eq!(status.expect("it ends").code(), Some(0));
        let printed = fs::read_to_string(&path).expect("text");
        for part in [
            "\nmessage 1: ",
            "\nmessage 2: ",
            " messages, each with ",
            "us from device to device",
        ] {
            assert!(printed.contains(part), "no {part:?} in {printed}");
        }
        let last = printed.lines().last().expect("lines");
        assert!(
            last.contains(" messages, each with ") && last.contains("wake-ups"),
            "{last}"
        );
    }
}
