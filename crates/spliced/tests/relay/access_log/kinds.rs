//! What the access log says about sessions that are no connections of TCP with a route.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use netlab::{Scratch, until};
use rustix::net::{SendFlags, send};
use serde_json::{Value, json};

use crate::datagrams;
use crate::log::Log;
use crate::payload::Payload;
use crate::peer::Peer;
use crate::relay::{Relay, command};
use crate::seqpacket;
use crate::usage::failure;

const WITH_STARTS: &str = "--access-log-start";

/// The lines in the order in which they were written, without what differs from run to run.
fn lines(log: &Log, count: usize) -> Vec<Value> {
    let mut text = String::new();
    until("it is logged", || {
        text = std::fs::read_to_string(&log.path).unwrap_or_default();
        text.ends_with('\n') && text.lines().count() == count
    });
    let mut lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    for line in &mut lines {
        let fields = line.as_object_mut().expect("an object");
        assert!(fields.remove("time").is_some());
        let is_end = fields["event"] == "end";
        assert_eq!(fields.remove("duration_ms").is_some(), is_end);
    }
    lines
}

/// What the lines of a start and of an end have in common.
fn copied(listener: &str, client: &str, server: &str, target: &str) -> Value {
    json!({
        "id": 1,
        "listener": listener,
        "route": 1,
        "client": client,
        "backend": server,
        "server": server,
        "target": target,
        "engine": "copy",
        "why_engine": "no other engine takes its kind of socket",
    })
}

fn with(mut line: Value, more: Value) -> Value {
    let (Some(fields), Value::Object(more)) = (line.as_object_mut(), more) else {
        panic!("no objects");
    };
    fields.extend(more);
    line
}

#[test]
fn a_session_of_udp_has_its_fields() {
    let scratch = Scratch::new("udp").expect("a directory");
    let log = Log::below(&scratch);
    let target = datagrams::socket("127.0.0.1:0");
    let at = target.local_addr().expect("its address");
    let server = format!("udp:{at}");
    let options = ["--access-log", &log.path, WITH_STARTS];
    let mut relay = Relay::between("udp:127.0.0.1:0", &server, &options);
    let client = datagrams::client(&relay);
    client.send(b"there").expect("sent");
    let (_, from) = datagrams::receive(&target);
    target.send_to(b"back again", from).expect("sent");
    datagrams::receive(&client);
    let address = client.local_addr().expect("its address").to_string();
    let common = copied("udp:127.0.0.1:0", &address, &server, &server);
    let start = with(common.clone(), json!({"event": "start"}));
    assert_eq!(lines(&log, 1), std::slice::from_ref(&start));
    relay.terminate();
    let end = json!({
        "event": "end",
        "client_to_target_datagrams": 1,
        "client_to_target_bytes": 5,
        "client_to_target_dropped": 0,
        "target_to_client_datagrams": 1,
        "target_to_client_bytes": 10,
        "target_to_client_dropped": 0,
        "outcome": "quiet, and the relay ends",
    });
    assert_eq!(lines(&log, 2), [start, with(common, end)]);
}

/// Also one whose client has a hostile name.
#[test]
fn a_session_of_unix_datagrams_has_its_fields_in_one_line() {
    const NAME: &str = "a\n\"b\u{1b}\u{9b}";
    let scratch = Scratch::new("unixgram").expect("a directory");
    let log = Log::below(&scratch);
    let place = |name: &str| scratch.path().join(name);
    let named = |kind: &str, name: &str| format!("{kind}:{}", place(name).display());
    let target = UnixDatagram::bind(place("target")).expect("bound");
    let options = ["--access-log", &log.path, WITH_STARTS];
    let (listener, server) = (named("unixgram", "relay"), named("unixgram", "target"));
    let mut relay = Relay::between(&listener, &server, &options);
    let client = UnixDatagram::bind(place(NAME)).expect("bound");
    client.send_to(b"there", place("relay")).expect("sent");
    target.recv(&mut [0; 9]).expect("it came");
    relay.terminate();
    let shown = format!("{}/a\\n\"b\\u{{1b}}\\u{{9b}}", scratch.path().display());
    let client = format!("unix:{shown}");
    let common = copied(&listener, &client, &server, &server);
    let end = json!({
        "event": "end",
        "client_to_target_datagrams": 1,
        "client_to_target_bytes": 5,
        "client_to_target_dropped": 0,
        "target_to_client_datagrams": 0,
        "target_to_client_bytes": 0,
        "target_to_client_dropped": 0,
        "outcome": "quiet, and the relay ends",
    });
    let start = with(common.clone(), json!({"event": "start"}));
    assert_eq!(lines(&log, 2), [start, with(common, end)]);
}

