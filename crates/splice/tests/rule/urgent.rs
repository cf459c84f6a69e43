//! An urgent byte keeps its place in the stream.

use std::thread;

use splice::Kind;

use crate::support::contestant::Contestant;
use crate::support::mix::Mix;
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::random::Random;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send};

const PIECES: u64 = 60;
const LARGEST_PIECE_BYTES: usize = 60_000;
const ALTERNATIONS: usize = 20;
/// Each run draws others, and `make soak` runs many.
const RACES: u64 = 8;

/// MPTCP has no urgent data, and the socket option does not exist there.
fn mixes(engine: &Contestant) -> Vec<Mix> {
    let mut mixes = engine.mixes();
    mixes.retain(|mix| mix.a != Kind::Mptcp);
    mixes
}

/// Sends pieces of all sizes, each followed by an urgent byte. Returns the end.
fn send_with_urgent(peer: &Peer, payload: Payload, pieces: u64, salt: u64) -> u64 {
    let mut random = Random::of_run(salt);
    let mut position = 0;
    for _ in 0..pieces {
        let end = position + random.size(LARGEST_PIECE_BYTES) as u64;
        send(peer, payload, position..end, Pace::Steady);
        peer.write_urgent(payload.piece(end, 1)[0]);
        position = end + 1;
    }
    position
}

pub(crate) fn stays_in_its_place(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, from_b] = payloads();
    for mix in mixes(engine) {
        eprintln!("{mix:?}");
        let Joined { a, b, handle } = relay.join(mix);
        thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let end = send_with_urgent(&a, from_a, PIECES, 40);
                send(&a, from_a, end..end + 200_000, Pace::Steady);
                a.end_stream();
                end + 200_000
            });
            // What is urgent is known only at the end, and the receiver must not wait for it.
            receive_all(&b, from_a, || sender.join().unwrap());
        });
        // The other direction is independent.
        b.end_stream();
        receive_to_end(&a, from_b, 0..0, Pace::Steady);
        outcome(&handle);
    }
}

/// What follows an urgent byte arrives without further bytes to push it.
pub(crate) fn holds_nothing_up(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    let mut random = Random::of_run(45);
    for mix in mixes(engine) {
        eprintln!("{mix:?}");
        let Joined {
            a,
            b,
            handle: _handle,
        } = relay.join(mix);
        let mut position = 0;
        for _ in 0..ALTERNATIONS {
            let before = position + random.size(LARGEST_PIECE_BYTES) as u64;
            let end = before + 1 + random.size(LARGEST_PIECE_BYTES) as u64;
            thread::scope(|scope| {
                scope.spawn(|| {
                    send(&a, from_a, position..before, Pace::Steady);
                    a.write_urgent(from_a.piece(before, 1)[0]);
                    send(&a, from_a, before + 1..end, Pace::Steady);
                });
                receive(&b, from_a, position..end, Pace::Steady);
            });
            position = end;
        }
    }
}

/// Receives until EOF, wherever it is, and compares that with the expected position.
fn receive_all(peer: &Peer, payload: Payload, end: impl FnOnce() -> u64) {
    use crate::support::transfer::{Ending, receive_until_cut};
    let (position, ending) = receive_until_cut(peer, payload, 0);
    assert_eq!(ending, Ending::EndOfStream);
    assert_eq!(position, end(), "where the stream ended");
}

/// The mark, what follows it, and EOF arrive while the relay is in the middle of a turn.
pub(crate) fn before_the_end_of_the_stream(engine: &Contestant) {
    let relay = Relay::new(engine);
    let [from_a, _] = payloads();
    for mix in mixes(engine) {
        eprintln!("{mix:?}");
        for race in 0..RACES {
            let Joined {
                a,
                b,
                handle: _handle,
            } = relay.join(mix);
            thread::scope(|scope| {
                let sender = scope.spawn(|| {
                    let end = send_with_urgent(&a, from_a, 1 + race % 4, 50 + race);
                    send(&a, from_a, end..end + 1000, Pace::Steady);
                    a.end_stream();
                    end + 1000
                });
                receive_all(&b, from_a, || sender.join().unwrap());
            });
        }
    }
}
