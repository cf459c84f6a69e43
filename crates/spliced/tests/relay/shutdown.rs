//! Draining and shutdown.

use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::payload::Payload;
use crate::peer::{End, Peer, exchange};
use crate::relay::{CUT_SHORT, Relay, SAME_REQUEST};
use crate::server::{Server, ask, try_ask};

const SOME_BYTES: u64 = 100_000;

#[test]
fn sigterm_and_sigint_end_an_idle_relay_at_once_with_status_0() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut relay = Relay::to("127.0.0.1:1", &[]);
        relay.signal(signal);
        assert_eq!(relay.wait_end().code(), Some(0));
        relay.wait_logged("no longer accepting; 0 connections");
        assert!(Peer::try_connect(&relay.address).is_err());
    }
}

#[test]
fn draining_lets_running_transfers_finish() {
    const BYTES: u64 = 12 << 20;
    for (engine, signal) in [
        ("auto", Signal::TERM),
        ("copy", Signal::INT),
        ("pipe", Signal::TERM),
        ("uring", Signal::INT),
    ] {
        let server = Server::new();
        let mut relay = Relay::to(&server.address, &["--engine", engine, "--threads", "2"]);
        let pairs: Vec<_> = (0..4)
            .map(|_| (Peer::connect(&relay.address), server.accept()))
            .collect();
        let (there, back) = (Payload::new(20), Payload::new(21));
        for (near, far) in &pairs {
            near.send(there, 0, SOME_BYTES);
            far.send(back, 0, SOME_BYTES);
        }
        relay.signal(signal);
        relay.wait_logged("no longer accepting; 4 connections");
        assert!(Peer::try_connect(&relay.address).is_err());
        thread::scope(|scope| {
            for (near, far) in &pairs {
                for (from, to, payload) in [(near, far, there), (far, near, back)] {
                    scope.spawn(move || {
                        from.send(payload, SOME_BYTES, BYTES);
                        from.end_stream();
                    });
                    scope.spawn(move || {
                        let came = to.read_to_end(payload, 0);
                        assert_eq!(came, (SOME_BYTES + BYTES, End::OfStream));
                    });
                }
            }
        });
        // No socket is closed yet: two ends of stream are enough.
        assert_eq!(relay.wait_end().code(), Some(0));
        assert_eq!(relay.lines_logged("still open"), 0);
    }
}

#[test]
fn draining_serves_clients_in_the_backlog() {
    const CLIENTS: u64 = 100;
    for (listen, threads) in [
        ("127.0.0.1:0".to_owned(), "1"),
        (":0".to_owned(), "4"),
        (
            format!("unix:@spliced-test-backlog-{}", std::process::id()),
            "3",
        ),
    ] {
        let server = Server::new().answering();
        let mut relay = Relay::between(&listen, &server.address, &["--threads", threads]);
        let address = relay.address.replace("[::]", "127.0.0.1");
        relay.hold_still();
        let clients: Vec<_> = (0..CLIENTS).map(|_| Peer::connect(&address)).collect();
        // Both clients are in the backlog before the relay's threads run again.
        relay.signal(Signal::TERM);
        relay.go_on();
        relay.wait_logged(&format!("no longer accepting; {CLIENTS} connections"));
        for (client, number) in clients.iter().zip(0..) {
            ask(client, number, 1000, 1000);
        }
        assert_eq!(relay.wait_end().code(), Some(0));
        assert_eq!(relay.lines_logged("still open"), 0);
        assert_eq!(server.finish(), (0..CLIENTS).collect::<Vec<_>>());
    }
}

#[test]
fn the_drain_timeout_resets_the_rest_and_reports_their_number() {
    // Two connections are accepted and one is in the backlog, which counts as connected. The last one is
    // still connecting when the time is over.
    let server = Server::with_backlog("127.0.0.1:0", 0);
    let options = ["--drain-timeout", "500ms", "--connect-timeout", "60s"];
    let mut relay = Relay::to(&server.address, &options);
    let mut clients = Vec::new();
    let mut accepted = Vec::new();
    for _ in 0..2 {
        clients.push(Peer::connect(&relay.address));
        accepted.push(server.accept());
    }
    for (near, far) in clients.iter().zip(&accepted) {
        near.send(Payload::new(22), 0, SOME_BYTES);
        far.expect(Payload::new(22), 0, SOME_BYTES);
    }
    clients.push(Peer::connect(&relay.address));
    relay.connected_sockets(6);
    clients.push(Peer::connect(&relay.address));
    let start = Instant::now();
    relay.signal(Signal::TERM);
    relay.wait_logged("500ms to end");
    for peer in clients.iter().chain(&accepted) {
        peer.expect_reset();
    }
    assert!(start.elapsed() >= Duration::from_millis(500));
    assert_eq!(relay.wait_end().code(), Some(CUT_SHORT));
    relay.wait_logged("reset 4 connections: the drain timeout was over");
}

