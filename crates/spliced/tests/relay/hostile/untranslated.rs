//! Segments in fragments or with IP options, which the relay's sockets understand and the program does not.

use std::thread;

use netlab::{Lab, Namespace};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};
use splice_base::socket_option::send_ip_options;

use super::connection::{Connection, Side};
use super::hops::ip;
use super::path_mtu::{CONNECTIONS, goes_on, move_some};
use super::stage::{Family, IN_ORDER, Stage};
use crate::payload::Payload;

/// A router fragments what is longer and goes without "don't fragment".
const SMALL_MTU: u32 = 1300;

const BYTES: u64 = 8 << 20;

/// Those that are spliced have gone back to their sockets.
pub(super) fn expect_return(stage: &Stage, why: &str) {
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        let found = entry["why_engine"].as_str().expect("a reason");
        assert!(found.contains(why), "{entry}");
    }
}

fn a_router_fragments(stage: &Stage, side: Side) {
    goes_on(stage, |connections| fragment(stage, side, connections));
    expect_return(stage, "come in fragments");
}

/// What these connections' peers on this side send comes in fragments from now on, if it is long.
pub(super) fn fragment(stage: &Stage, side: Side, connections: &[Connection]) {
    for connection in connections {
        let peer = connection.end(side);
        sockopt::set_ip_mtu_discover(peer, Ipv4PathMtuDiscovery::DONT).expect("it is set");
    }
    let (router, routes) = routes_of_router(stage, side);
    for route in routes {
        let device = Lab::TO_RELAY;
        let change = format!("-4 route change {route} dev {device} mtu lock {SMALL_MTU}");
        ip(router, &change);
    }
}

/// Nothing of later connections does.
pub(super) fn unfragment(stage: &Stage, side: Side) {
    let (router, routes) = routes_of_router(stage, side);
    for route in routes {
        let (route, _) = route.split_once(" mtu ").unwrap_or((&route, ""));
        let device = Lab::TO_RELAY;
        ip(router, &format!("-4 route change {route} dev {device}"));
    }
}

/// The router on one side, and its routes over IPv4 towards the relay.
fn routes_of_router(stage: &Stage, side: Side) -> (&Namespace, Vec<String>) {
    let router = match side {
        Side::Client => stage.lab().client(),
        Side::Server => stage.lab().server(),
    };
    let routes = ip(router, &format!("-4 route show dev {}", Lab::TO_RELAY));
    let routes = routes.lines().map(|route| route.trim().to_owned());
    (router, routes.collect())
}

/// From some moment on. The segments that are on their way at that moment are too long, so there are none.
fn a_peer_sends_options(stage: &Stage, side: Side) {
    let connections = stage.connect(CONNECTIONS);
    for connection in &connections {
        connection.moves_data();
        let peer = connection.end(side);
        send_ip_options(peer).expect("they are set");
    }
    thread::scope(|scope| {
        for connection in &connections {
            scope.spawn(|| move_some(connection, BYTES));
        }
    });
    stage.expect_ended(connections.len(), IN_ORDER);
    expect_return(stage, "have IP options");
}

/// In the middle of a stream that goes there: each of its acknowledgements has options, and tells of more than the relay's
/// socket has sent.
fn a_receiver_sends_options(stage: &Stage, side: Side) {
    let connections = stage.connect(1);
    let [connection] = &connections[..] else {
        unreachable!("one was asked for");
    };
    let [receiver, sender] = [side, side.other()].map(|side| connection.end(side));
    let payload = Payload::new(7);
    thread::scope(|scope| {
        scope.spawn(|| sender.send(payload, 0, 8 * BYTES));
        receiver.expect(payload, 0, BYTES);
        send_ip_options(receiver).expect("they are set");
        receiver.expect(payload, BYTES, 7 * BYTES);
    });
    connection.ends_in_order();
    stage.expect_ended(connections.len(), IN_ORDER);
    expect_return(stage, "have IP options");
}

/// Its windows count as they are.
fn a_peer_without_scaling_sends_options(stage: &Stage, side: Side) {
    for host in [stage.client(), stage.server()] {
        let set = host.set_sysctl("net.ipv4.tcp_window_scaling", "0");
        set.expect("set");
    }
    a_peer_sends_options(stage, side);
}

/// Nobody fragments IPv6 underway, and Linux sends no full segments behind its extension headers.
macro_rules! with_each_engine_over_v4 {
    ($case:ident) => {
        mod $case {
            use super::{Family, Side, Stage};

            #[test]
            fn client_copy() {
                with("copy", Side::Client);
            }

            #[test]
            fn client_auto() {
                with("auto", Side::Client);
            }

            #[test]
            fn client_segment() {
                with("segment", Side::Client);
            }

            #[test]
            fn server_copy() {
                with("copy", Side::Server);
            }

            #[test]
            fn server_auto() {
                with("auto", Side::Server);
            }

            #[test]
            fn server_segment() {
                with("segment", Side::Server);
            }

            fn with(engine: &str, side: Side) {
                Stage::routed(engine, Family::V4, |stage| super::$case(stage, side));
            }
        }
    };
}

with_each_engine_over_v4!(a_router_fragments);
with_each_engine_over_v4!(a_peer_sends_options);
with_each_engine_over_v4!(a_receiver_sends_options);
with_each_engine_over_v4!(a_peer_without_scaling_sends_options);
