//! Peers that reset their connection, at every stage and among many clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use netlab::Scratch;

use crate::log::Log;
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{End, Peer, exchange};
use crate::random::Random;
use crate::relay::Relay;
use crate::server::Server;

const ENGINES: [&str; 4] = ["auto", "copy", "pipe", "uring"];
const SOME_BYTES: u64 = 100_000;
/// More bytes than all buffers between two peers hold.
const MANY_BYTES: u64 = 256 << 20;

/// Checks that a further connection works.
///
/// A client that was reset may still wait to be accepted by the relay, where it has no descriptor yet, and
/// reach the server before the client of this check: hence the number that tells them apart.
fn serves_on(relay: &Relay, server: &Server, before: usize) {
    const NUMBER: u64 = 7_777_777;
    relay.wait_descriptors(before);
    let client = Peer::connect(&relay.address);
    client.write_number(NUMBER);
    let far = loop {
        let far = server.accept();
        if far.try_read_number() == Some(NUMBER) {
            break far;
        }
    };
    exchange(&client, &far, NUMBER, SOME_BYTES, SOME_BYTES);
    drop((client, far));
    relay.wait_descriptors(before);
}

#[test]
fn a_client_that_resets_before_the_target_is_connected_is_forgotten() {
    let name = format!("unix:@spliced-test-reset-{}", std::process::id());
    for address in ["127.0.0.1:0", &name] {
        let scratch = Scratch::new("early").expect("a directory");
        let log = Log::below(&scratch);
        let server = Server::with_backlog(address, 0);
        let first = Peer::connect(&server.address);
        let options = ["--connect-timeout", "60s", "--access-log", &log.path];
        let mut relay = Relay::to(&server.address, &options);
        let before = relay.descriptors();
        let client = Peer::connect(&relay.address);
        client.send(Payload::new(1), 0, SOME_BYTES);
        until("it tries to connect", || relay.descriptors() > before);
        client.reset();
        relay.wait_descriptors(before);
        drop(first);
        server.accept().expect_end();
        serves_on(&relay, &server, before);
        relay.terminate();
        let entries = log.entries();
        assert_eq!(entries.len(), 2);
        assert_eq!(
            entries[0]["outcome"],
            "reset by client before the target was reached"
        );
        assert_eq!(entries[0]["client_to_target_bytes"], 0);
    }
}

#[test]
fn resets_in_the_backlog_do_not_affect_other_clients() {
    const CLIENTS: u64 = 60;
    let server = Server::new();
    let relay = Relay::to(&server.address, &["--threads", "2"]);
    let before = relay.descriptors();
    relay.hold_still();
    let mut healthy = Vec::new();
    for number in 0..CLIENTS {
        let client = Peer::connect(&relay.address);
        client.write_number(number);
        client.send(Payload::new(number), 0, 1000);
        if number % 3 == 1 {
            client.reset();
        } else {
            healthy.push((number, client));
        }
    }
    relay.go_on();
    let mut served = Vec::new();
    while served.len() < healthy.len() {
        let far = server.accept();
        // No peer ends its stream yet, so an end of stream here would be a lost reset.
        assert!(far.is_readable_within(crate::patience::PATIENCE));
        let Some(number) = far.try_read_number() else {
            continue;
        };
        if number % 3 == 1 {
            let (count, end) = far.read_to_end(Payload::new(number), 0);
            assert!(count <= 1000);
            assert_eq!(end, End::Reset);
        } else {
            far.expect(Payload::new(number), 0, 1000);
            served.push((number, far));
        }
    }
    served.sort_by_key(|(number, _)| *number);
    for ((number, near), (served, far)) in healthy.iter().zip(&served) {
        assert_eq!(number, served);
        exchange(near, far, *number, SOME_BYTES, SOME_BYTES);
    }
    drop((healthy, served));
    relay.wait_descriptors(before);
}