#[test]
fn a_second_signal_ends_the_relay_at_once_with_status_3() {
    let server = Server::new();
    let mut relay = Relay::to(&server.address, &["--drain-timeout", "1h"]);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    client.send(Payload::new(23), 0, SOME_BYTES);
    far.expect(Payload::new(23), 0, SOME_BYTES);
    let first = Instant::now();
    relay.signal(Signal::INT);
    relay.wait_logged("1 connection left with 1h to end");
    assert!(relay.is_running());
    relay.signal_until_it_ends(Signal::TERM);
    assert!(first.elapsed() >= SAME_REQUEST);
    client.expect_reset();
    far.expect_reset();
    assert_eq!(relay.wait_end().code(), Some(CUT_SHORT));
    relay.wait_logged("reset 1 connection: a second signal ended the relay");
}

#[test]
fn a_drain_timeout_of_zero_resets_at_once() {
    let server = Server::new();
    let mut relay = Relay::to(&server.address, &["--drain-timeout", "0s"]);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    relay.connected_sockets(2);
    relay.signal(Signal::TERM);
    assert_eq!(relay.wait_end().code(), Some(CUT_SHORT));
    client.expect_reset();
    far.expect_reset();
}

#[test]
fn a_connection_during_shutdown_is_complete_or_refused() {
    let server = Server::new().answering();
    let mut relay = Relay::to(&server.address, &["--threads", "2"]);
    let mut held = vec![0];
    ask(&Peer::connect(&relay.address), 0, 1000, 1000);
    relay.signal(Signal::TERM);
    // A client that connects at the moment of the close may get a reset. It must not see a stream that ends
    // early, nor must the server get half a conversation, which it checks.
    let mut number = 0;
    while let Ok(client) = Peer::try_connect(&relay.address) {
        number += 1;
        if try_ask(&client, number, 1000, 1000).is_ok() {
            held.push(number);
        }
    }
    assert_eq!(relay.wait_end().code(), Some(0));
    assert_eq!(server.finish(), held);
}

#[test]
fn draining_waits_for_the_other_direction_of_a_half_closed_pair() {
    let server = Server::new();
    let mut relay = Relay::to(&server.address, &[]);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    client.end_stream();
    far.expect_end();
    relay.signal(Signal::TERM);
    relay.wait_logged("1 connection left");
    far.send(Payload::new(24), 0, SOME_BYTES);
    client.expect(Payload::new(24), 0, SOME_BYTES);
    assert!(relay.is_running());
    drop(far);
    client.expect_end();
    assert_eq!(relay.wait_end().code(), Some(0));
}

#[test]
fn draining_waits_for_a_client_that_waits_for_its_target() {
    let server = Server::with_backlog("127.0.0.1:0", 0);
    let first = Peer::connect(&server.address);
    let mut relay = Relay::to(&server.address, &["--connect-timeout", "60s"]);
    let client = Peer::connect(&relay.address);
    relay.signal(Signal::TERM);
    relay.wait_logged("no longer accepting");
    server.accept();
    drop(first);
    exchange(&client, &server.accept(), 25, SOME_BYTES, SOME_BYTES);
    assert_eq!(relay.wait_end().code(), Some(0));
}

/// `timeout` signals its child, and then the whole process group.
#[test]
fn two_signals_at_once_count_as_one() {
    let server = Server::new();
    let mut relay = Relay::to(&server.address, &["--drain-timeout", "1h"]);
    let client = Peer::connect(&relay.address);
    let far = server.accept();
    client.send(Payload::new(26), 0, SOME_BYTES);
    far.expect(Payload::new(26), 0, SOME_BYTES);
    relay.hold_still();
    relay.signal(Signal::TERM);
    relay.signal(Signal::INT);
    relay.go_on();
    relay.wait_logged("1 connection left");
    far.send(Payload::new(27), 0, SOME_BYTES);
    client.expect(Payload::new(27), 0, SOME_BYTES);
    assert!(relay.is_running());
    client.end_stream();
    drop(far);
    client.expect_end();
    assert_eq!(relay.wait_end().code(), Some(0));
    assert_eq!(relay.lines_logged("short"), 0);
}
