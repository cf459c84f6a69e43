//! Segments with a wrong checksum, as after a bit error on the path. The checksum is all that is wrong.

use super::crowd::Crowd;
use super::segment::{ACK, FIN, RST, Segment};
use super::stage::Stage;

const PAYLOAD: &[u8] = &[b'z'; 100];
/// Within the 64 KiB that a new connection announces.
const BEYOND: u32 = 20_000;

/// The connection moves data, ends in order, and leaves nothing in the relay.
fn survives(stage: &Stage, flags: &[u8], ahead: u32, payload: &'static [u8]) {
    let crowd = Crowd::on(stage, flags);
    crowd.attack(|flags, forger, next| {
        forger.send(&Segment {
            flags,
            payload,
            is_damaged: true,
            ..next.ahead(ahead)
        });
    });
    crowd.check(|_, connection| {
        connection.stays_quiet();
        connection.moves_data();
        connection.ends_in_order();
    });
    crowd.close();
}

fn damaged_data_beyond_the_next_byte_is_discarded(stage: &Stage) {
    survives(stage, &[ACK], BEYOND, PAYLOAD);
}

fn a_damaged_end_of_stream_ends_nothing(stage: &Stage) {
    survives(stage, &[FIN | ACK], 0, &[]);
}

fn a_damaged_reset_ends_nothing(stage: &Stage) {
    survives(stage, &[RST, RST | ACK], 0, &[]);
}

with_each_engine!(damaged_data_beyond_the_next_byte_is_discarded);
with_each_engine!(a_damaged_end_of_stream_ends_nothing);
with_each_engine!(a_damaged_reset_ends_nothing);
