//! How long a stream takes whose path becomes narrower: with `auto` and `segment` about as long as with `copy`.

use std::thread;
use std::time::{Duration, Instant};

use super::connection::{Connection, Side};
use super::hops::ip;
use super::path_mtu::{
    SMALL_MTU, WIDE_MTU, cable_beyond, cable_of_the_relay, has_ethtool, narrow, probe_for_mtus,
    send_no_super_packets, set_mtu,
};
use super::site::Site;
use super::stage::{Family, IN_ORDER, Stage};
use super::times::{Allowance, Comparison, ROUNDS};
use crate::payload::Payload;

const BYTES: u64 = 2 << 20;
/// Of those, how many have come when the path becomes narrower in mid-stream. How long a stream in full flow stands still is
/// another question (`pause`).
const BEFORE: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
pub(super) enum Moment {
    Idle,
    MidStream,
}

impl Moment {
    pub(super) const BOTH: [Self; 2] = [Self::Idle, Self::MidStream];

    /// Of pairs that go back.
    pub(super) fn allowance(self) -> Allowance {
        match self {
            Self::Idle => Allowance::RARE_TIMEOUT,
            Self::MidStream => Allowance::TIMEOUT,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Link {
    BeyondARouter,
    OfTheRelay,
    /// The relay's host knows by its route. The link loses what is too long, and tells nobody.
    OfARoute,
    /// Nobody knows.
    Silent,
}

impl Link {
    fn narrow(self, stage: &Stage, side: Side) {
        match self {
            Self::BeyondARouter => narrow(cable_beyond(stage, side)),
            Self::OfTheRelay => narrow(cable_of_the_relay(stage, side)),
            Self::OfARoute => {
                let [relay, (router, device)] = cable_of_the_relay(stage, side);
                send_no_super_packets(relay);
                Site { stage, side }.use_route(&format!(" mtu {SMALL_MTU}"));
                set_mtu(router, device, SMALL_MTU);
            }
            Self::Silent => {
                let [router, (host, device)] = cable_beyond(stage, side);
                send_no_super_packets(router);
                set_mtu(host, device, SMALL_MTU);
            }
        }
    }

    fn widen(self, stage: &Stage, side: Side) {
        let cable = match self {
            Self::BeyondARouter | Self::Silent => cable_beyond(stage, side),
            Self::OfTheRelay | Self::OfARoute => cable_of_the_relay(stage, side),
        };
        for (namespace, device) in cable {
            set_mtu(namespace, device, WIDE_MTU);
        }
        if let Self::OfARoute = self {
            Site { stage, side }.restore_route();
        }
        forget_paths(stage);
    }
}

pub(super) fn forget_paths(stage: &Stage) {
    let version = match stage.family() {
        Family::V4 => "-4",
        Family::V6 => "-6",
    };
    let lab = stage.lab();
    let all = [lab.client(), lab.relay(), lab.server()];
    for namespace in all.into_iter().chain([stage.client(), stage.server()]) {
        ip(namespace, &format!("{version} route flush cache"));
    }
}

/// How long the rest of a stream towards `side` takes after a change.
pub(super) fn time_after(
    connection: &Connection,
    side: Side,
    moment: Moment,
    change: impl FnOnce(),
) -> Duration {
    let (from, to) = (connection.end(side.other()), connection.end(side));
    let payload = Payload::new(6);
    thread::scope(|scope| {
        let send = || from.send(payload, 0, BYTES);
        let began = match moment {
            Moment::Idle => {
                change();
                let began = Instant::now();
                scope.spawn(send);
                to.expect(payload, 0, BEFORE);
                began
            }
            Moment::MidStream => {
                scope.spawn(send);
                to.expect(payload, 0, BEFORE);
                let began = Instant::now();
                change();
                began
            }
        };
        to.expect(payload, BEFORE, BYTES - BEFORE);
        began.elapsed()
    })
}

/// Some streams towards `side`, one after the other. The path becomes narrower in each, and wide again.
fn one_after_the_other(stage: &Stage, moment: Moment, link: Link, side: Side) -> Vec<Duration> {
    let mut times = Vec::new();
    for round in 0..=ROUNDS {
        let connection = stage.connect(1).pop().expect("one");
        let took = time_after(&connection, side, moment, || link.narrow(stage, side));
        // A first handshake may wait for a neighbour, and its sender paces by the time that it took (BBR).
        if round > 0 {
            times.push(took);
        }
        connection.ends_in_order();
        drop(connection);
        stage.expect_ended(round + 1, IN_ORDER);
        link.widen(stage, side);
    }
    times
}

/// The same at once: they wait for their timers.
fn at_once(stage: &Stage, side: Side) -> Vec<Duration> {
    probe_for_mtus(stage);
    let connections = stage.connect(ROUNDS);
    Link::Silent.narrow(stage, side);
    let times = thread::scope(|scope| {
        let took = |on| scope.spawn(move || time_after(on, side, Moment::Idle, || ()));
        let all: Vec<_> = connections.iter().map(took).collect();
        let all = all.into_iter().map(|took| took.join().expect("it arrives"));
        all.collect()
    });
    for connection in &connections {
        connection.ends_in_order();
    }
    drop(connections);
    stage.expect_ended(ROUNDS, IN_ORDER);
    times
}

/// Adds streams towards `side` in which the path becomes narrower.
fn compare_towards(
    side: Side,
    comparison: &mut Comparison,
    (family, link, moment): (Family, Link, Moment),
    allowance: Allowance,
) {
    let what = format!("{family:?} {link:?} {moment:?} towards {side:?}");
    comparison.add(&what, allowance, |engine, _| {
        let mut times = Vec::new();
        Stage::routed(engine, family, |stage| {
            times = one_after_the_other(stage, moment, link, side);
        });
        times
    });
}

fn compare(family: Family, link: Link) {
    let mut comparison = Comparison::one_by_one();
    for moment in Moment::BOTH {
        for side in Side::BOTH {
            let case = (family, link, moment);
            compare_towards(side, &mut comparison, case, moment.allowance());
        }
    }
    comparison.end();
}

/// A part of that, wherever tests run: how often a sender is ahead on a busy host says nothing.
fn compare_idle(family: Family, link: Link, side: Side) {
    let mut comparison = Comparison::one_by_one();
    let case = (family, link, Moment::Idle);
    compare_towards(side, &mut comparison, case, Allowance::PROBE_AND_TIMEOUT);
    comparison.end();
}

#[test]
fn beyond_a_router_towards_an_idle_server() {
    compare_idle(Family::V4, Link::BeyondARouter, Side::Server);
}

#[test]
fn of_the_relay_towards_an_idle_client() {
    compare_idle(Family::V6, Link::OfTheRelay, Side::Client);
}

fn a_link_beyond_a_router(family: Family) {
    compare(family, Link::BeyondARouter);
}

fn the_relays_own_link(family: Family) {
    compare(family, Link::OfTheRelay);
}

fn a_route_of_the_relay(family: Family) {
    if has_ethtool() {
        compare(family, Link::OfARoute);
    }
}

fn a_link_that_tells_nobody(family: Family) {
    if !has_ethtool() {
        return;
    }
    let mut comparison = Comparison::one_by_one();
    for side in Side::BOTH {
        let what = format!("{family:?} {:?} towards {side:?}", Link::Silent);
        comparison.add(&what, Allowance::ANOTHER_BACKOFF, |engine, _| {
            let mut times = Vec::new();
            Stage::routed(engine, family, |stage| times = at_once(stage, side));
            times
        });
    }
    comparison.end();
}

compare_times!(a_link_beyond_a_router);
compare_times!(the_relays_own_link);
compare_times!(a_route_of_the_relay);
compare_times!(a_link_that_tells_nobody);
