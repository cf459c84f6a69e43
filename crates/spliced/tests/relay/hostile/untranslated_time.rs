//! How long a stream takes whose segments come in fragments or with IP options: with `auto` and `segment` about as long as
//! with `copy`. Nobody fragments IPv6 underway, and Linux sends no full segments behind its extension headers.

use std::time::Duration;

use super::connection::{Connection, Side};
use super::path_mtu_time::{Moment, forget_paths, time_after};
use super::stage::{Family, IN_ORDER, Stage};
use super::times::{Comparison, ROUNDS};
use super::untranslated::{fragment, send_no_operation, unfragment};

/// Some streams from `side`, one after the other, each of which `change` meets, and `restore` follows.
fn streams(
    stage: &Stage,
    side: Side,
    moment: Moment,
    change: &dyn Fn(&Stage, &Connection),
    restore: &dyn Fn(&Stage),
) -> Vec<Duration> {
    let stream = |round| {
        let connection = stage.connect(1).pop().expect("one");
        let change = || change(stage, &connection);
        let took = time_after(&connection, side.other(), moment, change);
        connection.ends_in_order();
        drop(connection);
        stage.expect_ended(round, IN_ORDER);
        restore(stage);
        took
    };
    (1..=ROUNDS).map(stream).collect()
}

fn compare(
    what: &str,
    moments: &[Moment],
    change: impl Fn(&Stage, Side, &Connection),
    restore: impl Fn(&Stage, Side),
) {
    let mut comparison = Comparison::default();
    for side in Side::BOTH {
        for moment in moments {
            let what = format!("{what} {moment:?}, from {side:?}");
            comparison.add(&what, moment.allowance(), |engine, _| {
                let mut times = Vec::new();
                Stage::routed(engine, Family::V4, |stage| {
                    let change = |stage: &Stage, on: &Connection| change(stage, side, on);
                    let restore = |stage: &Stage| restore(stage, side);
                    times = streams(stage, side, *moment, &change, &restore);
                });
                times
            });
        }
    }
    comparison.end();
}

#[test]
#[ignore = "soak: compares times"]
fn a_router_fragments() {
    let change = |stage: &Stage, side, connection: &Connection| {
        fragment(stage, side, std::slice::from_ref(connection));
    };
    let restore = |stage: &Stage, side| {
        unfragment(stage, side);
        forget_paths(stage);
    };
    compare("fragments", &Moment::BOTH, change, restore);
}

/// What is on its way at that moment would be too long, so there is nothing.
#[test]
#[ignore = "soak: compares times"]
fn the_sender_has_options() {
    let change = |_: &Stage, side, connection: &Connection| {
        send_no_operation(connection.end(side)).expect("they are set");
    };
    compare("options", &[Moment::Idle], change, |_, _| ());
}

#[test]
#[ignore = "soak: compares times"]
fn the_receiver_has_options() {
    let change = |_: &Stage, side: Side, connection: &Connection| {
        send_no_operation(connection.end(side.other())).expect("they are set");
    };
    compare("options of the receiver", &Moment::BOTH, change, |_, _| ());
}
