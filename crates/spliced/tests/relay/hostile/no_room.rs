//! Ends that answer, and take nothing: without a user timeout they stay for ever (`patience`), with one they are given up.

use std::thread;
use std::time::Duration;

use super::stage::Stage;
use super::vanish::fill;
use crate::patience::until;
use crate::payload::Payload;

/// Less than the user timeout.
const PAUSE: Duration = Duration::from_millis(1500);

const TIMED_OUT: [&str; 2] = [
    "client failed: Connection timed out (os error 110)",
    "target failed: Connection timed out (os error 110)",
];

fn who_reads_nothing_is_given_up(stage: &Stage) {
    let connections = stage.connect(4);
    let [to_server, to_client, slow, idle] = &connections[..] else {
        unreachable!();
    };
    let payload = Payload::new(7);
    let mut position = fill(&slow.client, payload);
    for end in [&to_server.client, &to_client.server] {
        fill(end, payload);
    }
    let mut read = 0;
    // Who reads now and then has room again.
    until("two are given up", || {
        slow.server.expect(payload, read, position - read);
        read = position;
        position += slow.client.send_what_fits(payload, position);
        thread::sleep(PAUSE);
        stage.hop().connections() >= 2
    });
    slow.server.expect(payload, read, position - read);
    for entry in stage.hop().entries() {
        let outcome = entry["outcome"].as_str().expect("an outcome");
        assert!(TIMED_OUT.contains(&outcome), "{entry}");
    }
    assert_eq!(stage.hop().connections(), 2);
    idle.moves_data();
}

with_each_engine!(who_reads_nothing_is_given_up, with_user_timeout);
