//! `spliced echo`: every connection is spliced to itself.

use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;

use netlab::{Need, Scratch, available, present};
use rustix::net::sockopt;
use rustix::process::Signal;

use crate::patience::until_at_rest;
use crate::payload::Payload;
use crate::peer::{End, Peer};
use crate::relay::{CUT_SHORT, Relay, command, held_bytes};
use crate::retraction::despite_retraction;
use crate::server::Server;
use crate::usage::failure;

const SOME_BYTES: u64 = 3_000_000;
/// If nothing more happens for this long, the echo is at rest.
const QUIET: Duration = Duration::from_millis(300);

/// The engines that can echo any socket, and that this machine allows.
fn engines() -> Vec<&'static str> {
    let mut engines = vec!["auto", "copy", "pipe", "aio"];
    let forbidden = splice::EngineName::Uring.probe().err();
    if present("uring", forbidden.map(|error| error.to_string())) {
        engines.push("uring");
    }
    engines
}

/// Sends `count` bytes from `position` on and reads the echo.
fn exchange(client: &Peer, payload: Payload, position: u64, count: u64) {
    thread::scope(|scope| {
        scope.spawn(|| client.send(payload, position, count));
        client.expect(payload, position, count);
    });
}

#[test]
fn every_byte_and_the_end_of_stream_are_echoed() {
    let scratch = Scratch::new("echo").expect("a directory");
    let unix = format!("unix:{}/echo", scratch.path().display());
    for engine in engines() {
        for listen in ["127.0.0.1:0", "[::1]:0", &unix] {
            let mut echo = Relay::echo(listen, &["--engine", engine]);
            let client = Peer::connect(&echo.address);
            let payload = Payload::new(70);
            exchange(&client, payload, 0, SOME_BYTES);
            client.send(payload, SOME_BYTES, 1000);
            client.end_stream();
            let came = client.read_to_end(payload, SOME_BYTES);
            assert_eq!(came, (1000, End::OfStream), "{engine} on {listen}");
            echo.terminate();
        }
    }
}

#[test]
fn with_sockmap_the_kernel_echoes_without_the_process() {
    const MESSAGES: u64 = 1000;
    if !available(Need::Bpf) {
        return;
    }
    let echo = Relay::echo("127.0.0.1:0", &["--engine", "sockmap", "--threads", "1"]);
    let client = Peer::connect(&echo.address);
    let payload = Payload::new(75);
    for message in 0..MESSAGES {
        exchange(&client, payload, message * 100, 100);
        if message == 0 {
            // The engine takes over after the bytes that the process has echoed.
            until_at_rest(QUIET, || echo.switches());
        }
    }
    let before = echo.switches();
    (MESSAGES..2 * MESSAGES).for_each(|message| exchange(&client, payload, message * 100, 100));
    let woken = echo.switches() - before;
    assert!(
        woken < MESSAGES / 10,
        "woken {woken} times for {MESSAGES} messages"
    );
    client.end_stream();
    client.expect_end();
}

#[test]
fn many_simultaneous_clients_get_their_own_bytes() {
    const CLIENTS: u64 = 300;
    for engine in engines() {
        let echo = Relay::echo("127.0.0.1:0", &["--engine", engine, "--threads", "2"]);
        let before = echo.descriptors();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let client = Peer::connect(&echo.address);
                client.send(Payload::new(number), 0, 500);
                client
            })
            .collect();
        for (client, number) in clients.iter().zip(0..) {
            client.expect(Payload::new(number), 0, 500);
            exchange(client, Payload::new(number), 500, 20_000);
        }
        drop(clients);
        echo.wait_descriptors(before);
    }
}

#[test]
fn a_client_that_does_not_read_stays_within_the_memory_bound() {
    const BOUND_BYTES: usize = 16 << 20;
    for engine in engines() {
        let echo = Relay::echo("127.0.0.1:0", &["--engine", engine]);
        let client = Peer::connect(&echo.address);
        let sockets = echo.connected_sockets(1);
        let payload = Payload::new(71);
        despite_retraction(sockets[0].as_fd(), || {
            exchange(&client, payload, 0, 48 << 20)
        });
        let before_bytes = echo.resident_bytes();
        let mut sent = 48 << 20;
        until_at_rest(QUIET, || {
            sent += client.send_what_fits(payload, sent);
            sent
        });
        let own = echo.resident_bytes().saturating_sub(before_bytes) as usize;
        let held = held_bytes(&sockets) + echo.piped_bytes() + own;
        assert!(
            (100_000..BOUND_BYTES).contains(&held),
            "{engine}: {held} bytes"
        );
        despite_retraction(sockets[0].as_fd(), || {
            client.expect(payload, 48 << 20, sent - (48 << 20));
            exchange(&client, payload, sent, 1000);
        });
    }
}

#[test]
fn a_reset_ends_one_echo_and_a_signal_ends_all() {
    for engine in engines() {
        let mut echo = Relay::echo("127.0.0.1:0", &["--engine", engine, "--log", "debug"]);
        let (gone, client) = (Peer::connect(&echo.address), Peer::connect(&echo.address));
        exchange(&gone, Payload::new(72), 0, 1000);
        gone.reset();
        echo.wait_logged("echoed 1000 bytes to a client: reset by A");
        exchange(&client, Payload::new(73), 0, 1000);
        echo.signal(Signal::TERM);
        echo.wait_logged("no longer accepting; 1 connection left");
        exchange(&client, Payload::new(73), 1000, 1000);
        echo.signal_until_it_ends(Signal::INT);
        client.expect_reset();
        assert_eq!(echo.wait_end().code(), Some(CUT_SHORT));
    }
}

#[test]
fn connections_have_nodelay_and_busy_poll_on_request() {
    /// `SO_BUSY_POLL`, of `asm-generic/socket.h`.
    const WANTED: [(&[&str], u32); 2] = [(&[], 0), (&["--busy-poll"], 10_000)];
    for (options, microseconds) in WANTED {
        let echo = Relay::echo("127.0.0.1:0", options);
        let client = Peer::connect(&echo.address);
        exchange(&client, Payload::new(74), 0, 1000);
        let sockets = echo.connected_sockets(1);
        assert!(sockopt::tcp_nodelay(&sockets[0]).expect("TCP_NODELAY"));
        let polls = splice::busy_poll(&sockets[0]).expect("SO_BUSY_POLL");
        assert_eq!(polls, Duration::from_micros(microseconds.into()));
    }
}

#[test]
fn an_impossible_echo_is_refused_in_one_sentence() {
    let arguments = ["echo", "127.0.0.1:0", "--engine", "segment"];
    let sentence = failure(&mut command(&arguments), 2);
    for part in ["segment cannot splice a socket to itself", "choose another"] {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
    let taken = Server::new();
    let sentence = failure(&mut command(&["echo", &taken.address]), 1);
    let parts = [taken.address.as_str(), "in use", "choose another"];
    for part in parts {
        assert!(sentence.contains(part), "no {part:?} in {sentence:?}");
    }
}
