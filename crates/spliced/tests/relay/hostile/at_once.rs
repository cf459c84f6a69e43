//! How long streams take that share a path which loses, doubles or delays packets, or marks them, at the same time.
//! `bad_network_time` compares more of them one by one, and takes longer.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Need, available};

use super::bad_network::{MARK_CONGESTION, change_at, use_ecn};
use super::bad_network_time::{router_beside, send_single_segments};
use super::connection::{Connection, Side};
use super::stage::{Family, IN_ORDER, Stage};
use super::times::{Allowance, Comparison};
use crate::bad_path::{BadPath, Disorder};
use crate::payload::Payload;
use crate::random::run_seed;

const STREAMS: (usize, Allowance) = (20, Allowance::NONE);
/// Whether a loss costs a timeout is a matter of luck.
const LOSSY_STREAMS: (usize, Allowance) = (120, Allowance::REPEATED_LOSSES);
/// With a tenth of the packets lost, most have a timeout, and some have many.
const BYTES: u64 = 256 << 10;

/// How long each stream towards `side` takes. The path becomes good for those that take longest: it is known by then that
/// they are no more than may be.
fn times(
    connections: &[Connection],
    side: Side,
    stragglers: usize,
    has_met: HasMet<'_>,
) -> Vec<Duration> {
    let payload = Payload::new(6);
    let take = |connection: &Connection| {
        let (from, to) = (connection.end(side.other()), connection.end(side));
        thread::scope(|scope| {
            let began = Instant::now();
            scope.spawn(|| from.send(payload, 0, BYTES));
            to.expect(payload, 0, BYTES);
            began.elapsed()
        })
    };
    let (sender, arrivals) = mpsc::channel();
    thread::scope(|scope| {
        for connection in connections {
            let sender = sender.clone();
            scope.spawn(move || sender.send(take(connection)).expect("it is waited for"));
        }
        drop(sender);
        let on_time = connections.len() - stragglers;
        let mut times: Vec<_> = arrivals.iter().take(on_time).collect();
        assert!(has_met());
        drop(has_met);
        times.extend(arrivals);
        times
    })
}

/// Whether a path has met packets so far. It becomes good when this is dropped.
type HasMet<'a> = Box<dyn Fn() -> bool + 'a>;

/// Streams over paths that become like this.
fn compare_over(
    what: &str,
    (family, side): (Family, Side),
    (streams, allowance): (usize, Allowance),
    prepare: impl Fn(&Stage),
    spoil: impl Fn(&Stage) -> HasMet<'_>,
) {
    let what = format!("{family:?} {what}, towards {side:?}");
    Comparison::at_once().ends_after(&what, allowance, |engine, _| {
        let mut taken = Vec::new();
        Stage::routed(engine, family, |stage| {
            send_single_segments(stage);
            prepare(stage);
            let connections = stage.connect(streams);
            let has_met = spoil(stage);
            taken = times(&connections, side, allowance.stragglers, has_met);
            connections.iter().for_each(Connection::ends_in_order);
            drop(connections);
            stage.expect_ended(streams, IN_ORDER);
            if stage.splices() {
                stage.hop().expect_translated(streams);
            }
        });
        taken
    });
}

/// On the client's side of the relay.
fn compare_with(disorder: Disorder, streams: (usize, Allowance), on: (Family, Side)) {
    let what = format!("{disorder:?}");
    compare_over(
        &what,
        on,
        streams,
        |_| (),
        |stage| {
            let routers = [router_beside(stage, Side::Client)];
            let path = BadPath::through(&routers, disorder, run_seed());
            // Nothing else is counted.
            Box::new(move || disorder.lost == 0 || path.losses() > 0)
        },
    );
}

const A_TENTH_LOST: Disorder = Disorder {
    lost: 1000,
    doubled: 0,
    late: 0,
};

#[test]
fn a_tenth_is_lost_v4() {
    compare_with(A_TENTH_LOST, LOSSY_STREAMS, (Family::V4, Side::Server));
}

#[test]
fn a_tenth_is_lost_v6() {
    compare_with(A_TENTH_LOST, LOSSY_STREAMS, (Family::V6, Side::Client));
}

#[test]
fn packets_come_twice_and_late() {
    let disorder = Disorder {
        lost: 0,
        doubled: 2500,
        late: 500,
    };
    compare_with(disorder, STREAMS, (Family::V6, Side::Server));
}

#[test]
fn congestion_is_marked_towards_a_server_without_ecn() {
    if !available(Need::Nft) {
        return;
    }
    let prepare = |stage: &Stage| use_ecn(stage, [true, false]);
    let on = (Family::V4, Side::Server);
    compare_over("a tenth marked", on, STREAMS, prepare, |stage| {
        let marked = change_at(stage.lab().client(), "path", MARK_CONGESTION);
        Box::new(move || marked() > 0)
    });
}
