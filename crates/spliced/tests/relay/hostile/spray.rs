//! Thousands of forged segments, by somebody who knows addresses and ports but no numbers.

use super::crowd::Crowd;
use super::segment::Segment;
use super::stage::{IN_ORDER, Stage};
use super::timestamp::FUTURE_MS;
use crate::peer::exchange;
use crate::random::Random;

const CONNECTIONS: usize = 20;
const SEGMENTS: usize = 28_000;
const BYTES: u64 = 1 << 20;

fn a_spray_leaves_idle_connections_alone(stage: &Stage) {
    // Half of them get the segments from the client's side, half from the server's.
    let crowd = Crowd::on(stage, &[(); CONNECTIONS / 2]);
    let mut random = Random::of_run(42);
    crowd.attack(|(), forger, next| {
        let timestamp = next.timestamp.map(|now| now.wrapping_add(FUTURE_MS));
        for _ in 0..SEGMENTS / CONNECTIONS {
            forger.send(&Segment {
                seq: random.next() as u32,
                ack: random.next() as u32,
                timestamp,
                ..next.clone()
            });
        }
    });
    crowd.check(|_, connection| exchange(&connection.client, &connection.server, 43, BYTES, BYTES));
    crowd.close(IN_ORDER);
}

with_each_engine!(a_spray_leaves_idle_connections_alone);
