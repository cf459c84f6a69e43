//! The way of a connection's segments: by which device they leave, to whom, and whether any come in.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;

use crate::netlink::Socket;
use crate::route::{Route, Routes};

/// Its index in every network namespace (`loopback_net_init`).
pub(crate) const LOOPBACK: u32 = 1;

/// The ends of a TCP connection of this host, by which its way is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Of the socket here.
    pub local: SocketAddr,
    /// Of its peer.
    pub peer: SocketAddr,
    /// Of the segments that the socket sends (`IP_TOS`, `IPV6_TCLASS`).
    pub type_of_service: u8,
    /// The socket's address need not be this host's (`IP_TRANSPARENT`): rules bring its segments here, and no route is
    /// asked for by it.
    pub is_transparent: bool,
}

/// Whether the stack takes segments of a connection, and where it sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// None comes in without: this host does not have the connection's address any more, a rule stops it
    /// (`ip rule ... iif`), or there is no route to where it comes from (`rp_filter`).
    pub comes_in: bool,
    /// None leaves without: there is no route, or one that says so (`blackhole`, `prohibit`, `unreachable`).
    pub route: Option<Route>,
}

/// Reads the ways of connections in one network namespace.
#[derive(Debug)]
pub struct Ways(Routes);

/// Is notified when devices, addresses, routes or rules change.
#[derive(Debug)]
pub struct WayChanges(Socket);

impl Ends {
    /// The address that its routes are asked for by.
    fn source(&self) -> SocketAddr {
        let any = match self.local.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let address = if self.is_transparent {
            any
        } else {
            self.local.ip()
        };
        SocketAddr::new(address, self.local.port())
    }
}

impl Ways {
    /// For this thread's network namespace.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Routes::new().map(Self)
    }

    /// The way of a connection now, whose segments come in on a device. If that is gone, others come in where the
    /// connection's own leave.
    ///
    /// # Errors
    /// If netlink fails.
    pub fn of(&mut self, ends: &Ends, device: u32) -> io::Result<Way> {
        let route = self.out(ends)?;
        let comes_in = match (self.comes_in(ends, device)?, route) {
            (Some(comes_in), _) => comes_in,
            (None, Some(route)) => self.comes_in(ends, route.device)?.unwrap_or(false),
            (None, None) => false,
        };
        Ok(Way { comes_in, route })
    }

    /// The route of a connection now. IPv6 has one whether or not the source is this host's.
    ///
    /// # Errors
    /// If netlink fails.
    pub fn out(&mut self, ends: &Ends) -> io::Result<Option<Route>> {
        match (self.0).of_connection(ends.source(), ends.peer, ends.type_of_service) {
            Err(error) if is_invalid(&error) => Ok(None),
            route => route,
        }
    }

    /// The route of a connection whose segments leave by this device in any case, as `bpf_redirect_neigh` has them.
    ///
    /// # Errors
    /// If netlink fails.
    pub fn by(&mut self, ends: &Ends, device: u32) -> io::Result<Option<Route>> {
        let [local, peer] = [ends.source(), ends.peer].map(|end| end.ip());
        match (self.0).by_device(local, peer, ends.type_of_service, device) {
            Err(error) if is_invalid(&error) => Ok(None),
            route => route,
        }
    }

    /// Whether a connection over IPv6 is sent to several next hops, some of them on this device and some on another one.
    /// The stack chooses by the flow label, of which a packet that is redirected has another one than the socket's, and
    /// then sends to a next hop of another device on this one (`bpf_redirect_neigh`, `fib6_select_path`). IPv4 chooses on
    /// the device.
    ///
    /// # Errors
    /// If netlink fails.
    pub fn is_spread(&mut self, ends: &Ends, device: u32) -> io::Result<bool> {
        if ends.peer.is_ipv4() {
            return Ok(false);
        }
        match (self.0).devices(ends.source(), ends.peer, ends.type_of_service) {
            Err(error) if is_invalid(&error) => Ok(false),
            devices => {
                let devices = devices?;
                // 0 may be any of them.
                let has = |hop: &u32| devices.contains(hop);
                let has_others = devices.iter().any(|hop| *hop != device);
                Ok(has_others && (has(&device) || has(&0)))
            }
        }
    }

    /// Whether this host takes segments that come in on a device; `None` if there is no such device.
    fn comes_in(&mut self, ends: &Ends, device: u32) -> io::Result<Option<bool>> {
        let Ends { local, peer, .. } = *ends;
        if ends.is_transparent {
            // Rules bring them here by marks of packet filters, which are not known.
            Ok(Some(true))
        } else if device == LOOPBACK {
            // They keep the route by which they left.
            self.0.is_local(local, None).map(Some)
        } else {
            self.0.comes_in(peer, local, ends.type_of_service, device)
        }
    }
}

