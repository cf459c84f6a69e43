//! Routes of the relay's host that let less through than their device (`ip route ... mtu`). With `copy` the sockets send
//! shorter segments from the next one on. Nobody else knows of such a route: a spliced connection goes back to its sockets.

use std::net::{SocketAddr, UdpSocket};

use netlab::Lab;
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};

use super::connection::Side;
use super::hops::ip;
use super::path_mtu::{
    CONNECTIONS, SMALL_MTU, cable_beyond, cable_of_the_relay, goes_on, has_ethtool, move_some,
    narrow, send_no_super_packets, set_mtu,
};
use super::routes::{expect_spliced, move_a_number, until_looked_at};
use super::site::Site;
use super::stage::{Family, IN_ORDER, Stage};
use super::untranslatable::stay_with_their_sockets;
use super::untranslated::expect_return;
use crate::patience::until;

pub(super) const TOO_NARROW: &str =
    "is reached by a route whose MTU is smaller than what the other peer may send";

const BYTES: u64 = 4 << 20;

/// From then on the link loses what is too long for the route, and tells nobody.
fn becomes_narrow(stage: &Stage, side: Side, change: impl FnOnce(&Site<'_>)) {
    if !has_ethtool() {
        return;
    }
    let [relay, (router, device)] = cable_of_the_relay(stage, side);
    send_no_super_packets(relay);
    goes_on(stage, |_| {
        change(&Site { stage, side });
        set_mtu(router, device, SMALL_MTU);
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
    });
    expect_return(stage, TOO_NARROW);
}

fn a_route_gets_a_smaller_mtu(stage: &Stage, side: Side) {
    becomes_narrow(stage, side, |site| {
        site.use_route(&format!(" mtu {SMALL_MTU}"));
    });
}

fn a_route_towards_the_client_gets_a_smaller_mtu(stage: &Stage) {
    a_route_gets_a_smaller_mtu(stage, Side::Client);
}

fn a_route_towards_the_server_gets_a_smaller_mtu(stage: &Stage) {
    a_route_gets_a_smaller_mtu(stage, Side::Server);
}

/// One that no ICMP error changes.
fn a_route_gets_a_smaller_mtu_for_good(stage: &Stage) {
    becomes_narrow(stage, Side::Server, |site| {
        site.use_route(&format!(" mtu lock {SMALL_MTU}"));
    });
}

fn a_rule_leads_to_a_narrower_route(stage: &Stage) {
    becomes_narrow(stage, Side::Client, |site| {
        site.use_route(&format!(" mtu {SMALL_MTU} table 77"));
        site.ip(&format!("rule add to {} table 77 pref 5", site.network()));
    });
}

with_each_engine!(a_route_towards_the_client_gets_a_smaller_mtu, routed);
with_each_engine!(a_route_towards_the_server_gets_a_smaller_mtu, routed);
with_each_engine!(a_route_gets_a_smaller_mtu_for_good, routed);
with_each_engine!(a_rule_leads_to_a_narrower_route, routed);

/// As a router may advertise it (RFC 4861, 4.6.4), beside the device's own MTU. Nothing reports this.
fn the_mtu_of_ipv6_becomes_smaller(stage: &Stage) {
    becomes_narrow(stage, Side::Server, |site| {
        let name = format!("net.ipv6.conf.{}.mtu", site.device());
        let set = (stage.lab().relay()).set_sysctl(&name, &SMALL_MTU.to_string());
        set.expect("set");
    });
}

mod the_mtu_of_ipv6_becomes_smaller {
    use super::super::stage::{Family, Stage};
    use super::the_mtu_of_ipv6_becomes_smaller as case;

    #[test]
    fn copy() {
        Stage::routed("copy", Family::V6, case);
    }

    #[test]
    fn auto() {
        Stage::routed("auto", Family::V6, case);
    }

    #[test]
    fn segment() {
        Stage::routed("segment", Family::V6, case);
    }
}

/// Another socket of the host has sent what was too long. The connections are idle, so that nothing else tells of it.
fn the_host_learns_of_a_narrower_path(stage: &Stage) {
    let connections = stage.connect(CONNECTIONS);
    narrow(cable_beyond(stage, Side::Server));
    let peer: SocketAddr = stage.target().address.parse().expect("an address");
    let relay = stage.lab().relay();
    let sent = relay.enter(|| send_too_much(peer));
    sent.expect("entered");
    if stage.splices() {
        until("all have gone back", || stage.hop().are_spliced(0));
    }
    for connection in &connections {
        move_some(connection, BYTES);
    }
    stage.expect_ended(connections.len(), IN_ORDER);
    expect_return(stage, TOO_NARROW);
}

fn send_too_much(peer: SocketAddr) {
    let any = match peer {
        SocketAddr::V4(_) => "0.0.0.0:0",
        SocketAddr::V6(_) => "[::]:0",
    };
    let socket = UdpSocket::bind(any).expect("a socket");
    let discovery = match peer {
        SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, Ipv4PathMtuDiscovery::DO),
        SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, Ipv6PathMtuDiscovery::DO),
    };
    discovery.expect("it is set");
    socket.connect(peer).expect("a route");
    until("the host has learned", || {
        let mtu = match peer {
            SocketAddr::V4(_) => sockopt::ip_mtu(&socket),
            SocketAddr::V6(_) => sockopt::ipv6_mtu(&socket),
        };
        // It fails once it knows.
        let _ = socket.send(&[0; 1400]);
        mtu.expect("a route") == SMALL_MTU
    });
}

