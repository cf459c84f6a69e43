//! `spliced sessions` and `spliced kill`: what is told of live sessions, and the end of one.

use std::fs;
use std::io::Write;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use netlab::{Namespace, Need, Scratch, available, present};
use serde_json::Value;
use splice::EngineName;

use super::Proxy;
use super::hostile::allow_descriptors;
use super::routes::{connect, expect, tls_hello};
use crate::log::Log;
use crate::patience::{until, until_found};
use crate::payload::Payload;
use crate::peer::{Over, Peer};
use crate::server::Server;

/// Every field of a session that has all of them.
const FIELDS: [&str; 26] = [
    "accepted_at",
    "age_ms",
    "backend",
    "client",
    "client_stream",
    "client_to_target_bytes",
    "client_to_target_bytes_per_second",
    "engine",
    "id",
    "idle_ms",
    "listener",
    "peer",
    "phase",
    "process",
    "process_draining",
    "route",
    "server",
    "server_name",
    "socket",
    "source",
    "target",
    "target_stream",
    "target_to_client_bytes",
    "target_to_client_bytes_per_second",
    "unique_id",
    "why_engine",
];

/// A configuration with one listener, `l`, and one backend, `b`.
fn configuration(log: &Log, server: &str, listener: &str, backend: &str) -> String {
    format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\naccess_log = \"{}\"\n{listener}\n\
         [[listener.route]]\nbackend = \"b\"\n[backend.b]\nservers = \"{server}\"\n{backend}\n",
        log.path
    )
}

/// What a session and the log have in common when it has ended.
fn expect_same(session: &Value, entry: &Value) {
    for name in [
        "id",
        "client",
        "target",
        "engine",
        "client_to_target_bytes",
        "target_to_client_bytes",
    ] {
        assert_eq!(session[name], entry[name], "{name}: {session} {entry}");
    }
}

fn number(session: &Value, name: &str) -> u64 {
    session[name].as_u64().expect(name)
}

/// The entries of a log, once there are so many.
fn logged(log: &Log, count: usize) -> Vec<Value> {
    until_found("it is in the log", || {
        let entries = log.entries();
        (entries.len() >= count).then_some(entries)
    })
}

/// Bytes, engine and reason are what was sent and what moved it: while it lives, once it is idle, and at the end.
fn shows_what_has_passed(engine: EngineName) {
    const PARTS: u64 = 3;
    const THERE: u64 = 300_007;
    const BACK: u64 = 70_001;
    let namespace = Namespace::new("sessions").expect("a namespace");
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::in_namespace(&namespace, "127.0.0.1:0");
    let text = configuration(&log, &server.address, &format!("engine = \"{engine}\""), "");
    let proxy = Proxy::run_in(&namespace, &text);
    let address = proxy.address("l");
    let client = namespace
        .enter(|| Peer::connect(&address))
        .expect("entered");
    let far = server.accept();
    let (forth, back) = (Payload::new(1), Payload::new(2));
    let mut last = Value::Null;
    for part in 0..PARTS {
        thread::scope(|scope| {
            scope.spawn(|| client.send(forth, part * THERE, THERE));
            scope.spawn(|| far.send(back, part * BACK, BACK));
            scope.spawn(|| client.expect(back, part * BACK, BACK));
            far.expect(forth, part * THERE, THERE);
        });
        last = until_found("it shows what was sent", || {
            let sessions = proxy.sessions();
            let [session] = &sessions[..] else {
                panic!("one session, not {sessions:?}");
            };
            let passed = ["client_to_target_bytes", "target_to_client_bytes"]
                .map(|name| number(session, name));
            let sent = [(part + 1) * THERE, (part + 1) * BACK];
            assert!(passed[0] <= sent[0] && passed[1] <= sent[1], "{session}");
            // An engine in the kernel takes the pair when it can.
            let is_right = session["engine"] == engine.as_str() && passed == sent;
            is_right.then(|| session.clone())
        });
    }
    assert_eq!(last["why_engine"], "asked for by name");
    assert_eq!(last["id"], 1);
    assert_eq!(last["phase"], "relaying");
    assert_eq!(last["client"], client.local_address());
    assert_eq!(last["target"], server.address);
    assert_eq!(last["server"], server.address);
    let milliseconds = |name: &str| last[name].as_f64().expect("a number");
    assert!(milliseconds("idle_ms") < milliseconds("age_ms"));
    client.end_stream();
    far.expect_end();
    until("it is half-closed", || {
        let session = &proxy.sessions()[0];
        session["phase"] == "half-closed"
            && session["client_stream"] == "ended"
            && session["target_stream"] == "open"
    });
    far.end_stream();
    client.expect_end();
    let entries = logged(&log, 1);
    expect_same(&last, &entries[0]);
    // It is logged first.
    until("it is gone", || proxy.sessions().is_empty());
}

