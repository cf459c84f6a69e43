//! Connections that cannot be translated from their beginning on, by something that the network does or a peer: they stay with
//! their sockets, by name as well.

use super::another_device::{divert, lay_second_cable};
use super::connection::{Connection, Side};
use super::path_mtu::{SMALL_MTU, cable_beyond, move_some, narrow};
use super::stage::{Family, IN_ORDER, Stage};
use crate::patience::until;
use crate::peer::Peer;

const BYTES: u64 = 4 << 20;

pub(super) fn stay_with_their_sockets(stage: &Stage, why: &str) {
    let mut ended = 0;
    // The first ones may have ended before they are tried.
    until("one is tried", || {
        let connect = || Peer::connect(stage.hop().address());
        let client = stage.client().enter(connect).expect("entered");
        let server = stage.target().accept();
        move_some(&Connection { client, server }, BYTES);
        ended += 1;
        stage.expect_ended(ended, IN_ORDER);
        let entries = stage.hop().entries();
        for entry in &entries {
            assert_ne!(entry["engine"], "segment", "{entry}");
        }
        let found = entries
            .last()
            .and_then(|entry| entry["why_engine"].as_str());
        !stage.splices() || found.expect("a reason").contains(why)
    });
}

/// The listener has announced to the clients what fitted when the relay began.
fn the_server_takes_less_than_the_clients_may_send(stage: &Stage) {
    narrow(cable_beyond(stage, Side::Server));
    let header_bytes = match stage.family() {
        Family::V4 => 40,
        Family::V6 => 60,
    };
    let takes = format!("the server takes {}", SMALL_MTU - header_bytes);
    stay_with_their_sockets(stage, &takes);
}

fn clients_come_by_another_device(stage: &Stage) {
    come_by_another_device(stage, Side::Client);
}

fn a_server_comes_by_another_device(stage: &Stage) {
    come_by_another_device(stage, Side::Server);
}

fn come_by_another_device(stage: &Stage, side: Side) {
    lay_second_cable(stage, side);
    divert(stage, side);
    stay_with_their_sockets(stage, "segments come in on device");
}

with_each_engine!(the_server_takes_less_than_the_clients_may_send, routed);
with_each_engine!(clients_come_by_another_device, routed);
with_each_engine!(a_server_comes_by_another_device, routed);