impl WayChanges {
    /// Notifications for this thread's network namespace, from now on.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Socket::listening_for_ways().map(Self)
    }

    /// Reads all pending notifications. Returns whether anything may have changed.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn any(&mut self) -> io::Result<bool> {
        self.0.drain()
    }
}

impl AsFd for WayChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The answer of a `blackhole` (`fib_props`, `ip6_rt_type_to_error`), and about a source that this host does not have
/// (`ip_route_output_key_hash_rcu`).
fn is_invalid(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::INVAL.raw_os_error())
}

#[cfg(test)]
mod tests {
    use netlab::{Namespace, Need, available};
    use rustix::net::netdevice::name_to_index;
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    fn ip(namespace: &Namespace, commands: &[&str]) {
        for command in commands {
            let done = namespace.command("ip").args(command.split(' ')).output();
            let done = done.expect("ip runs");
            assert!(done.status.success(), "ip {command}: {done:?}");
        }
    }

    fn index_of(namespace: &Namespace, device: &str) -> u32 {
        let index = namespace.enter(|| {
            let socket = socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
            name_to_index(&socket, device)
        });
        index.expect("entered").expect("an index")
    }

    fn ends(local: &str, peer: &str) -> Ends {
        let at = |address: &str, port| SocketAddr::new(address.parse().expect("an address"), port);
        Ends {
            local: at(local, 80),
            peer: at(peer, 2000),
            type_of_service: 0,
            is_transparent: false,
        }
    }

