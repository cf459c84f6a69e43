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

/// What happens to the segments from a side, and how it ends.
struct Case<'a> {
    what: &'a str,
    change: &'a dyn Fn(&Stage, Side, &Connection),
    restore: &'a dyn Fn(&Stage, Side),
}

impl Case<'_> {
    fn compare(&self, sides: &[Side], moments: &[Moment]) {
        let mut comparison = Comparison::one_by_one();
        for (side, moment) in sides
            .iter()
            .flat_map(|side| moments.iter().map(move |moment| (*side, *moment)))
        {
            let what = format!("{} {moment:?}, from {side:?}", self.what);
            comparison.add(&what, moment.allowance(), |engine, _| {
                let mut times = Vec::new();
                Stage::routed(engine, Family::V4, |stage| {
                    let change = |stage: &Stage, on: &Connection| (self.change)(stage, side, on);
                    let restore = |stage: &Stage| (self.restore)(stage, side);
                    times = streams(stage, side, moment, &change, &restore);
                });
                times
            });
        }
        comparison.end();
    }
}

const FRAGMENTS: Case<'_> = Case {
    what: "fragments",
    change: &|stage, side, connection| fragment(stage, side, std::slice::from_ref(connection)),
    restore: &|stage, side| {
        unfragment(stage, side);
        forget_paths(stage);
    },
};

const OPTIONS_OF_THE_SENDER: Case<'_> = Case {
    what: "options",
    change: &|_, side, connection| {
        send_no_operation(connection.end(side)).expect("they are set");
    },
    restore: &|_, _| (),
};

const OPTIONS_OF_THE_RECEIVER: Case<'_> = Case {
    what: "options of the receiver",
    change: &|_, side, connection| {
        send_no_operation(connection.end(side.other())).expect("they are set");
    },
    restore: &|_, _| (),
};

#[test]
fn a_router_fragments_what_an_idle_client_sends() {
    FRAGMENTS.compare(&[Side::Client], &[Moment::Idle]);
}

#[test]
fn an_idle_server_has_options() {
    OPTIONS_OF_THE_SENDER.compare(&[Side::Server], &[Moment::Idle]);
}

#[test]
#[ignore = "soak: compares times"]
fn a_router_fragments() {
    FRAGMENTS.compare(&Side::BOTH, &Moment::BOTH);
}

/// What is on its way at that moment would be too long, so there is nothing.
#[test]
#[ignore = "soak: compares times"]
fn the_sender_has_options() {
    OPTIONS_OF_THE_SENDER.compare(&Side::BOTH, &[Moment::Idle]);
}

#[test]
#[ignore = "soak: compares times"]
fn the_receiver_has_options() {
    OPTIONS_OF_THE_RECEIVER.compare(&Side::BOTH, &Moment::BOTH);
}
