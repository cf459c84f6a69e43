//! Ends that are there, and silent: a connection to them is not given up.

use std::thread;
use std::time::Duration;

use super::connection::{Connection, Side};
use super::segment::{ACK, Segment};
use super::stage::{IN_ORDER, Stage};
use super::vanish::fill;
use crate::payload::Payload;

/// Three times as long as the relay waits for a peer that has vanished (`vanish::SETTINGS`).
const SILENCE: Duration = Duration::from_secs(21);

/// How far ahead of its sender a forged segment is: within the window, but nobody ever fills the gap.
const AHEAD: u32 = 10_000;

fn half_close(connection: &Connection, first: Side) {
    let (first, second) = (connection.end(first), connection.end(first.other()));
    first.end_stream();
    second.expect_end();
}

fn who_is_silent_for_long_is_not_given_up(stage: &Stage) {
    let connections = stage.connect(6);
    let [idle, here, there, full, reads_slowly, claimed] = &connections[..] else {
        unreachable!();
    };
    half_close(here, Side::Client);
    half_close(there, Side::Server);
    let payload = Payload::new(7);
    let [in_full, in_slow] = [&full.server, &reads_slowly.client].map(|end| fill(end, payload));
    for side in Side::BOTH {
        let forger = stage.forger(side);
        let next = Segment::next_of(claimed.end(side));
        forger.send(&Segment {
            flags: ACK,
            payload: &[0; 100],
            ..next.ahead(AHEAD)
        });
    }
    thread::sleep(SILENCE);
    for side in Side::BOTH {
        idle.moves_a_byte(side);
        claimed.moves_a_byte(side);
    }
    full.client.expect(payload, 0, in_full);
    reads_slowly.server.expect(payload, 0, in_slow);
    for (connection, last) in [(here, Side::Server), (there, Side::Client)] {
        connection.moves_a_byte(last);
        half_close(connection, last);
    }
    for connection in [idle, full, reads_slowly, claimed] {
        connection.ends_in_order();
    }
    stage.expect_ended(connections.len(), IN_ORDER);
}

with_each_engine!(who_is_silent_for_long_is_not_given_up, impatient);
