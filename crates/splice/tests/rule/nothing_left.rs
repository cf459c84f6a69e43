//! A pair that has ended leaves nothing behind in the process.

use std::thread;

use splice::Splicer;

use crate::support::alone::alone;
use crate::support::contestant::Contestant;
use crate::support::descriptors;
use crate::support::mix::Mix;
use crate::support::patience::until;
use crate::support::peer::Peer;
use crate::support::random::Random;
use crate::support::relay::{Joined, Relay, outcome, payloads};
use crate::support::transfer::{Pace, receive, receive_to_end, send, send_until_blocked};

const PAIRS: usize = 500;
const ROUNDS: usize = 2;

/// Compares the descriptors before and after: there must not be more.
fn leaves_nothing(body: impl FnOnce()) {
    alone(|| {
        descriptors::allow_most();
        // The first use may leave what the library keeps for the whole process.
        drop(Splicer::new(1).unwrap());
        let before = descriptors::open();
        assert_eq!(mapped_rings(), 0);
        body();
        // A thread may still be loading a program for a loop that has ended.
        until("everything is closed", || {
            descriptors::open() == before && mapped_rings() == 0
        });
    });
}

/// Rings of Linux AIO and io_uring in the process's memory.
fn mapped_rings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let is_ring = |line: &&str| line.contains("/[aio]") || line.contains("[io_uring]");
    maps.lines().filter(is_ring).count()
}

pub(crate) fn of_pairs_that_ended_in_every_way(engine: &Contestant) {
    leaves_nothing(|| {
        let relay = Relay::new(engine);
        let idle = descriptors::open();
        engine.with_each_mix(|mix| {
            thread::scope(|scope| {
                for way in 0..5 {
                    let joined = relay.join(mix);
                    scope.spawn(move || end_in_one_way(joined, way));
                }
            });
            // A loop without pairs keeps no pipe either.
            until("everything is closed", || descriptors::open() == idle);
        });
    });
}

fn end_in_one_way(Joined { a, b, handle }: Joined, way: usize) {
    let [from_a, _] = payloads();
    let stalled = send_until_blocked(&a, from_a, 0, 64 << 20);
    match way {
        0 => {
            a.end_stream();
            b.end_stream();
            receive_to_end(&b, from_a, 0..stalled, Pace::Steady);
            outcome(&handle);
        }
        1 => {
            drop(b);
            outcome(&handle);
        }
        2 => {
            a.reset();
            drop(b);
            outcome(&handle);
        }
        3 => {
            drop(handle);
        }
        _ => {
            receive(&b, from_a, 0..stalled, Pace::Steady);
            drop((a, b));
            outcome(&handle);
        }
    }
}

pub(crate) fn of_five_hundred_pairs_at_once(engine: &Contestant) {
    leaves_nothing(|| {
        let relay = Relay::new(engine);
        let idle = descriptors::open();
        let mut random = Random::of_run(30);
        let [from_a, _] = payloads();
        let mixes = engine.mixes();
        for _ in 0..ROUNDS {
            let mut pairs: Vec<_> = (0..PAIRS)
                .map(|number| {
                    let mix: Mix = mixes[number % mixes.len()];
                    let (a, near) = Peer::connected(mix.a);
                    let (b, far) = Peer::connected(mix.b);
                    let handle = relay.join_sockets(near, far);
                    Joined { a, b, handle }
                })
                .collect();
            for pair in &pairs {
                send(&pair.a, from_a, 0..3000, Pace::Steady);
            }
            for pair in &pairs {
                receive(&pair.b, from_a, 0..3000, Pace::Steady);
            }
            while !pairs.is_empty() {
                let Joined { a, b, handle } =
                    pairs.swap_remove(random.below(pairs.len() as u64) as usize);
                match random.below(3) {
                    0 => drop(handle),
                    1 => {
                        drop((a, b));
                        outcome(&handle);
                    }
                    _ => {
                        handle.detach();
                        a.reset();
                    }
                }
            }
            until("everything is closed", || descriptors::open() == idle);
        }
    });
}
