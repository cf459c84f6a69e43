//! Peers that half-close, send single bytes, do not read, or send before the target is connected.

use std::thread;
use std::time::Duration;

use netlab::Scratch;

use crate::patience::{until, until_at_rest};
use crate::payload::Payload;
use crate::peer::{End, Peer, exchange};
use crate::relay::{Relay, held_bytes};
use crate::server::Server;

const ENGINES: [&str; 4] = ["auto", "copy", "pipe", "uring"];
const SOME_BYTES: u64 = 100_000;

/// The contract's bound on the bytes in a relay for one pair whose receiver does not read.
const MEMORY_PER_PAIR_BYTES: usize = 16 << 20;

/// If nothing more fits for this long, the buffers are full.
const QUIET: Duration = Duration::from_millis(300);

/// The combinations of socket kinds: the listening address and the target's.
fn mixes(scratch: &Scratch) -> [(String, String); 4] {
    let unix = |name: &str| format!("unix:{}/{name}", scratch.path().display());
    [
        ("127.0.0.1:0".into(), "127.0.0.1:0".into()),
        ("[::1]:0".into(), "127.0.0.1:0".into()),
        ("127.0.0.1:0".into(), unix("target")),
        (unix("listen"), "[::1]:0".into()),
    ]
}

#[test]
fn back_pressure_keeps_a_pair_within_the_memory_bound() {
    /// Bytes to read at full speed first, so that the kernel tunes all buffers up.
    const WARM_UP_BYTES: u64 = 48 << 20;
    for engine in ENGINES {
        for by_client in [true, false] {
            let server = Server::new();
            let relay = Relay::to(&server.address, &["--engine", engine]);
            let client = Peer::connect(&relay.address);
            let far = server.accept();
            let (near, idle) = if by_client {
                (&client, &far)
            } else {
                (&far, &client)
            };
            let payload = Payload::new(9);
            let before_bytes = relay.resident_bytes();
            thread::scope(|scope| {
                scope.spawn(|| near.send(payload, 0, WARM_UP_BYTES));
                idle.expect(payload, 0, WARM_UP_BYTES);
            });
            let mut sent = WARM_UP_BYTES;
            until_at_rest(QUIET, || {
                sent += near.send_what_fits(payload, sent);
                sent
            });
            let own = relay.resident_bytes().saturating_sub(before_bytes) as usize;
            let in_sockets = held_bytes(&relay.connected_sockets(2));
            let in_pipes = relay.piped_bytes();
            assert!(
                own + in_sockets + in_pipes < MEMORY_PER_PAIR_BYTES,
                "{engine}: {own} bytes of its own, {in_sockets} in sockets, {in_pipes} in pipes"
            );
            // Otherwise the test would not measure the relay.
            // With a spliced pair the bytes wait at the peers.
            let in_relay = in_sockets > 100_000 || engine == "auto";
            assert!(in_relay, "{engine}: only {in_sockets} bytes");
            // The other direction is not affected.
            idle.send(payload, 0, SOME_BYTES);
            near.expect(payload, 0, SOME_BYTES);
            near.end_stream();
            let rest = sent - WARM_UP_BYTES;
            assert_eq!(
                idle.read_to_end(payload, WARM_UP_BYTES),
                (rest, End::OfStream)
            );
        }
    }
}

