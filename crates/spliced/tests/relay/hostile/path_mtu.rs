//! Links that let less through than before: the relay's sockets learn of it by ICMP, and take spliced connections back.
//! Where ICMP is filtered, each sender finds out by itself.

use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::thread;

use netlab::{Lab, Namespace, present};

use super::connection::{Connection, Side};
use super::hops::{Hops, ip};
use super::route_mtu::TOO_NARROW;
use super::stage::{Family, IN_ORDER, Stage};
use crate::patience::until;
use crate::peer::{Over, Peer, exchange, exchange_until};
use crate::relay::BINARY;
use crate::segment::hop::Hop;

/// Above the least that IPv6 allows (1280).
pub(super) const SMALL_MTU: u32 = 1300;
pub(super) const WIDE_MTU: u32 = 1500;
const SMALLER_MTU: u32 = 1290;
/// What fits an Ethernet, by IPv4 and by IPv6.
const ANNOUNCED_BYTES: [(&str, u32); 2] = [("-4", 1460), ("-6", 1440)];

pub(super) const CONNECTIONS: usize = 3;
const BYTES: u64 = 2 << 20;

/// Both ends of a cable: a veth drops what is longer than its own MTU when it comes in (`is_skb_forwardable`).
pub(super) fn narrow(ends: [(&Namespace, &str); 2]) {
    for (namespace, device) in ends {
        set_mtu(namespace, device, SMALL_MTU);
    }
}

pub(super) fn set_mtu(namespace: &Namespace, device: &str, mtu: u32) {
    ip(namespace, &format!("link set {device} mtu {mtu}"));
}

pub(super) fn move_some(connection: &Connection, bytes: u64) {
    exchange(&connection.client, &connection.server, 5, bytes, bytes);
}

/// One connection is idle when the path becomes narrower, and the others are full of bytes. Those that are spliced go
/// back to their sockets: for what arrives too long, or for the route that the relay has learnt meanwhile.
fn goes_back(stage: &Stage, narrow: impl FnOnce()) {
    let is_a_reason =
        |text: &str| text.contains("are too long for the path") || text.contains(TOO_NARROW);
    goes_on(stage, |_| narrow());
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        let why = entry["why_engine"].as_str().expect("a reason");
        assert!(is_a_reason(why), "{entry}");
    }
    if stage.splices() {
        let line = stage.hop().relay.wait_logged(" to the network stack: ");
        assert!(line.contains(" INFO ") && is_a_reason(&line), "{line}");
    }
}

/// The same, whatever moves them.
pub(super) fn goes_on(stage: &Stage, change: impl FnOnce(&[Connection])) {
    let connections = stage.connect(CONNECTIONS);
    let (idle, full) = connections.split_first().expect("several");
    let has_changed = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&has_changed);
        for Connection { client, server } in full {
            scope.spawn(|| exchange_until(&has_changed, client, server, 5));
        }
        change(&connections);
        drop(over);
        move_some(idle, BYTES);
    });
    stage.expect_ended(connections.len(), IN_ORDER);
}

/// The cable between the router on this side and the host behind it.
pub(super) fn cable_beyond(stage: &Stage, side: Side) -> [(&Namespace, &str); 2] {
    let (router, host) = match side {
        Side::Client => (stage.lab().client(), stage.client()),
        Side::Server => (stage.lab().server(), stage.server()),
    };
    [(router, Hops::OUTWARD), (host, Hops::INWARD)]
}

/// The cable between the relay and what stands on this side.
pub(super) fn cable_of_the_relay(stage: &Stage, side: Side) -> [(&Namespace, &str); 2] {
    let lab = stage.lab();
    match side {
        Side::Client => [(lab.relay(), Lab::TO_CLIENT), (lab.client(), Lab::TO_RELAY)],
        Side::Server => [(lab.relay(), Lab::TO_SERVER), (lab.server(), Lab::TO_RELAY)],
    }
}

