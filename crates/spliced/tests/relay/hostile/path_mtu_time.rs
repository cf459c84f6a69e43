//! How long a stream takes whose path becomes narrower: with `auto` about as long as with `copy`, measured in one run.

use std::thread;
use std::time::{Duration, Instant};

use super::connection::Side;
use super::hops::ip;
use super::path_mtu::{WIDE_MTU, cable_beyond, cable_of_the_relay, narrow, set_mtu};
use super::stage::{Family, IN_ORDER, Stage};
use crate::payload::Payload;

const STAGES: usize = 2;
const ROUNDS: usize = 10;
const BYTES: u64 = 2 << 20;
/// Of those, how many have come when the path becomes narrower in mid-stream.
const BEFORE: u64 = 1 << 20;

/// A turn of the scheduler counts for nothing.
const SLACK: Duration = Duration::from_millis(20);

#[derive(Clone, Copy, Debug)]
enum Moment {
    Idle,
    MidStream,
}

#[derive(Clone, Copy, Debug)]
enum Link {
    BeyondARouter,
    OfTheRelay,
}

/// How long each of some streams towards `side` takes after its path has become narrower.
fn times(engine: &str, family: Family, moment: Moment, link: Link, side: Side) -> Vec<Duration> {
    let mut times = Vec::new();
    let mut case = |stage: &Stage| {
        let cable = match link {
            Link::BeyondARouter => cable_beyond(stage, side),
            Link::OfTheRelay => cable_of_the_relay(stage, side),
        };
        for round in 0..=ROUNDS {
            let connection = stage.connect(1).pop().expect("one");
            let (from, to) = (connection.end(side.other()), connection.end(side));
            let payload = Payload::new(6);
            let took = thread::scope(|scope| {
                let send = || from.send(payload, 0, BYTES);
                let began = match moment {
                    Moment::Idle => {
                        narrow(cable);
                        let began = Instant::now();
                        scope.spawn(send);
                        to.expect(payload, 0, BEFORE);
                        began
                    }
                    Moment::MidStream => {
                        scope.spawn(send);
                        to.expect(payload, 0, BEFORE);
                        let began = Instant::now();
                        narrow(cable);
                        began
                    }
                };
                to.expect(payload, BEFORE, BYTES - BEFORE);
                began.elapsed()
            });
            // A first handshake may wait for a neighbour, and its sender paces by the time that it took (BBR).
            if round > 0 {
                times.push(took);
            }
            connection.ends_in_order();
            drop(connection);
            stage.expect_ended(round + 1, IN_ORDER);
            for (namespace, device) in cable {
                set_mtu(namespace, device, WIDE_MTU);
            }
            let lab = stage.lab();
            let all = [lab.client(), lab.relay(), lab.server()];
            for namespace in all.into_iter().chain([stage.client(), stage.server()]) {
                ip(namespace, "route flush cache");
                ip(namespace, "-6 route flush cache");
            }
        }
    };
    for _ in 0..STAGES {
        Stage::routed(engine, family, &mut case);
    }
    times.sort_unstable();
    times
}

fn compare(family: Family, moment: Moment) {
    let mut failed = Vec::new();
    for link in [Link::BeyondARouter, Link::OfTheRelay] {
        for side in Side::BOTH {
            let all = ["copy", "auto"].map(|engine| times(engine, family, moment, link, side));
            let [copied, spliced] = [&all[0], &all[1]];
            // Without the means there are none.
            let (Some(slowest), false) = (spliced.last(), copied.is_empty()) else {
                return;
            };
            let [copied, median] = [copied, spliced].map(|times| times[times.len() / 2]);
            let told = format!(
                "{family:?} {moment:?} {link:?} towards {side:?}: copy {copied:.1?}, auto {median:.1?}, at most {slowest:.1?}"
            );
            eprintln!("{told}");
            if median > copied * 3 / 2 + SLACK || *slowest > copied * 10 + SLACK {
                failed.push(told);
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
#[ignore = "soak: compares times"]
fn idle_v4() {
    compare(Family::V4, Moment::Idle);
}

#[test]
#[ignore = "soak: compares times"]
fn idle_v6() {
    compare(Family::V6, Moment::Idle);
}

#[test]
#[ignore = "soak: compares times"]
fn mid_stream_v4() {
    compare(Family::V4, Moment::MidStream);
}

#[test]
#[ignore = "soak: compares times"]
fn mid_stream_v6() {
    compare(Family::V6, Moment::MidStream);
}