    /// Each change is told, and has the effect that it has on the stack.
    #[test]
    fn a_way_follows_routes_rules_addresses_and_devices() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("ways").expect("a namespace");
        ip(
            &here,
            &[
                "link add one type veth peer name two",
                "addr add 198.18.1.1/24 dev one",
                "-6 addr add 2001:2:0:1::1/64 dev one nodad",
                "link set one up",
                "link set two up",
            ],
        );
        let (mut ways, mut changes) = here
            .enter(|| Ok::<_, io::Error>((Ways::new()?, WayChanges::new()?)))
            .expect("entered")
            .expect("netlink");
        let device = index_of(&here, "one");
        for (version, local, peer, gateways) in [
            // First, since its addresses do not survive that the device is down.
            (
                "-6",
                "2001:2:0:1::1",
                "2001:2:0:9::9",
                ["2001:2:0:1::8", "2001:2:0:1::9"],
            ),
            (
                "-4",
                "198.18.1.1",
                "198.18.9.9",
                ["198.18.1.8", "198.18.1.9"],
            ),
        ] {
            let ends = ends(local, peer);
            let foreign = Ends {
                local: ends.peer,
                is_transparent: true,
                ..ends
            };
            let way = ways.of(&foreign, device).expect("netlink");
            assert!(way.comes_in, "{way:?}");
            // Another thread of the kernel notices that the device is up (linkwatch).
            netlab::until("this host has the address", || {
                ways.of(&ends, device).expect("netlink").comes_in
            });
            let width = if version == "-4" { 24 } else { 64 };
            let mut after = |commands: &[&str]| {
                let _ = changes.any();
                let commands: Vec<_> = commands
                    .iter()
                    .map(|command| format!("{version} {command}"))
                    .collect();
                ip(
                    &here,
                    &commands.iter().map(String::as_str).collect::<Vec<_>>(),
                );
                assert!(changes.any().expect("it hears"), "{commands:?}");
                ways.of(&ends, device).expect("an answer")
            };
            let unrouted = after(&["route add table 77 unreachable default"]);
            assert_eq!((unrouted.comes_in, unrouted.route), (true, None));
            let [one, two] = gateways.map(|gateway| {
                let way = after(&[&format!("route replace {peer} via {gateway} dev one")]);
                let route = way.route.expect("a route");
                assert_eq!(route.next_hop, Some(gateway.parse().expect("an address")));
                route
            });
            assert_eq!(one.device, two.device);
            for kind in ["blackhole", "prohibit", "unreachable"] {
                let prefer = if version == "-4" { "" } else { " metric 1" };
                let unrouted = after(&[
                    &format!("route del {peer}"),
                    &format!("route add {kind} {peer}{prefer}"),
                ]);
                assert_eq!((unrouted.comes_in, unrouted.route), (true, None), "{kind}");
                let back = after(&[
                    &format!("route del {kind} {peer}{prefer}"),
                    &format!("route add {peer} via {} dev one", gateways[1]),
                ]);
                assert_eq!(back.route, Some(two));
            }
            let rule = "ipproto tcp sport 80 table 77 pref 5";
            assert_eq!(after(&[&format!("rule add {rule}")]).route, None);
            assert_eq!(after(&[&format!("rule del {rule}")]).route, Some(two));
            let elsewhere = after(&[&format!("addr del {local}/{width} dev one")]);
            assert!(!elsewhere.comes_in, "{elsewhere:?}");
            if version == "-4" {
                assert_eq!(elsewhere.route, None);
            }
            let nodad = if version == "-4" { "" } else { " nodad" };
            let back = after(&[
                &format!("addr add {local}/{width} dev one{nodad}"),
                &format!("route replace {peer} via {} dev one", gateways[1]),
            ]);
            assert_eq!(back.route, Some(two));
            assert_ne!(after(&["link set one down"]).route, Some(two));
            after(&["link set one up"]);
        }
    }

    /// Another one with the same address may take its place.
    #[test]
    fn a_way_whose_device_is_gone_is_that_by_which_segments_leave() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("ways").expect("a namespace");
        let lay = [
            "link add one type veth peer name two",
            "addr add 198.18.1.1/24 dev one",
            "-6 addr add 2001:2:0:1::1/64 dev one nodad",
            "link set one up",
            "link set two up",
        ];
        ip(&here, &lay);
        let mut ways = here.enter(Ways::new).expect("entered").expect("netlink");
        let device = index_of(&here, "one");
        let all = [
            ends("198.18.1.1", "198.18.1.9"),
            ends("2001:2:0:1::1", "2001:2:0:1::9"),
        ];
        ip(&here, &["link del one"]);
        for ends in &all {
            let way = ways.of(ends, device).expect("an answer");
            assert_eq!((way.comes_in, way.route), (false, None));
        }
        ip(&here, &lay);
        for ends in &all {
            // Another thread of the kernel notices that the device is up (linkwatch).
            netlab::until("this host has the address", || {
                ways.of(ends, device).expect("an answer").comes_in
            });
            let way = ways.of(ends, device).expect("an answer");
            assert_ne!(way.route.expect("a route").device, device);
        }
    }

    #[test]
    fn a_route_tells_how_long_packets_may_be() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("ways").expect("a namespace");
        ip(
            &here,
            &[
                "link add one type veth peer name two",
                "addr add 198.18.1.1/24 dev one",
                "-6 addr add 2001:2:0:1::1/64 dev one nodad",
                "link set one up",
                "link set two up",
            ],
        );
        let mut ways = here.enter(Ways::new).expect("entered").expect("netlink");
        for (ends, route) in [
            (
                ends("198.18.1.1", "198.18.9.9"),
                "route replace 198.18.9.9 via 198.18.1.8 dev one",
            ),
            (
                ends("2001:2:0:1::1", "2001:2:0:9::9"),
                "-6 route replace 2001:2:0:9::9 via 2001:2:0:1::8 dev one",
            ),
        ] {
            for (metrics, mtu) in [
                ("", None),
                (" mtu 1400", Some(1400)),
                (" mtu lock 1300", Some(1300)),
                (" advmss 1300", None),
            ] {
                ip(&here, &[&format!("{route}{metrics}")]);
                let found = ways.out(&ends).expect("an answer").expect("a route");
                assert_eq!(found.mtu, mtu, "{route}{metrics}");
            }
        }
    }

    /// What leaves by a given device goes to the next hop there.
    #[test]
    fn a_way_by_a_device_is_told_apart() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("ways").expect("a namespace");
        ip(
            &here,
            &[
                "link add one type veth peer name two",
                "addr add 198.18.1.1/24 dev one",
                "addr add 198.18.2.1/24 dev two",
                "link set one up",
                "link set two up",
                "route add 198.18.9.9 via 198.18.1.8 dev one",
                "route add 198.18.9.9 via 198.18.2.8 dev two metric 9",
            ],
        );
        let mut ways = here.enter(Ways::new).expect("entered").expect("netlink");
        let ends = ends("198.18.1.1", "198.18.9.9");
        let first = ways.out(&ends).expect("an answer").expect("a route");
        assert_eq!(ways.by(&ends, first.device).expect("asked"), Some(first));
        // The program does not tell the ports.
        ip(
            &here,
            &[
                "route add table 77 198.18.9.9 via 198.18.1.7 dev one",
                "rule add ipproto tcp sport 80 table 77 pref 5",
            ],
        );
        let by_rule = ways.out(&ends).expect("an answer").expect("a route");
        assert_ne!(by_rule, first);
        assert_eq!(ways.by(&ends, first.device).expect("asked"), Some(first));
        ip(
            &here,
            &[
                "rule del pref 5",
                "route del 198.18.9.9 via 198.18.1.8 dev one",
            ],
        );
        let second = ways.out(&ends).expect("an answer").expect("a route");
        assert_ne!(second.device, first.device);
        assert_ne!(ways.by(&ends, first.device).expect("asked"), Some(second));
    }

    #[test]
    fn next_hops_on_several_devices_are_told() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("ways").expect("a namespace");
        ip(
            &here,
            &[
                "link add one type veth peer name two",
                "-6 addr add 2001:2:0:1::1/64 dev one nodad",
                "-6 addr add 2001:2:0:2::1/64 dev two nodad",
                "link set one up",
                "link set two up",
            ],
        );
        let mut ways = here.enter(Ways::new).expect("entered").expect("netlink");
        let ends = ends("2001:2:0:1::1", "2001:2:0:9::9");
        let device = index_of(&here, "one");
        // Another thread of the kernel notices that the device is up (linkwatch).
        netlab::until("this host has the address", || {
            ways.of(&ends, device).expect("netlink").comes_in
        });
        let hop = |network: u8, host: u8, device: &str| {
            format!(" nexthop via 2001:2:0:{network}::{host} dev {device}")
        };
        for (hops, is_spread) in [
            (hop(1, 8, "one"), false),
            (hop(1, 8, "one") + &hop(1, 9, "one"), false),
            (hop(2, 8, "two") + &hop(2, 9, "two"), false),
            (hop(1, 8, "one") + &hop(2, 8, "two"), true),
            (
                hop(1, 8, "one") + &hop(1, 9, "one") + &hop(2, 8, "two"),
                true,
            ),
        ] {
            ip(&here, &[&format!("-6 route replace 2001:2:0:9::9{hops}")]);
            let told = ways.is_spread(&ends, device).expect("an answer");
            assert_eq!(told, is_spread, "{hops}");
        }
        // As objects, of which the kernel tells only the numbers.
        here.set_sysctl("net.ipv4.nexthop_compat_mode", "0")
            .expect("set");
        ip(
            &here,
            &[
                "nexthop add id 1 via 2001:2:0:1::8 dev one",
                "nexthop add id 2 via 2001:2:0:2::8 dev two",
                "nexthop add id 3 group 1/2",
                "-6 route replace 2001:2:0:9::9 nhid 3",
            ],
        );
        assert!(ways.is_spread(&ends, device).expect("an answer"));
    }
}