#[test]
fn single_bytes_arrive_in_order() {
    const BYTES: u64 = 2000;
    for engine in ENGINES {
        let server = Server::new();
        let relay = Relay::to(&server.address, &["--engine", engine]);
        let client = Peer::connect(&relay.address);
        let far = server.accept();
        let (there, back) = (Payload::new(10), Payload::new(11));
        // Each byte is answered before the next one, so that no two share a segment.
        for position in 0..BYTES {
            client.send(there, position, 1);
            far.expect(there, position, 1);
            far.send(back, position, 1);
            client.expect(back, position, 1);
        }
        client.end_stream();
        far.expect_end();
        far.end_stream();
        client.expect_end();
        // Now without waiting.
        let client = Peer::connect(&relay.address);
        let far = server.accept();
        thread::scope(|scope| {
            for (from, payload) in [(&client, there), (&far, back)] {
                scope.spawn(move || {
                    (0..10 * BYTES).for_each(|position| from.send(payload, position, 1));
                    from.end_stream();
                });
            }
            scope.spawn(|| {
                assert_eq!(far.read_to_end(there, 0), (10 * BYTES, End::OfStream));
            });
            assert_eq!(client.read_to_end(back, 0), (10 * BYTES, End::OfStream));
        });
    }
}

#[test]
fn an_end_of_stream_leaves_the_other_direction_open() {
    for engine in ENGINES {
        let scratch = Scratch::new("half").expect("a directory");
        for (listen, target) in mixes(&scratch) {
            let server = Server::on(&target);
            let relay = Relay::between(&listen, &server.address, &["--engine", engine]);
            let before = relay.descriptors();
            for client_first in [true, false] {
                let client = Peer::connect(&relay.address);
                let far = server.accept();
                let (first, second) = if client_first {
                    (client, far)
                } else {
                    (far, client)
                };
                let (one, other) = (Payload::new(12), Payload::new(13));
                first.send(one, 0, SOME_BYTES);
                first.end_stream();
                assert_eq!(second.read_to_end(one, 0), (SOME_BYTES, End::OfStream));
                for round in 0..5 {
                    second.send(other, round * SOME_BYTES, SOME_BYTES);
                    first.expect(other, round * SOME_BYTES, SOME_BYTES);
                }
                second.end_stream();
                first.expect_end();
            }
            relay.wait_descriptors(before);
        }
    }
}

#[test]
fn every_byte_arrives_in_both_directions_at_once() {
    const BYTES: u64 = 16 << 20;
    for engine in ENGINES {
        let scratch = Scratch::new("both").expect("a directory");
        for (listen, target) in mixes(&scratch) {
            let server = Server::on(&target);
            let relay = Relay::between(&listen, &server.address, &["--engine", engine]);
            let client = Peer::connect(&relay.address);
            exchange(&client, &server.accept(), 14, BYTES, BYTES / 3);
        }
    }
}

/// A client that sends before its target is connected. With `ends` it also ends its stream.
fn comes_early(target: &str, engine: &str, ends: bool) {
    const EARLY_BYTES: u64 = 200_000;
    let server = Server::with_backlog(target, 0);
    let first = Peer::connect(&server.address);
    let options = ["--engine", engine, "--connect-timeout", "60s"];
    let relay = Relay::to(&server.address, &options);
    let before = relay.descriptors();
    let client = Peer::connect(&relay.address);
    let payload = Payload::new(15);
    client.send(payload, 0, EARLY_BYTES);
    if ends {
        client.end_stream();
    }
    until("it tries to connect", || relay.descriptors() > before);
    // Makes room in the backlog.
    server.accept();
    drop(first);
    let far = server.accept();
    far.send(payload, 0, SOME_BYTES);
    client.expect(payload, 0, SOME_BYTES);
    far.expect(payload, 0, EARLY_BYTES);
    if !ends {
        client.end_stream();
    }
    far.expect_end();
    far.end_stream();
    client.expect_end();
    relay.wait_descriptors(before);
}

#[test]
fn early_data_waits_for_its_target() {
    let name = format!("unix:@spliced-test-data-{}", std::process::id());
    for engine in ENGINES {
        comes_early("127.0.0.1:0", engine, false);
        comes_early(&name, engine, false);
    }
}

#[test]
fn an_early_end_of_stream_waits_for_its_target() {
    let name = format!("unix:@spliced-test-end-{}", std::process::id());
    for engine in ENGINES {
        comes_early("127.0.0.1:0", engine, true);
        comes_early(&name, engine, true);
    }
}
