//! Links that let less through than before: by ICMP each sender learns of it, as the relay's sockets would.

use std::thread;

use netlab::{Lab, Namespace};

use super::connection::Side;
use super::hops::{Hops, ip};
use super::stage::{IN_ORDER, Stage};
use crate::peer::exchange;

/// Above the least that IPv6 allows (1280).
const SMALL_MTU: u32 = 1300;

const CONNECTIONS: usize = 3;
const BYTES: u64 = 2 << 20;

/// Both ends of a cable: a veth drops what is longer than its own MTU when it comes in (`is_skb_forwardable`).
fn narrow(ends: [(&Namespace, &str); 2]) {
    for (namespace, device) in ends {
        ip(namespace, &format!("link set {device} mtu {SMALL_MTU}"));
    }
}

/// One connection is idle when the path becomes narrower, and the others are full of bytes.
fn goes_on(stage: &Stage, ends: [(&Namespace, &str); 2]) {
    let connections = stage.connect(CONNECTIONS);
    let move_some = |at: usize, bytes| {
        let connection = &connections[at];
        exchange(
            &connection.client,
            &connection.server,
            at as u64,
            bytes,
            bytes,
        );
    };
    thread::scope(|scope| {
        let full = (1..CONNECTIONS).map(|at| scope.spawn(move || move_some(at, 8 * BYTES)));
        let full: Vec<_> = full.collect();
        narrow(ends);
        move_some(0, BYTES);
        for full in full {
            full.join().expect("it goes on");
        }
    });
    stage.expect_ended(connections.len(), IN_ORDER);
}

fn beyond(stage: &Stage, side: Side) {
    let (router, host) = match side {
        Side::Client => (stage.lab().client(), stage.client()),
        Side::Server => (stage.lab().server(), stage.server()),
    };
    goes_on(stage, [(router, Hops::OUTWARD), (host, Hops::INWARD)]);
}

fn a_router_towards_the_server_lowers_its_mtu(stage: &Stage) {
    beyond(stage, Side::Server);
}

fn a_router_towards_the_client_lowers_its_mtu(stage: &Stage) {
    beyond(stage, Side::Client);
}

fn the_relays_device_gets_a_lower_mtu(stage: &Stage) {
    let lab = stage.lab();
    goes_on(
        stage,
        [(lab.relay(), Lab::TO_SERVER), (lab.server(), Lab::TO_RELAY)],
    );
}

with_each_engine!(a_router_towards_the_server_lowers_its_mtu, routed);
with_each_engine!(a_router_towards_the_client_lowers_its_mtu, routed);
with_each_engine!(the_relays_device_gets_a_lower_mtu);
