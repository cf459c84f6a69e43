//! How long a stream takes through a path that loses, doubles or delays packets, or changes their traffic class or ECN bits:
//! with `auto` and `segment` about as long as with `copy`.

use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Namespace, Need, available};

use super::bad_network::{CHANGE_CLASS, CLEAR_ECN, MARK_CONGESTION, change_at, use_ecn};
use super::connection::Side;
use super::hops::{Hops, ip};
use super::stage::{Family, IN_ORDER, Stage};
use super::times::{Allowance, Comparison, ROUNDS};
use crate::bad_path::{BadPath, Disorder};
use crate::payload::Payload;
use crate::random::run_seed;

/// Of a stream that loses many.
const FEW_BYTES: u64 = 512 << 10;
const BYTES: u64 = 4 << 20;

/// What meets one packet would meet many segments, and a stream would have few packets.
pub(super) fn send_single_segments(stage: &Stage) {
    let lab = stage.lab();
    for (namespace, device) in [
        (stage.client(), Hops::INWARD),
        (lab.relay(), Lab::TO_CLIENT),
        (lab.relay(), Lab::TO_SERVER),
        (stage.server(), Hops::INWARD),
    ] {
        ip(namespace, &format!("link set {device} gso_max_segs 1"));
    }
}

/// The router on this side of the relay.
pub(super) fn router_beside(stage: &Stage, side: Side) -> &Namespace {
    match side {
        Side::Client => stage.lab().client(),
        Side::Server => stage.lab().server(),
    }
}

/// Some streams towards `side`, one after the other.
fn streams(stage: &Stage, side: Side, bytes: u64) -> Vec<Duration> {
    send_single_segments(stage);
    let stream = |round| {
        let connection = stage.connect(1).pop().expect("one");
        let (from, to) = (connection.end(side.other()), connection.end(side));
        let payload = Payload::new(6);
        let began = Instant::now();
        thread::scope(|scope| {
            scope.spawn(|| from.send(payload, 0, bytes));
            to.expect(payload, 0, bytes);
        });
        let took = began.elapsed();
        connection.ends_in_order();
        drop(connection);
        stage.expect_ended(round, IN_ORDER);
        took
    };
    (1..=ROUNDS).map(stream).collect()
}

/// The path on one side of the relay is like this.
fn compare_disorder(family: Family, disorder: Disorder) {
    let mut comparison = Comparison::one_by_one();
    for (bad, side) in Side::BOTH
        .map(|bad| Side::BOTH.map(|side| (bad, side)))
        .concat()
    {
        let what = format!("{family:?} {disorder:?} at the {bad:?}, towards {side:?}");
        comparison.add(&what, Allowance::NONE, |engine, number| {
            let mut times = Vec::new();
            Stage::routed(engine, family, |stage| {
                let router = router_beside(stage, bad);
                let _path = BadPath::through(&[router], disorder, run_seed() ^ number as u64);
                times = streams(stage, side, FEW_BYTES);
            });
            times
        });
    }
    comparison.end();
}

fn a_tenth_is_lost(family: Family) {
    let lost = Disorder {
        lost: 1000,
        ..Disorder::default()
    };
    compare_disorder(family, lost);
}

fn packets_come_twice(family: Family) {
    let doubled = Disorder {
        doubled: 2500,
        ..Disorder::default()
    };
    compare_disorder(family, doubled);
}

fn packets_come_late(family: Family) {
    let late = Disorder {
        late: 500,
        ..Disorder::default()
    };
    compare_disorder(family, late);
}

compare_times!(a_tenth_is_lost);
compare_times!(packets_come_twice);
compare_times!(packets_come_late);

/// Both routers do this to what they pass on, where these hosts do ECN (or none: the setting is left as it is).
fn compare_changes(family: Family, what: &str, statements: [&str; 2], ecn: Option<[bool; 2]>) {
    if !available(Need::Nft) {
        return;
    }
    let mut comparison = Comparison::one_by_one();
    for side in Side::BOTH {
        let what = format!("{family:?} {what}, towards {side:?}");
        comparison.add(&what, Allowance::NONE, |engine, _| {
            let mut times = Vec::new();
            Stage::routed(engine, family, |stage| {
                if let Some(hosts) = ecn {
                    use_ecn(stage, hosts);
                }
                let routers = [stage.lab().client(), stage.lab().server()];
                let changed = routers.map(|router| change_at(router, "path", statements));
                times = streams(stage, side, BYTES);
                assert!(changed.iter().any(|changed| changed() > 0));
            });
            times
        });
    }
    comparison.end();
}

fn the_traffic_class_changes(family: Family) {
    compare_changes(family, "class of every other packet", CHANGE_CLASS, None);
}

fn congestion_is_marked(family: Family) {
    compare_changes(family, "a tenth marked", MARK_CONGESTION, Some([true; 2]));
}

fn congestion_is_marked_towards_a_client_without_ecn(family: Family) {
    let hosts = Some([false, true]);
    compare_changes(
        family,
        "a tenth marked, client without ECN",
        MARK_CONGESTION,
        hosts,
    );
}

fn congestion_is_marked_towards_a_server_without_ecn(family: Family) {
    let hosts = Some([true, false]);
    compare_changes(
        family,
        "a tenth marked, server without ECN",
        MARK_CONGESTION,
        hosts,
    );
}

fn ecn_is_cleared(family: Family) {
    compare_changes(family, "ECN cleared", CLEAR_ECN, Some([true; 2]));
}

compare_times!(the_traffic_class_changes);
compare_times!(congestion_is_marked);
compare_times!(congestion_is_marked_towards_a_client_without_ecn);
compare_times!(congestion_is_marked_towards_a_server_without_ecn);
compare_times!(ecn_is_cleared);