#[test]
fn a_connection_with_messages_has_its_fields() {
    let scratch = Scratch::new("seqpacket").expect("a directory");
    let log = Log::below(&scratch);
    let (listener, target) = (
        seqpacket::at(&scratch, "relay"),
        seqpacket::at(&scratch, "target"),
    );
    let server = seqpacket::server(&scratch);
    let _relay = seqpacket::relay(&scratch, &["--access-log", &log.path, WITH_STARTS]);
    let client = seqpacket::connected(&scratch);
    let far: OwnedFd = seqpacket::accepted(&server);
    send(&client, b"there", SendFlags::empty()).expect("sent");
    assert_eq!(seqpacket::message(&far), b"there");
    drop(client);
    assert!(seqpacket::message(&far).is_empty());
    drop(far);
    // It has no name.
    let name = lines(&log, 2)[0]["client"].clone();
    let name = name.as_str().expect("a text");
    assert!(name.starts_with("seqpacket:"), "{name}");
    let common = copied(&listener, name, &target, &target);
    let start = with(common.clone(), json!({"event": "start"}));
    let end = json!({
        "event": "end",
        "client_to_target_bytes": 5,
        "target_to_client_bytes": 0,
        "client_to_target_messages": 1,
        "target_to_client_messages": 0,
        "outcome": "end of stream",
    });
    assert_eq!(lines(&log, 2), [start.clone(), with(common.clone(), end)]);
    // Nobody listens there any more.
    drop(server);
    drop(seqpacket::connected(&scratch));
    let why = "no target: connection refused";
    let refused = json!({
        "id": 2,
        "event": "end",
        "engine": null,
        "why_engine": format!("no pair: {why}"),
        "client_to_target_bytes": 0,
        "target_to_client_bytes": 0,
        "client_to_target_messages": 0,
        "target_to_client_messages": 0,
        "outcome": why,
    });
    assert_eq!(lines(&log, 3).last(), Some(&with(common, refused)));
}

#[test]
fn an_echo_has_its_fields() {
    const BYTES: u64 = 1000;
    let scratch = Scratch::new("echo").expect("a directory");
    let log = Log::below(&scratch);
    let options = ["--engine", "copy", "--access-log", &log.path, WITH_STARTS];
    let mut echo = Relay::echo("127.0.0.1:0", &options);
    let client = Peer::connect(&echo.address);
    client.send(Payload::new(1), 0, BYTES);
    client.expect(Payload::new(1), 0, BYTES);
    let common = json!({
        "id": 1,
        "listener": "127.0.0.1:0",
        "route": 1,
        "client": client.local_address(),
        "target": "",
        "engine": "copy",
        "why_engine": "asked for by name",
    });
    let start = with(common.clone(), json!({"event": "start"}));
    assert_eq!(lines(&log, 1), std::slice::from_ref(&start));
    client.end_stream();
    client.expect_end();
    let end = json!({
        "event": "end",
        "client_to_target_bytes": BYTES,
        "target_to_client_bytes": 0,
        "outcome": "end of stream",
    });
    assert_eq!(lines(&log, 2), [start, with(common, end)]);
    echo.terminate();
}

#[test]
fn what_no_line_can_say_is_refused() {
    let refused = |options: &[&str]| {
        let arguments = [&["relay", ":0", "127.0.0.1:1"], options].concat();
        failure(&mut command(&arguments), 2)
    };
    let sentence = refused(&["--access-log", "-", "--access-log-fields", "time,colour"]);
    for part in ["no field \"colour\"", "time, event, id", "duration_ms"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
    let fields = [
        "--access-log",
        "-",
        "--access-log-fields",
        "time",
        WITH_STARTS,
    ];
    let sentence = refused(&fields);
    assert!(sentence.contains("lack \"event\""), "{sentence}");
    let sentence = refused(&["--access-log", "syslog:nowhere"]);
    assert!(sentence.contains("syslog:unix:/PATH"), "{sentence}");
}
