//! Segments with a wrong checksum, as after a bit error on the path. The checksum is all that is wrong.

use super::connection::{Connection, Side};
use super::crowd::Crowd;
use super::segment::{ACK, FIN, RST, Segment};
use super::stage::{IN_ORDER, Stage};

const PAYLOAD: &[u8] = &[b'z'; 100];
/// Within the 64 KiB that a new connection announces.
const BEYOND: u32 = 20_000;

/// After a damaged segment of each kind, `check` passes, and the relay has nothing left of the connections.
fn survive(
    stage: &Stage,
    kinds: &[u8],
    segment: impl Fn(Segment) -> Segment,
    check: impl Fn(Side, &Connection) + Sync,
) {
    let crowd = Crowd::on(stage, kinds);
    crowd.attack(|flags, forger, next| {
        forger.send(&Segment {
            flags,
            is_damaged: true,
            ..segment(next)
        });
    });
    crowd.check(check);
    crowd.close(IN_ORDER);
}

fn moves_data_and_ends(_: Side, connection: &Connection) {
    connection.moves_data();
    connection.ends_in_order();
}

fn moves_data_much_later_and_ends(claimed: Side, connection: &Connection) {
    connection.stays_quiet();
    moves_data_and_ends(claimed, connection);
}

fn damaged_data_beyond_the_next_byte_delays_no_end(stage: &Stage) {
    let beyond = |next: Segment| Segment {
        payload: PAYLOAD,
        ..next.ahead(BEYOND)
    };
    survive(stage, &[ACK], beyond, moves_data_and_ends);
}

fn a_damaged_end_of_stream_ends_nothing(stage: &Stage) {
    survive(stage, &[FIN | ACK], |next| next, moves_data_and_ends);
}

/// A byte takes the number of the discarded FIN, and is acknowledged in its place. With the FIN of the other end
/// this looks like the end of both streams.
fn a_damaged_end_of_stream_closes_no_half_open_connection(stage: &Stage) {
    survive(
        stage,
        &[FIN | ACK],
        |next| next,
        |claimed, connection| {
            connection.moves_a_byte(claimed);
            connection.stays_half_open(claimed.other());
        },
    );
}

fn a_damaged_reset_ends_nothing(stage: &Stage) {
    let kinds = [RST, RST | ACK];
    survive(stage, &kinds, |next| next, moves_data_much_later_and_ends);
}

with_each_engine!(damaged_data_beyond_the_next_byte_delays_no_end);
with_each_engine!(a_damaged_end_of_stream_ends_nothing);
with_each_engine!(a_damaged_end_of_stream_closes_no_half_open_connection);
with_each_engine!(a_damaged_reset_ends_nothing);