macro_rules! with_each_engine {
    ($($name:ident $engine:ident)*) => {$(
        #[test]
        fn $name() {
            let engine = EngineName::$engine;
            let why = engine.probe().err().map(|error| error.to_string());
            if available(Need::Root) && present(engine.as_str(), why) {
                shows_what_has_passed(engine);
            }
        }
    )*};
}

with_each_engine! {
    what_copy_has_moved Copy
    what_pipe_has_moved Pipe
    what_aio_has_moved Aio
    what_uring_has_moved Uring
    what_sockmap_has_moved Sockmap
    what_segment_has_moved Segment
}

#[test]
fn every_field_is_there_and_bytes_before_the_pair_count() {
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let text = format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\naccess_log = \"{}\"\nengine = \"copy\"\n\
         proxy_protocol = \"require\"\ntrusted = \"127.0.0.0/8\"\n\
         [[listener.route]]\nsni = [\"example.org\"]\nbackend = \"b\"\n\
         [backend.b]\nservers = \"{}\"\nsend_proxy = \"v2\"\n",
        log.path, server.address
    );
    let proxy = Proxy::run(&text);
    let mut client = connect(&proxy.address("l"));
    let header = b"PROXY TCP4 192.0.2.7 198.51.100.1 4000 443\r\n";
    let hello = tls_hello("example.org", &[]);
    client.write_all(&[header, &*hello].concat()).expect("sent");
    let far = server.accept();
    far.write_text("yes");
    expect(&mut client, b"yes");
    let session = until_found("all has passed", || {
        let session = proxy.sessions().pop()?;
        (session["target_to_client_bytes"] == 3).then_some(session)
    });
    let object = session.as_object().expect("an object");
    let mut names: Vec<_> = object.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, FIELDS);
    assert_eq!(session["server_name"], "example.org");
    assert_eq!(session["backend"], "b");
    assert_eq!(session["listener"], "l");
    assert_eq!(session["client"], "192.0.2.7:4000");
    let peer = client.local_addr().expect("its address").to_string();
    assert_eq!(session["peer"], peer);
    assert_eq!(session["source"], far.peer_address());
    assert_eq!(
        number(&session, "client_to_target_bytes"),
        hello.len() as u64
    );
    let accepted = session["accepted_at"].as_str().expect("a time");
    humantime::parse_rfc3339(accepted).expect("RFC 3339");
    drop(far);
    drop(client);
    let entry = &logged(&log, 1)[0];
    expect_same(&session, entry);
    for name in [
        "unique_id",
        "listener",
        "route",
        "peer",
        "server_name",
        "backend",
        "server",
        "why_engine",
    ] {
        assert_eq!(session[name], entry[name], "{name}");
    }
}

/// The only session, once it is in this phase.
fn in_phase(proxy: &Proxy, phase: &str) -> Value {
    until_found(&format!("it is {phase}"), || {
        proxy
            .sessions()
            .into_iter()
            .find(|one| one["phase"] == phase)
    })
}

/// What `auto` never tries is named, while the session lives and in the log.
#[test]
fn a_session_that_cannot_be_spliced_says_why() {
    if !available(Need::Root) {
        return;
    }
    let scratch = Scratch::new("sessions").expect("a directory");
    let unix = format!("unix:{}", scratch.path().join("server").display());
    for (address, listener, backend, why) in [
        (
            "127.0.0.1:0",
            "rate = \"1MiB\"",
            "",
            "its sockets keep its rate",
        ),
        (
            "127.0.0.1:0",
            "",
            "mark = 7",
            "its server needs a mark or a device",
        ),
        (&*unix, "", "", "one of its sockets is a UNIX socket"),
    ] {
        let log = Log::below(&scratch);
        let server = Server::on(address);
        let proxy = Proxy::run(&configuration(&log, &server.address, listener, backend));
        let client = Peer::connect(&proxy.address("l"));
        let far = server.accept();
        client.write_number(1);
        assert_eq!(far.read_number(), 1);
        let expected = format!("no direction moved bulk; segment is not tried: {why}");
        let session = in_phase(&proxy, "relaying");
        assert_eq!(session["why_engine"], expected);
        client.end_stream();
        far.expect_end();
        far.end_stream();
        client.expect_end();
        assert_eq!(logged(&log, 1)[0]["why_engine"], expected);
        fs::remove_file(&log.path).expect("the log");
    }
}

