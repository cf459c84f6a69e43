//! Messages on connections of others, and in sessions of a relay.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use libbpf_rs::query::ProgInfoIter;
use netlab::{Need, Process, Scratch, available};
use rustix::process::Signal;
use serde_json::Value;
use socket2::{Domain, Socket, Type};

use super::{every_call, functions, list, report, text};
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
    let waiting = waiting.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut waiting = Process::spawn(waiting).expect("started");
    let mut attached = BTreeSet::new();
    until("the programs are attached", || {
        let before = std::mem::replace(&mut attached, programs(waiting.id()));
        thread::sleep(Duration::from_millis(100));
        attached.len() > 10 && attached == before
    });
    session.client.end_stream();
    session.far.expect_end();
    session.far.end_stream();
    session.client.expect_end();
    until("it ends", || waiting.try_wait().expect("waited").is_some());
    let mut said = String::new();
    let stderr = waiting.child_mut().stderr.take();
    stderr
        .expect("a pipe")
        .read_to_string(&mut said)
        .expect("text");
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
    let waiting = waiting.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut waiting = Process::spawn(waiting).expect("started");
    let mut attached = BTreeSet::new();
    until("the programs are attached", || {
        let before = std::mem::replace(&mut attached, programs(waiting.id()));
        thread::sleep(Duration::from_millis(100));
        attached.len() > 10 && attached == before
    });
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
