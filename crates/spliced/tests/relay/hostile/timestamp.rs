//! Forged timestamps: unlike a sequence number, a timestamp alone makes no segment acceptable.

use super::crowd::Crowd;
use super::segment::{RST, Segment};
use super::stage::{IN_ORDER, Stage};
use crate::random::Random;

/// More than 11 hours, and less than the 24 days within which timestamps are compared.
pub(super) const FUTURE_MS: u32 = 40_000_000;
const PAST_MS: u32 = 1_000_000;
/// Within the 64 KiB that a new connection announces.
const WITHIN_WINDOW: u32 = 20_000;
const STALE_PAYLOAD: &[u8] = &[b'z'; 100];

/// What a blind segment claims.
#[derive(Clone, Copy, Debug)]
enum Claim {
    Future,
    Random,
    None,
}

/// The sender has guessed both numbers.
fn a_blind_segment_leaves_an_idle_connection_alone(stage: &Stage) {
    let claims = [Claim::Future, Claim::Random, Claim::None];
    // About half of all sequence numbers look new, and about half of all timestamps.
    let crowd = Crowd::on(stage, &[claims; 4].concat());
    let mut random = Random::of_run(41);
    crowd.attack(|claim, forger, next| {
        let timestamp = match claim {
            Claim::Future => next.timestamp.map(|now| now.wrapping_add(FUTURE_MS)),
            Claim::Random => Some(random.next() as u32),
            Claim::None => None,
        };
        forger.send(&Segment {
            seq: random.next() as u32,
            ack: random.next() as u32,
            timestamp,
            ..next
        });
    });
    crowd.check(|_, connection| connection.moves_data());
}

/// A segment with all numbers right but the timestamp.
fn stale(next: &Segment) -> Segment {
    Segment {
        timestamp: next.timestamp.map(|now| now.wrapping_sub(PAST_MS)),
        payload: STALE_PAYLOAD,
        ..next.clone().ahead(WITHIN_WINDOW)
    }
}

/// The receiver discards the payload (PAWS, RFC 7323), so a RST behind it is not the next segment.
fn a_stale_segment_makes_no_room_for_a_reset(stage: &Stage) {
    let crowd = Crowd::on(stage, &["stale"]);
    crowd.attack(|_, forger, next| {
        forger.send(&stale(&next));
        let behind = Segment {
            flags: RST,
            timestamp: None,
            ..next.ahead(WITHIN_WINDOW + STALE_PAYLOAD.len() as u32)
        };
        forger.send(&behind);
    });
    crowd.check(|_, connection| {
        connection.stays_quiet();
        connection.moves_data();
    });
}

/// The end of the stream is before the end of what was discarded.
fn a_stale_segment_delays_no_end(stage: &Stage) {
    let crowd = Crowd::on(stage, &["stale"]);
    crowd.attack(|_, forger, next| forger.send(&stale(&next)));
    crowd.check(|_, connection| {
        connection.moves_data();
        connection.ends_in_order();
    });
    crowd.close(IN_ORDER);
}

/// A receiver that has got 0 takes any timestamp after it, as of stacks that begin with it.
fn a_timestamp_of_zero_stops_nothing(stage: &Stage) {
    // Clocks begin anywhere, and 0 looks new to about half of them.
    let crowd = Crowd::on(stage, &["zero"; 8]);
    crowd.attack(|_, forger, next| {
        forger.send(&Segment {
            timestamp: Some(0),
            ..next
        });
    });
    crowd.check(|_, connection| connection.moves_data());
}

with_each_engine!(a_blind_segment_leaves_an_idle_connection_alone);
with_each_engine!(a_stale_segment_makes_no_room_for_a_reset);
with_each_engine!(a_stale_segment_delays_no_end);
with_each_engine!(a_timestamp_of_zero_stops_nothing);