#[test]
fn a_session_is_deciding_queued_and_connecting_before_it_relays() {
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let by_name = format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\naccess_log = \"{}\"\n\
         decide_within = \"10m\"\nengine = \"copy\"\n\
         [[listener.route]]\nhttp_host = [\"example.org\"]\nbackend = \"b\"\n\
         [backend.b]\nservers = \"{}\"\nmax_connections_per_server = 1\nqueue_timeout = \"10m\"\n",
        log.path, server.address
    );
    let proxy = Proxy::run(&by_name);
    let address = proxy.address("l");
    let client = Peer::connect(&address);
    let deciding = in_phase(&proxy, "deciding");
    assert_eq!(deciding["engine"], Value::Null);
    assert_eq!(deciding["why_engine"], "no server is connected yet");
    assert_eq!(deciding["target"], "");
    client.write_text("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
    in_phase(&proxy, "relaying");
    let second = Peer::connect(&address);
    second.write_text("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n");
    let queued = in_phase(&proxy, "queued");
    assert_eq!(queued["backend"], "b");
    assert_eq!(queued["id"], 2);
    drop((client, second));
}

/// Its SYN gets no answer, as the server's backlog is full.
#[test]
fn a_session_whose_server_does_not_answer_is_connecting() {
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = super::leaving::slow_listener(0);
    let address = server.local_addr().expect("an address").to_string();
    let fill: Vec<_> = (0..2)
        .map(|_| {
            let stream = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None);
            let stream = stream.expect("a socket");
            stream.set_nonblocking(true).expect("non-blocking");
            let to = server.local_addr().expect("an address");
            let _ = stream.connect(&to.into());
            stream
        })
        .collect();
    let proxy = Proxy::run(&configuration(
        &log,
        &address,
        "engine = \"copy\"",
        "connect_timeout = \"10m\"",
    ));
    let client = Peer::connect(&proxy.address("l"));
    let connecting = in_phase(&proxy, "connecting");
    assert_eq!(connecting["server"], address);
    // Whatever it waits for, it can be ended.
    assert!(kill(&proxy, 1).status.success());
    client.expect_reset();
    assert_eq!(logged(&log, 1)[0]["outcome"], "ended by an operator");
    drop(fill);
}

fn kill(proxy: &Proxy, id: u64) -> Output {
    proxy.ask_with(&["kill", &id.to_string()])
}

fn kill_resets_both_peers(engine: EngineName) {
    let namespace = Namespace::new("kill").expect("a namespace");
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::in_namespace(&namespace, "127.0.0.1:0");
    let text = configuration(&log, &server.address, &format!("engine = \"{engine}\""), "");
    let proxy = Proxy::run_in(&namespace, &text);
    let address = proxy.address("l");
    let join = || {
        let near = namespace
            .enter(|| Peer::connect(&address))
            .expect("entered");
        let far = server.accept();
        near.write_number(1);
        assert_eq!(far.read_number(), 1);
        (near, far)
    };
    let (first, second) = (join(), join());
    until("both have their engine", || {
        let sessions = proxy.sessions();
        sessions
            .iter()
            .filter(|one| one["engine"] == engine.as_str())
            .count()
            == 2
    });
    assert!(kill(&proxy, 1).status.success());
    first.0.expect_reset();
    first.1.expect_reset();
    let entry = &logged(&log, 1)[0];
    assert_eq!(entry["id"], 1);
    assert_eq!(entry["outcome"], "ended by an operator");
    assert_eq!(entry["client_to_target_bytes"], 8);
    // The other one goes on, and the first one is no more.
    second.1.write_number(2);
    assert_eq!(second.0.read_number(), 2);
    until("the first one is gone", || {
        let sessions = proxy.sessions();
        sessions.iter().map(|one| number(one, "id")).eq([2])
    });
    let again = kill(&proxy, 1);
    assert_eq!(again.status.code(), Some(1));
    let said = String::from_utf8_lossy(&again.stderr);
    assert_eq!(
        said,
        "spliced: there is no session 1; 'spliced sessions' lists those that there are\n"
    );
}