#[test]
fn a_reset_during_a_transfer_resets_the_other_side() {
    for engine in ENGINES {
        let scratch = Scratch::new("during").expect("a directory");
        let log = Log::below(&scratch);
        let server = Server::new();
        let options = ["--engine", engine, "--access-log", &log.path];
        let mut relay = Relay::to(&server.address, &options);
        let before = relay.descriptors();
        for by_client in [true, false] {
            let client = Peer::connect(&relay.address);
            let far = server.accept();
            let (quick, patient) = if by_client {
                (client, far)
            } else {
                (far, client)
            };
            let payload = Payload::new(5);
            thread::scope(|scope| {
                scope.spawn(|| {
                    quick.send(payload, 0, 3 * SOME_BYTES);
                    quick.expect(payload, 0, 3 * SOME_BYTES);
                    quick.reset();
                });
                // Both directions are busy when the reset arrives.
                scope.spawn(|| {
                    let sent = patient.try_send(payload, 0, MANY_BYTES);
                    assert!(sent.is_err(), "all was taken by a peer that is gone");
                });
                let (count, end) = patient.read_to_end(payload, 0);
                assert!(count <= 3 * SOME_BYTES);
                // The kernel reports the reset to one of the two threads; the other sees its consequence.
                assert!(end == End::Reset || patient.was_reset());
            });
            drop(patient);
            relay.wait_descriptors(before);
        }
        serves_on(&relay, &server, before);
        relay.terminate();
        let outcomes: Vec<_> = log.entries();
        assert_eq!(outcomes[0]["outcome"], "reset by client", "{engine}");
        assert_eq!(outcomes[1]["outcome"], "reset by target", "{engine}");
    }
}

#[test]
fn a_reset_after_an_end_of_stream_resets_the_other_side() {
    for engine in ENGINES {
        let server = Server::new();
        let relay = Relay::to(&server.address, &["--engine", engine]);
        let before = relay.descriptors();
        for by_client in [true, false] {
            for ended_by_same in [true, false] {
                let client = Peer::connect(&relay.address);
                let far = server.accept();
                let (one, other) = if by_client {
                    (client, far)
                } else {
                    (far, client)
                };
                let payload = Payload::new(6);
                let (ends, hears) = if ended_by_same {
                    (&one, &other)
                } else {
                    (&other, &one)
                };
                ends.send(payload, 0, SOME_BYTES);
                ends.end_stream();
                assert_eq!(hears.read_to_end(payload, 0), (SOME_BYTES, End::OfStream));
                one.reset();
                if ended_by_same {
                    // This peer has ended its own direction, so it sees the reset when it reads.
                    until("a reset arrives", || {
                        other.try_send(payload, 0, 1).is_err() || other.was_reset()
                    });
                } else {
                    other.expect_reset();
                }
                drop(other);
                relay.wait_descriptors(before);
            }
        }
        serves_on(&relay, &server, before);
    }
}

#[test]
fn resets_at_any_moment_lose_no_byte_of_other_clients() {
    const CLIENTS: u64 = 240;
    const AT_ONCE: u64 = 24;
    for (engine, seed) in ENGINES.iter().zip(1..) {
        let server = Server::new();
        let relay = Relay::to(&server.address, &["--engine", engine, "--threads", "2"]);
        let before = relay.descriptors();
        let mut random = Random::seeded(seed);
        let served = AtomicU64::new(0);
        for first in (0..CLIENTS).step_by(AT_ONCE as usize) {
            let healthy = (first + AT_ONCE) / 4;
            thread::scope(|scope| {
                for number in first..first + AT_ONCE {
                    let resets_after = (number % 4 != 0).then(|| random.below(3 * SOME_BYTES));
                    let address = &relay.address;
                    scope.spawn(move || visit(address, number, resets_after));
                }
                // Clients that reset may never get here; all others do.
                until("all that do not reset are served", || {
                    while server.is_called_within(Duration::ZERO) {
                        let far = server.accept();
                        scope.spawn(|| host(far, &served));
                    }
                    served.load(Ordering::Relaxed) == healthy
                });
            });
        }
        relay.wait_descriptors(before);
        while server.is_called_within(Duration::ZERO) {
            host(server.accept(), &served);
        }
        assert_eq!(served.into_inner(), CLIENTS / 4, "one was served twice");
        serves_on(&relay, &server, before);
    }
}

/// Sends to `address`, and resets after some bytes if asked to.
fn visit(address: &str, number: u64, resets_after: Option<u64>) {
    let near = Peer::connect(address);
    near.write_number(number);
    let payload = Payload::new(number);
    match resets_after {
        Some(count) => {
            near.send(payload, 0, count);
            near.reset();
        }
        None => {
            near.send(payload, 0, 3 * SOME_BYTES);
            near.end_stream();
            assert_eq!(near.read_to_end(payload, 0), (SOME_BYTES, End::OfStream));
        }
    }
}

/// Serves a [`visit`], and counts it unless it resets.
fn host(far: Peer, served: &AtomicU64) {
    let Some(number) = far.try_read_number() else {
        return;
    };
    let payload = Payload::new(number);
    let (count, end) = far.read_to_end(payload, 0);
    if number % 4 != 0 {
        assert_eq!(end, End::Reset, "{number} has ended after {count} bytes");
        return;
    }
    assert_eq!((count, end), (3 * SOME_BYTES, End::OfStream));
    far.send(payload, 0, SOME_BYTES);
    served.fetch_add(1, Ordering::Relaxed);
}
