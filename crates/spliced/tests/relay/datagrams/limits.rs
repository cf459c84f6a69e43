//! Sessions that end: idle, displaced, refused by the target, or with the relay.

use std::io::ErrorKind;

use netlab::Scratch;
use rustix::process::Signal;

use super::{ask_until_received, client, named, receive, socket};
use crate::log::Log;
use crate::metrics::reading::{Reading, wait_for};
use crate::patience::{until, until_found};
use crate::relay::{Relay, command};
use crate::server::free_port;
use crate::usage::failure;

#[test]
fn an_idle_session_ends_and_the_client_gets_another() {
    let scratch = Scratch::new("idle-session").expect("a directory");
    let log = Log::below(&scratch);
    let target = socket("127.0.0.1:0");
    let options = ["--idle-timeout", "200ms", "--access-log", &log.path];
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let before = relay.descriptors();
    let client = client(&relay);
    client.set_nonblocking(true).expect("non-blocking");
    let mut ended = 0;
    // A busy machine may take longer for the answer than the session lasts; then the next one is asked.
    until("a session is answered in its time", || {
        ended = log.entries().len();
        client.send(b"first").expect("it is sent");
        let (_, first) = receive(&target);
        target.send_to(b"answer", first).expect("it is answered");
        let mut answer = [0; 7];
        until_found("an answer, or the end", || match client.recv(&mut answer) {
            Ok(length) => Some(answer[..length] == *b"answer"),
            Err(_) => (log.entries().len() > ended).then_some(false),
        })
    });
    until("the session ends", || log.entries().len() > ended);
    relay.wait_descriptors(before);
    let entry = &log.entries()[ended];
    for (name, value) in [
        ("client_to_target_datagrams", 1),
        ("client_to_target_bytes", 5),
        ("client_to_target_dropped", 0),
        ("target_to_client_datagrams", 1),
        ("target_to_client_bytes", 6),
        ("target_to_client_dropped", 0),
    ] {
        assert_eq!(entry[name], value, "{name}");
    }
    assert_eq!(entry["outcome"], "idle");
    let own = client.local_addr().expect("its address").to_string();
    assert_eq!(entry["client"], own);
    client.send(b"second").expect("it is sent");
    assert_eq!(receive(&target).0, b"second");
}

#[test]
fn beyond_the_bound_a_new_client_displaces_the_longest_idle_session() {
    let scratch = Scratch::new("session-bound").expect("a directory");
    let log = Log::below(&scratch);
    let target = socket("127.0.0.1:0");
    let options = [
        "--max-sessions",
        "2",
        "--threads",
        "1",
        "--access-log",
        &log.path,
    ];
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let clients = [0, 1, 2].map(|_| client(&relay));
    let send = |number: usize| {
        clients[number].send(b"question").expect("it is sent");
        receive(&target).1
    };
    let first = send(0);
    let second = send(1);
    // The first is now the one that was used last.
    assert_eq!(send(0), first);
    send(2);
    relay.wait_logged("as many sessions are open as may be (max-sessions: 2)");
    until("a session ends", || !log.entries().is_empty());
    let displaced = clients[1].local_addr().expect("its address").to_string();
    assert_eq!(log.entries()[0]["client"], displaced);
    assert_eq!(log.entries()[0]["outcome"], "displaced by a new client");
    assert_eq!(send(0), first);
    assert_ne!(send(1), second);
}

/// As `spliced run` tells for each of its listeners.
#[test]
fn the_bound_and_the_sessions_are_told_to_prometheus() {
    let scratch = Scratch::new("told-bound").expect("a directory");
    let target = socket("127.0.0.1:0");
    let control = scratch.path().join("control").display().to_string();
    let options = ["--max-sessions", "7", "--control", &control];
    let relay = Relay::between("udp:127.0.0.1:0", &named(&target), &options);
    let client = client(&relay);
    client.send(b"question").expect("it is sent");
    receive(&target);
    // It comes after the listener.
    wait_for(&control);
    until("the session is told", || {
        let reading = Reading::at(&control);
        ["open", "max"]
            .map(|what| reading.sum(&format!("spliced_listener_{what}_connections"), &[]))
            == [1, 7]
    });
}

#[test]
fn an_icmp_error_of_the_target_ends_the_session_and_a_restarted_target_is_found() {
    for at in ["127.0.0.1:0", "[::1]:0"] {
        let scratch = Scratch::new("refused-session").expect("a directory");
        let log = Log::below(&scratch);
        // Not one that the kernel picks: another test could get it while nobody listens there.
        let address = at.replace(":0", &format!(":{}", free_port()));
        let target = socket(&address);
        let relay = Relay::between(
            &format!("udp:{at}"),
            &named(&target),
            &["--access-log", &log.path],
        );
        let client = client(&relay);
        client.send(b"before").expect("it is sent");
        let (_, session) = receive(&target);
        drop(target);
        // A process that another test starts has a copy of the socket until it executes its program.
        let mut told = 0;
        until("the session ends, and the client is told", || {
            // The error of an earlier datagram is that of the next call.
            let refused = client.send(b"lost").err().map(|error| error.kind());
            told += u32::from(refused == Some(ErrorKind::ConnectionRefused));
            told > 0 && !log.entries().is_empty()
        });
        let outcome = log.entries()[0]["outcome"].clone();
        let outcome = outcome.as_str().expect("words").to_owned();
        assert!(outcome.contains("Connection refused"), "{outcome}");
        let target = socket(&address);
        let again = ask_until_received(&client, &target, b"after");
        assert_ne!(again, session);
        target.send_to(b"answer", again).expect("it is answered");
        assert_eq!(receive(&client).0, b"answer");
    }
}

#[test]
fn after_sigterm_a_session_goes_on_until_it_is_quiet_and_new_clients_are_refused() {
    let target = socket("127.0.0.1:0");
    let mut relay = Relay::between("udp:127.0.0.1:0", &named(&target), &[]);
    let known = client(&relay);
    let new = client(&relay);
    known.send(b"question").expect("it is sent");
    let (_, session) = receive(&target);
    relay.signal(Signal::TERM);
    // On a busy machine the session would be quiet for too long.
    let talk_until = |words: &str| {
        until(words, || {
            known.send(b"still here").expect("it is sent");
            relay.lines_logged(words) > 0
        });
    };
    talk_until("no longer accepting; 1 session left");
    new.send(b"too late").expect("it is sent");
    talk_until("the relay is ending");
    target.send_to(b"answer", session).expect("it is answered");
    known.set_nonblocking(true).expect("non-blocking");
    let mut answer = [0; 7];
    until("the answer comes", || {
        known.send(b"still here").expect("it is sent");
        known
            .recv(&mut answer)
            .is_ok_and(|length| answer[..length] == *b"answer")
    });
    assert_eq!(relay.wait_end().code(), Some(0));
    relay.wait_logged("1 session, 0 of them displaced; to the target ");
}

#[test]
fn the_address_in_use_and_a_target_that_is_the_relay_are_refused() {
    let taken = socket(&format!("127.0.0.1:{}", free_port()));
    let address = named(&taken);
    let sentence = failure(&mut command(&["relay", &address, "udp:127.0.0.1:9"]), 1);
    assert!(sentence.contains("in use by another socket"), "{sentence}");
    drop(taken);
    let sentence = failure(&mut command(&["relay", &address, &address]), 2);
    assert!(sentence.contains("is this relay itself"), "{sentence}");
}