/// The cable of a host is narrow, but the host announces as much as before. It sends no more than that itself.
fn narrow_unannounced(stage: &Stage, side: Side) {
    let cable = cable_beyond(stage, side);
    narrow(cable);
    let [_, (host, _)] = cable;
    for (version, announced) in ANNOUNCED_BYTES {
        let route = ip(host, &format!("{version} route show default"));
        let route = route.lines().next().expect("one").trim();
        let change = format!("{version} route change {route} advmss {announced}");
        ip(host, &change);
    }
}

fn a_router_towards_the_server_lowers_its_mtu(stage: &Stage) {
    goes_back(stage, || narrow(cable_beyond(stage, Side::Server)));
}

fn a_router_towards_the_client_lowers_its_mtu(stage: &Stage) {
    goes_back(stage, || narrow(cable_beyond(stage, Side::Client)));
}

fn the_relays_device_towards_the_server_gets_a_lower_mtu(stage: &Stage) {
    goes_back(stage, || narrow(cable_of_the_relay(stage, Side::Server)));
}

fn the_relays_device_towards_the_client_gets_a_lower_mtu(stage: &Stage) {
    goes_back(stage, || narrow(cable_of_the_relay(stage, Side::Client)));
}

/// A peer learns of one MTU after the other.
fn several_links_lower_their_mtu(stage: &Stage, side: Side) {
    goes_back(stage, || {
        narrow(cable_of_the_relay(stage, side));
        for (namespace, device) in cable_beyond(stage, side) {
            set_mtu(namespace, device, SMALLER_MTU);
        }
    });
}

fn several_links_towards_the_server_lower_their_mtu(stage: &Stage) {
    several_links_lower_their_mtu(stage, Side::Server);
}

fn several_links_towards_the_client_lower_their_mtu(stage: &Stage) {
    several_links_lower_their_mtu(stage, Side::Client);
}

/// Nobody knows of it when a connection changes over: its handshakes were short.
fn a_path_is_narrow_from_the_beginning(stage: &Stage) {
    narrow_unannounced(stage, Side::Server);
    goes_back(stage, || {});
}

/// Streams begin at once: the relay's sockets learn of the path before or while the pair changes over, or its peers do
/// afterwards.
fn a_path_is_narrow_for_streams_that_begin_at_once(stage: &Stage) {
    narrow_unannounced(stage, Side::Server);
    for _ in 0..CONNECTIONS {
        let client = stage
            .client()
            .enter(|| Peer::connect(stage.hop().address()));
        let connection = Connection {
            client: client.expect("entered"),
            server: stage.target().accept(),
        };
        move_some(&connection, 8 * BYTES);
    }
    stage.expect_ended(CONNECTIONS, IN_ORDER);
}

/// Who has sent what got lost tries smaller segments in the end (`tcp_mtu_probing`).
pub(super) fn probe_for_mtus(stage: &Stage) {
    for namespace in [stage.lab().relay(), stage.client(), stage.server()] {
        let probing = namespace.set_sysctl("net.ipv4.tcp_mtu_probing", "1");
        probing.expect("set");
    }
}

pub(super) fn has_ethtool() -> bool {
    let missing = netlab::program("ethtool").is_none();
    present(
        "ethtool",
        missing.then(|| "no ethtool (apt install ethtool)".into()),
    )
}

/// A veth lets super-packets through that are longer than the MTU of its receiving end (`is_skb_forwardable`).
pub(super) fn send_no_super_packets((namespace, device): (&Namespace, &str)) {
    let off = namespace
        .command("ethtool")
        .args(["-K", device, "tso", "off", "gso", "off"])
        .status();
    assert!(off.expect("ethtool runs").success());
}

/// A link drops what is too long and tells nobody: a veth of which the receiving end has the smaller MTU.
fn a_link_loses_what_is_too_long(stage: &Stage, side: Side) {
    if !has_ethtool() {
        return;
    }
    probe_for_mtus(stage);
    let [relay, router] = cable_of_the_relay(stage, side);
    send_no_super_packets(relay);
    goes_on(stage, |_| set_mtu(router.0, router.1, SMALL_MTU));
    if stage.splices() {
        stage.hop().expect_translated(CONNECTIONS);
    }
}

