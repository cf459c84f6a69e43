//! Segments in fragments, as a router makes them of what may be fragmented: whoever puts them together gets them.

use std::thread;

use super::connection::{Connection, Side};
use super::path_mtu::{cable_of_the_relay, narrow};
use super::stage::{IN_ORDER, Stage};
use crate::peer::exchange;

const CONNECTIONS: usize = 3;
const BYTES: u64 = 2 << 20;

/// Lets routers fragment what this host sends: it goes without "don't fragment".
fn let_fragment(stage: &Stage, side: Side) {
    let host = match side {
        Side::Client => stage.client(),
        Side::Server => stage.server(),
    };
    let allowed = host.set_sysctl("net.ipv4.ip_no_pmtu_disc", "1");
    allowed.expect("set");
}

fn move_some(connection: &Connection, bytes: u64) {
    exchange(&connection.client, &connection.server, 5, bytes, bytes);
}

fn a_router_fragments(stage: &Stage, side: Side) {
    let_fragment(stage, side);
    let connections = stage.connect(CONNECTIONS);
    let (idle, full) = connections.split_first().expect("several");
    thread::scope(|scope| {
        let full = full
            .iter()
            .map(|connection| scope.spawn(|| move_some(connection, 8 * BYTES)));
        let full: Vec<_> = full.collect();
        narrow(cable_of_the_relay(stage, side));
        move_some(idle, BYTES);
        for full in full {
            full.join().expect("it goes on");
        }
    });
    stage.expect_ended(connections.len(), IN_ORDER);
}

fn a_router_fragments_what_the_client_sends(stage: &Stage) {
    a_router_fragments(stage, Side::Client);
}

fn a_router_fragments_what_the_server_sends(stage: &Stage) {
    a_router_fragments(stage, Side::Server);
}

with_each_engine!(a_router_fragments_what_the_client_sends, routed);
with_each_engine!(a_router_fragments_what_the_server_sends, routed);
