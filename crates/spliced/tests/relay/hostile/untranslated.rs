//! Segments in fragments or with IP options, which the relay's sockets understand and the program does not.

use std::net::Ipv6Addr;
use std::thread;

use netlab::{Lab, Namespace, present};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery};
use splice_base::socket_option::{
    send_destination_options, send_hop_by_hop_options, send_ip_options,
};

use super::bad_network_time::router_beside;
use super::connection::{Connection, Side};
use super::hops::{Hops, ip};
use super::path_mtu::{CONNECTIONS, cable_of_the_relay, goes_on, move_some, set_mtu};
use super::stage::{Family, IN_ORDER, Stage};
use crate::payload::Payload;
use crate::peer::Peer;

/// A router fragments what is longer and goes without "don't fragment".
const SMALL_MTU: u32 = 1300;

/// More than segments of the usual size need behind options.
const LARGER_MTU: u32 = 1600;

/// The address of the router on the server's side that the server knows.
const FAR_ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 5, 0, 0, 0, 1);

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
    let router = router_beside(stage, side);
    let routes = ip(router, &format!("-4 route show dev {}", Lab::TO_RELAY));
    let routes = routes.lines().map(|route| route.trim().to_owned());
    (router, routes.collect())
}

/// Has every packet of an end carry options.
type SetOptions = fn(&Peer) -> rustix::io::Result<()>;

/// "No operation" (RFC 791, 3.1)
pub(super) fn send_no_operation(end: &Peer) -> rustix::io::Result<()> {
    send_ip_options(end, [1; 4])
}

/// With room for the addresses of three routers.
fn record_route(end: &Peer) -> rustix::io::Result<()> {
    let mut options = [0; 16];
    options[..3].copy_from_slice(&[7, 15, 4]);
    send_ip_options(end, options)
}

/// Padding alone (RFC 8200, 4.2)
const PADDING: [u8; 8] = [0, 0, 1, 4, 0, 0, 0, 0];

fn send_to_each_hop(end: &Peer) -> rustix::io::Result<()> {
    send_hop_by_hop_options(end, PADDING)
}

fn send_to_destination(end: &Peer) -> rustix::io::Result<()> {
    send_destination_options(end, PADDING)
}

fn send_to_both(end: &Peer) -> rustix::io::Result<()> {
    send_to_each_hop(end)?;
    send_to_destination(end)
}

/// More options than a later kernel may take: the stack decides.
fn send_many_options(end: &Peer) -> rustix::io::Result<()> {
    send_destination_options(end, [0, 0, 0x1e, 0, 0x1e, 0, 0x1e, 0])
}

/// A socket of IPv6 that was accepted makes its segments no shorter (`ipv6_update_options`).
fn make_room(stage: &Stage, side: Side) {
    if stage.family() == Family::V4 {
        return;
    }
    for (namespace, device) in cable_of_the_relay(stage, side) {
        set_mtu(namespace, device, LARGER_MTU);
    }
}

/// From some moment on. The segments that are on their way at that moment are too long, so there are none.
fn a_peer_sends(stage: &Stage, side: Side, set: SetOptions) {
    let connections = stage.connect(CONNECTIONS);
    make_room(stage, side);
    for connection in &connections {
        connection.moves_data();
        set(connection.end(side)).expect("they are set");
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
fn a_receiver_sends(stage: &Stage, side: Side, set: SetOptions) {
    let connections = stage.connect(1);
    make_room(stage, side);
    let [connection] = &connections[..] else {
        unreachable!("one was asked for");
    };
    let [receiver, sender] = [side, side.other()].map(|side| connection.end(side));
    let payload = Payload::new(7);
    thread::scope(|scope| {
        scope.spawn(|| sender.send(payload, 0, 8 * BYTES));
        receiver.expect(payload, 0, BYTES);
        set(receiver).expect("they are set");
        receiver.expect(payload, BYTES, 7 * BYTES);
    });
    connection.ends_in_order();
    stage.expect_ended(connections.len(), IN_ORDER);
    expect_return(stage, "have IP options");
}

fn a_peer_sends_options(stage: &Stage, side: Side) {
    a_peer_sends(stage, side, send_no_operation);
}

fn a_peer_has_its_route_recorded(stage: &Stage, side: Side) {
    a_peer_sends(stage, side, record_route);
}

fn a_peer_sends_hop_by_hop_options(stage: &Stage, side: Side) {
    a_peer_sends(stage, side, send_to_each_hop);
}

fn a_peer_sends_destination_options(stage: &Stage, side: Side) {
    a_peer_sends(stage, side, send_to_destination);
}

fn a_peer_sends_both_headers(stage: &Stage, side: Side) {
    a_peer_sends(stage, side, send_to_both);
}

fn a_peer_sends_many_options(stage: &Stage, side: Side) {
    a_peer_sends(stage, side, send_many_options);
}

fn a_receiver_sends_options(stage: &Stage, side: Side) {
    a_receiver_sends(stage, side, send_no_operation);
}

fn a_receiver_sends_both_headers(stage: &Stage, side: Side) {
    a_receiver_sends(stage, side, send_to_both);
}

/// A host puts a routing header into its packets (RFC 8754). Whether the relay's host takes them is a setting of its own.
fn a_network_routes_by_segments(stage: &Stage, side: Side) {
    let lab = stage.lab();
    let (host, router, via, relay) = match side {
        Side::Client => (
            stage.client(),
            lab.client(),
            Hops::NEAR_ROUTER_V6,
            Lab::RELAY_V6,
        ),
        Side::Server => (
            stage.server(),
            lab.server(),
            FAR_ROUTER_V6,
            Lab::RELAY_FAR_V6,
        ),
    };
    let setting = lab.relay().sysctl("net.ipv6.conf.all.seg6_enabled");
    let missing = setting.expect("read").is_none();
    let missing = missing.then(|| "no segment routing in this kernel".into());
    if !present("seg6", missing) {
        return;
    }
    for namespace in [router, lab.relay()] {
        for device in [
            "all",
            Lab::TO_CLIENT,
            Lab::TO_SERVER,
            Lab::TO_RELAY,
            Hops::OUTWARD,
        ] {
            let enabled = format!("net.ipv6.conf.{device}.seg6_enabled");
            if namespace.sysctl(&enabled).expect("read").is_some() {
                namespace.set_sysctl(&enabled, "1").expect("set");
            }
        }
    }
    let connections = stage.connect(CONNECTIONS);
    for connection in &connections {
        connection.moves_data();
    }
    let device = Hops::INWARD;
    let route = format!("-6 route add {relay} encap seg6 mode inline segs {via} dev {device}");
    ip(host, &route);
    thread::scope(|scope| {
        for connection in &connections {
            scope.spawn(|| move_some(connection, BYTES));
        }
    });
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

macro_rules! with_each_engine_over {
    ($family:ident, $stage:ident: $($case:ident)*) => {
        $(mod $case {
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
                Stage::$stage(engine, Family::$family, |stage| super::$case(stage, side));
            }
        })*
    };
}

// Nobody fragments IPv6 underway.
with_each_engine_over!(
    V4, routed:
    a_router_fragments
    a_peer_sends_options
    a_peer_has_its_route_recorded
    a_receiver_sends_options
    a_peer_without_scaling_sends_options
);
// Without routers: Linux passes on no super-packets with these headers.
with_each_engine_over!(
    V6, with:
    a_peer_sends_hop_by_hop_options
    a_peer_sends_destination_options
    a_peer_sends_both_headers
    a_peer_sends_many_options
    a_receiver_sends_both_headers
);
with_each_engine_over!(
    V6, routed:
    a_network_routes_by_segments
);