fn a_link_towards_the_server_loses_what_is_too_long(stage: &Stage) {
    a_link_loses_what_is_too_long(stage, Side::Server);
}

fn a_link_towards_the_client_loses_what_is_too_long(stage: &Stage) {
    a_link_loses_what_is_too_long(stage, Side::Client);
}

/// client - relay - another relay - router - server: an error goes back through both.
fn with_a_relay_in_front(stage: &Stage, narrow: impl FnOnce()) {
    let near = stage.lab().client();
    let listen = match stage.family() {
        Family::V4 => SocketAddr::new(Hops::NEAR_ROUTER_V4.into(), 0),
        Family::V6 => SocketAddr::new(Hops::NEAR_ROUTER_V6.into(), 0),
    };
    let mut command = near.command(BINARY);
    command.args(["relay", &listen.to_string(), stage.hop().address()]);
    command.args(["--engine", stage.engine()]);
    let front = Hop::spawn(&mut command);
    let client = stage.client().enter(|| Peer::connect(front.address()));
    let connection = Connection {
        client: client.expect("entered"),
        server: stage.target().accept(),
    };
    if stage.splices() {
        until("both pairs are spliced", || {
            front.are_spliced(1) && stage.hop().are_spliced(1)
        });
    } else {
        connection.moves_a_byte(Side::Client);
    }
    narrow();
    move_some(&connection, BYTES);
    until("both pairs have ended", || {
        front.connections() == 1 && stage.hop().connections() == 1
    });
}

fn a_router_behind_two_relays_lowers_its_mtu(stage: &Stage) {
    with_a_relay_in_front(stage, || narrow(cable_beyond(stage, Side::Server)));
}

fn the_device_of_a_relay_behind_another_gets_a_lower_mtu(stage: &Stage) {
    with_a_relay_in_front(stage, || narrow(cable_of_the_relay(stage, Side::Server)));
}

fn the_device_of_a_relay_before_another_gets_a_lower_mtu(stage: &Stage) {
    with_a_relay_in_front(stage, || narrow(cable_beyond(stage, Side::Client)));
}

/// The error comes in on lo, from an address of this host to another. The client's segments are super-packets of lo.
fn a_client_on_the_relays_host_hears_of_it(stage: &Stage) {
    // Only by name is it told to send segments that the path takes.
    let is_spliced = stage.engine() == "segment";
    let connect = || Peer::connect(stage.hop().address());
    let client = stage.lab().relay().enter(connect).expect("entered");
    let connection = Connection {
        client,
        server: stage.target().accept(),
    };
    connection.moves_a_byte(Side::Client);
    if is_spliced {
        until("it is spliced", || stage.hop().are_spliced(1));
    }
    narrow(cable_beyond(stage, Side::Server));
    move_some(&connection, BYTES);
    stage.expect_ended(1, IN_ORDER);
}

with_each_engine!(a_client_on_the_relays_host_hears_of_it, routed);
with_each_engine!(a_router_towards_the_server_lowers_its_mtu, routed);
with_each_engine!(a_router_towards_the_client_lowers_its_mtu, routed);
with_each_engine!(the_relays_device_towards_the_server_gets_a_lower_mtu);
with_each_engine!(the_relays_device_towards_the_client_gets_a_lower_mtu);
with_each_engine!(several_links_towards_the_server_lower_their_mtu, routed);
with_each_engine!(several_links_towards_the_client_lower_their_mtu, routed);
with_each_engine!(a_path_is_narrow_from_the_beginning, routed);
with_each_engine!(a_path_is_narrow_for_streams_that_begin_at_once, routed);
with_each_engine!(a_link_towards_the_server_loses_what_is_too_long, routed);
with_each_engine!(a_link_towards_the_client_loses_what_is_too_long, routed);
with_each_engine!(a_router_behind_two_relays_lowers_its_mtu, routed);
with_each_engine!(
    the_device_of_a_relay_behind_another_gets_a_lower_mtu,
    routed
);
with_each_engine!(
    the_device_of_a_relay_before_another_gets_a_lower_mtu,
    routed
);
