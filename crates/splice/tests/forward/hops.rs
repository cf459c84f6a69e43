//! Routers on both sides of the relay.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlab::{Lab, Namespace};

/// A client and a server one hop further away: the lab's own are routers.
pub(crate) struct Hops {
    /// Beyond the lab's client.
    pub(crate) near: Namespace,
    /// Beyond the lab's server.
    pub(crate) far: Namespace,
}

impl Hops {
    pub(crate) const FAR_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 5, 2);
    pub(crate) const FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 5, 0, 0, 0, 2);
    /// The address of the router on the client's side that the client knows.
    #[allow(dead_code, reason = "not every user has a relay there")]
    pub(crate) const NEAR_ROUTER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 4, 1);
    #[allow(dead_code, reason = "not every user has a relay there")]
    pub(crate) const NEAR_ROUTER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 4, 0, 0, 0, 1);
    /// A router's device away from the relay.
    pub(crate) const OUTWARD: &str = "outward";
    /// The only device of the client, and of the server.
    pub(crate) const INWARD: &str = "inward";

    pub(crate) fn behind(lab: &Lab) -> Self {
        let far = beyond(
            lab,
            lab.server(),
            [Lab::SERVER_V4.into(), Lab::SERVER_V6.into()],
            5,
        );
        let near = beyond(
            lab,
            lab.client(),
            [Lab::CLIENT_V4.into(), Lab::CLIENT_V6.into()],
            4,
        );
        Self { near, far }
    }
}

/// A namespace behind a router of the lab, in the networks with this number.
fn beyond(lab: &Lab, router: &Namespace, [v4, v6]: [IpAddr; 2], network: u8) -> Namespace {
    let host = Namespace::new("beyond").expect("a namespace");
    let (outward, inward) = (Hops::OUTWARD, Hops::INWARD);
    let to = host.name();
    ip(
        router,
        &format!("link add {outward} type veth peer name {inward} netns {to}"),
    );
    for (namespace, device, number) in [(router, outward, 1), (&host, inward, 2)] {
        let dad = format!("net.ipv6.conf.{device}.accept_dad");
        namespace.set_sysctl(&dad, "0").expect("set");
        ip(
            namespace,
            &format!("address add 198.18.{network}.{number}/24 dev {device}"),
        );
        ip(
            namespace,
            &format!("address add 2001:2:0:{network}::{number}/64 dev {device} nodad"),
        );
        ip(namespace, &format!("link set {device} up"));
    }
    ip(&host, &format!("route add default via 198.18.{network}.1"));
    ip(
        &host,
        &format!("-6 route add default via 2001:2:0:{network}::1"),
    );
    for forwarding in ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"] {
        router.set_sysctl(forwarding, "1").expect("set");
    }
    ip(
        lab.relay(),
        &format!("route add 198.18.{network}.0/24 via {v4}"),
    );
    ip(
        lab.relay(),
        &format!("-6 route add 2001:2:0:{network}::/64 via {v6}"),
    );
    host
}

/// Runs `ip`, and tells what it says.
pub(crate) fn ip(namespace: &Namespace, arguments: &str) -> String {
    let done = namespace
        .command("ip")
        .args(arguments.split(' '))
        .output()
        .expect("ip runs");
    assert!(done.status.success(), "ip {arguments}: {done:?}");
    String::from_utf8(done.stdout).expect("text")
}