with_each_engine!(the_host_learns_of_a_narrower_path, routed);

/// What the peers may send still fits, or the route only says what to announce to new ones.
fn a_route_changes_and_is_wide_enough(stage: &Stage) {
    goes_on(stage, |_| {
        for side in Side::BOTH {
            let site = Site { stage, side };
            for attributes in [" mtu 1500", " advmss 1000", " mtu 1500 advmss 1000"] {
                site.use_route(attributes);
                until_looked_at(stage);
            }
        }
    });
    expect_spliced(stage);
}

with_each_engine!(a_route_changes_and_is_wide_enough, routed);

/// The route to the network of the peers on one side, of either family.
fn narrow_route(lab: &Lab, side: Side) {
    let device = match side {
        Side::Client => Lab::TO_CLIENT,
        Side::Server => Lab::TO_SERVER,
    };
    for version in ["-4", "-6"] {
        let routes = ip(lab.relay(), &format!("{version} route show dev {device}"));
        let mut lines = routes.lines().filter(|route| route.contains(" via "));
        let route = lines.next().expect("one by a router").trim();
        let change = format!("{version} route change {route} dev {device} mtu {SMALL_MTU}");
        ip(lab.relay(), &change);
    }
}

/// The relay's sockets tell both peers of it when they connect.
fn both_routes_are_narrow_from_the_beginning(stage: &Stage) {
    goes_on(stage, |connections| move_a_number(&connections[0]));
    expect_spliced(stage);
}

/// By name the listener tells the clients of it. With `auto` they may send more than the route takes.
fn the_servers_route_is_narrow_from_the_beginning(stage: &Stage) {
    if stage.engine() == "segment" {
        return both_routes_are_narrow_from_the_beginning(stage);
    }
    stay_with_their_sockets(stage, &format!("takes {SMALL_MTU}"));
}

/// The listener has announced what the routes took when the relay began. Such a pair is not reset by name either.
fn the_servers_route_becomes_narrow_before_a_connection(stage: &Stage) {
    narrow_route(stage.lab(), Side::Server);
    stay_with_their_sockets(stage, &format!("takes {SMALL_MTU}"));
}

/// A test of a case for each engine and IP version, where the routes to the peers on these sides are narrow before the relay
/// begins.
macro_rules! with_each_engine_behind {
    ($case:ident, $sides:expr) => {
        mod $case {
            use super::*;

            fn with(engine: &str, family: Family) {
                let prepare =
                    |lab: &Lab| $sides.into_iter().for_each(|side| narrow_route(lab, side));
                Stage::routed_after(prepare, engine, family, super::$case);
            }

            #[test]
            fn copy_v4() {
                with("copy", Family::V4);
            }

            #[test]
            fn copy_v6() {
                with("copy", Family::V6);
            }

            #[test]
            fn auto_v4() {
                with("auto", Family::V4);
            }

            #[test]
            fn auto_v6() {
                with("auto", Family::V6);
            }

            #[test]
            fn segment_v4() {
                with("segment", Family::V4);
            }

            #[test]
            fn segment_v6() {
                with("segment", Family::V6);
            }
        }
    };
}

with_each_engine_behind!(both_routes_are_narrow_from_the_beginning, Side::BOTH);
with_each_engine_behind!(
    the_servers_route_is_narrow_from_the_beginning,
    [Side::Server]
);
with_each_engine!(the_servers_route_becomes_narrow_before_a_connection, routed);