#[test]
fn a_kill_resets_both_peers_of_a_copied_session() {
    if available(Need::Root) {
        kill_resets_both_peers(EngineName::Copy);
    }
}

#[test]
fn a_kill_resets_both_peers_of_a_session_in_a_sockmap() {
    if available(Need::Root) {
        kill_resets_both_peers(EngineName::Sockmap);
    }
}

#[test]
fn a_kill_resets_both_peers_of_a_spliced_session() {
    if available(Need::Root) {
        kill_resets_both_peers(EngineName::Segment);
    }
}

#[test]
fn a_table_has_a_row_for_each_session_that_a_filter_takes() {
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let proxy = Proxy::run(&configuration(
        &log,
        &server.address,
        "engine = \"copy\"",
        "",
    ));
    let table = |arguments: &[&str]| {
        let output = proxy.ask_with(&[&["sessions"], arguments].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(table(&[]), "no sessions\n");
    let address = proxy.address("l");
    let peers: Vec<_> = (0..3)
        .map(|count| {
            let near = Peer::connect(&address);
            let far = server.accept();
            let bytes = 1000 * count;
            near.send(Payload::new(1), 0, bytes);
            far.expect(Payload::new(1), 0, bytes);
            (near, far)
        })
        .collect();
    until("all are told of", || {
        proxy
            .sessions()
            .iter()
            .any(|one| one["client_to_target_bytes"] == 2000)
    });
    let ids = |text: &str| -> Vec<String> {
        let first = text
            .lines()
            .skip(1)
            .filter_map(|line| line.split_whitespace().next());
        first.map(Into::into).collect()
    };
    let all = table(&[]);
    assert!(all.starts_with("ID  LISTENER  CLIENT"), "{all}");
    assert_eq!(ids(&all), ["1", "2", "3"]);
    assert_eq!(ids(&table(&["--sort", "age"])), ["1", "2", "3"]);
    assert_eq!(ids(&table(&["--sort", "bytes"])), ["3", "2", "1"]);
    let client = format!("client={}", peers[1].0.local_address());
    assert_eq!(ids(&table(&["--filter", &client])), ["2"]);
    let both = ["--filter", "engine=copy", "--filter", "client=127.0.0.1"];
    assert_eq!(ids(&table(&both)), ["1", "2", "3"]);
    assert_eq!(table(&["--filter", "engine=pipe"]), "no sessions\n");
    let wrong = proxy.ask_with(&["sessions", "--filter", "colour=red"]);
    assert_eq!(wrong.status.code(), Some(2));
    let said = String::from_utf8_lossy(&wrong.stderr);
    assert!(
        said.contains("there is no field colour; the fields are listener,"),
        "{said}"
    );
}

/// They wait for a route, so that each costs one connection.
#[test]
fn a_transfer_goes_on_while_ten_thousand_sessions_are_shown() {
    const COUNT: u64 = 10_000;
    const LOOKS: u64 = 5;
    let count = allow_descriptors(COUNT).min(COUNT) as usize;
    let scratch = Scratch::new("sessions").expect("a directory");
    let log = Log::below(&scratch);
    let server = Server::new();
    let text = format!(
        "[[listener]]\nname = \"l\"\naddress = \"127.0.0.1:0\"\nengine = \"copy\"\n\
         [[listener.route]]\nbackend = \"b\"\n\
         [[listener]]\nname = \"many\"\naddress = \"127.0.0.1:0\"\ndecide_within = \"10m\"\n\
         [[listener.route]]\nhttp_host = [\"example.org\"]\nbackend = \"b\"\n\
         [backend.b]\nservers = \"{}\"\n",
        server.address
    );
    fs::write(&log.path, "").expect("written");
    let proxy = Proxy::run(&text);
    let many = proxy.address("many");
    let crowd: Vec<_> = (0..count).map(|_| connect(&many)).collect();
    until("all are accepted", || {
        proxy.count("many", "accepted") == count as u64
    });
    let near = Peer::connect(&proxy.address("l"));
    let far = server.accept();
    let passed = AtomicU64::new(0);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let number = passed.load(Ordering::Relaxed);
                near.write_number(number);
                assert_eq!(far.read_number(), number);
                passed.store(number + 1, Ordering::Release);
            }
        });
        let _over = Over(&over);
        for _ in 0..LOOKS {
            let before = passed.load(Ordering::Acquire);
            assert_eq!(proxy.sessions().len(), count + 1);
            assert!(passed.load(Ordering::Acquire) > before, "it stands still");
        }
    });
    drop(crowd);
}
