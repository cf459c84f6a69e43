//! A peer's segments come in by another device than before, as after a change of a route on the way: the stack does not
//! mind, and spliced connections go back to their sockets.

use std::net::{Ipv4Addr, Ipv6Addr};

use netlab::{Lab, Namespace};

use super::connection::Side;
use super::hops::ip;
use super::path_mtu::goes_on;
use super::stage::{Family, Stage};
use super::untranslated::expect_return;

/// The second cable between the relay and a router: its device at both ends.
const SECOND: &str = "second";
const NETWORK_V4: &str = "198.18.6";
const NETWORK_V6: &str = "2001:2:0:6:";

/// Where a router reaches the relay, on its side.
fn relay_addresses(side: Side) -> (Ipv4Addr, Ipv6Addr) {
    match side {
        Side::Client => (Lab::RELAY_V4, Lab::RELAY_V6),
        Side::Server => (Lab::RELAY_FAR_V4, Lab::RELAY_FAR_V6),
    }
}

fn router(stage: &Stage, side: Side) -> &Namespace {
    match side {
        Side::Client => stage.lab().client(),
        Side::Server => stage.lab().server(),
    }
}

/// Before the relay has spliced anything.
fn lay_second_cable(stage: &Stage, side: Side) {
    let (relay, router) = (stage.lab().relay(), router(stage, side));
    let to = router.name();
    ip(
        relay,
        &format!("link add {SECOND} type veth peer name {SECOND} netns {to}"),
    );
    for (namespace, number) in [(relay, 1), (router, 2)] {
        namespace
            .set_sysctl(&format!("net.ipv6.conf.{SECOND}.accept_dad"), "0")
            .expect("set");
        for device in ["all", SECOND] {
            let filter = format!("net.ipv4.conf.{device}.rp_filter");
            namespace.set_sysctl(&filter, "0").expect("set");
        }
        for address in [
            format!("{NETWORK_V4}.{number}/24"),
            format!("{NETWORK_V6}:{number}/64"),
        ] {
            ip(namespace, &format!("address add {address} dev {SECOND}"));
        }
        ip(namespace, &format!("link set {SECOND} up"));
    }
}

/// What the router on this side sends to the relay takes the second cable from now on.
fn divert(stage: &Stage, side: Side) {
    let (v4, v6) = relay_addresses(side);
    let route = match stage.family() {
        Family::V4 => format!("route add {v4}/32 via {NETWORK_V4}.1 dev {SECOND}"),
        Family::V6 => format!("-6 route add {v6}/128 via {NETWORK_V6}:1 dev {SECOND}"),
    };
    ip(router(stage, side), &route);
}

fn goes_on_by_another_device(stage: &Stage, side: Side) {
    lay_second_cable(stage, side);
    goes_on(stage, |_| divert(stage, side));
    expect_return(stage, "come by another device");
}

fn a_client_comes_by_another_device(stage: &Stage) {
    goes_on_by_another_device(stage, Side::Client);
}

fn a_server_comes_by_another_device(stage: &Stage) {
    goes_on_by_another_device(stage, Side::Server);
}

with_each_engine!(a_client_comes_by_another_device, routed);
with_each_engine!(a_server_comes_by_another_device, routed);
