//! A peer's segments come in by another device than before, as after a change of a route on the way: the stack does not
//! mind, and spliced connections go back to their sockets.

use std::net::{Ipv4Addr, Ipv6Addr};

use netlab::{Lab, Namespace};

use super::connection::Side;
use super::hops::ip;
use super::path_mtu::goes_on;
use super::stage::{Family, Stage};
use super::untranslated::expect_return;

const NETWORK_V4: &str = "198.18";
const NETWORK_V6: &str = "2001:2:0";

/// The second cable between the relay and a router: its device at both ends.
fn second(side: Side) -> &'static str {
    match side {
        Side::Client => "second-client",
        Side::Server => "second-server",
    }
}

/// The number of that cable's network.
fn network(side: Side) -> u32 {
    match side {
        Side::Client => 6,
        Side::Server => 7,
    }
}

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
pub(super) fn lay_second_cable(stage: &Stage, side: Side) {
    let (relay, router) = (stage.lab().relay(), router(stage, side));
    let (to, device, network) = (router.name(), second(side), network(side));
    ip(
        relay,
        &format!("link add {device} type veth peer name {device} netns {to}"),
    );
    for (namespace, number) in [(relay, 1), (router, 2)] {
        namespace
            .set_sysctl(&format!("net.ipv6.conf.{device}.accept_dad"), "0")
            .expect("set");
        for device in ["all", device] {
            let filter = format!("net.ipv4.conf.{device}.rp_filter");
            namespace.set_sysctl(&filter, "0").expect("set");
        }
        for address in [
            format!("{NETWORK_V4}.{network}.{number}/24"),
            format!("{NETWORK_V6}:{network}::{number}/64"),
        ] {
            ip(namespace, &format!("address add {address} dev {device}"));
        }
        ip(namespace, &format!("link set {device} up"));
    }
}

/// What the router on this side sends to the relay takes the second cable from now on.
pub(super) fn divert(stage: &Stage, side: Side) {
    ip(router(stage, side), &route(stage, side, "add"));
}

/// It takes the first one again.
pub(super) fn take_back(stage: &Stage, side: Side) {
    ip(router(stage, side), &route(stage, side, "delete"));
}

fn route(stage: &Stage, side: Side, what: &str) -> String {
    let (v4, v6) = relay_addresses(side);
    let device = second(side);
    let network = network(side);
    match stage.family() {
        Family::V4 => format!("route {what} {v4}/32 via {NETWORK_V4}.{network}.1 dev {device}"),
        Family::V6 => {
            format!("-6 route {what} {v6}/128 via {NETWORK_V6}:{network}::1 dev {device}")
        }
    }
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
