//! The relay's host on one side of a routed stage: routes, rules, addresses and devices there.

use netlab::{Lab, Namespace};

use super::connection::Side;
use super::hops::ip;
use super::stage::{Family, Stage};

/// The relay's host on one side: what its ways there consist of.
pub(super) struct Site<'a> {
    pub(super) stage: &'a Stage,
    pub(super) side: Side,
}

impl Site<'_> {
    fn version(&self) -> &'static str {
        match self.stage.family() {
            Family::V4 => "-4",
            Family::V6 => "-6",
        }
    }

    /// The device of the relay's host.
    pub(super) fn device(&self) -> &'static str {
        match self.side {
            Side::Client => Lab::TO_CLIENT,
            Side::Server => Lab::TO_SERVER,
        }
    }

    pub(super) fn device_index(&self) -> u32 {
        let listed = ip(
            self.stage.lab().relay(),
            &format!("-o link show {}", self.device()),
        );
        let (index, _) = listed.split_once(':').expect("a device");
        index.parse().expect("an index")
    }

    /// The network of the peer, behind a router.
    pub(super) fn network(&self) -> String {
        let number = match self.side {
            Side::Client => 4,
            Side::Server => 5,
        };
        match self.stage.family() {
            Family::V4 => format!("198.18.{number}.0/24"),
            Family::V6 => format!("2001:2:0:{number}::/64"),
        }
    }

    /// The address of the relay's host.
    pub(super) fn address(&self) -> String {
        match (self.stage.family(), self.side) {
            (Family::V4, Side::Client) => format!("{}/24", Lab::RELAY_V4),
            (Family::V4, Side::Server) => format!("{}/24", Lab::RELAY_FAR_V4),
            (Family::V6, Side::Client) => format!("{}/64", Lab::RELAY_V6),
            (Family::V6, Side::Server) => format!("{}/64", Lab::RELAY_FAR_V6),
        }
    }

    fn router(&self) -> String {
        match (self.stage.family(), self.side) {
            (Family::V4, Side::Client) => Lab::CLIENT_V4.to_string(),
            (Family::V4, Side::Server) => Lab::SERVER_V4.to_string(),
            (Family::V6, Side::Client) => Lab::CLIENT_V6.to_string(),
            (Family::V6, Side::Server) => Lab::SERVER_V6.to_string(),
        }
    }

    /// Runs `ip` on the relay's host, for the addresses of the stage.
    pub(super) fn ip(&self, arguments: &str) {
        let version = self.version();
        ip(self.stage.lab().relay(), &format!("{version} {arguments}"));
    }

    /// A policy of IPsec for what leaves to the peer: `add`, `del`.
    pub(super) fn block(&self, how: &str) {
        let any = match self.stage.family() {
            Family::V4 => "0.0.0.0/0",
            Family::V6 => "::/0",
        };
        let action = if how == "add" { " action block" } else { "" };
        let network = self.network();
        let policy = format!("xfrm policy {how} src {any} dst {network} dir out{action}");
        ip(self.stage.lab().relay(), &policy);
    }

    pub(super) fn has_address(&self) -> bool {
        let (version, device) = (self.version(), self.device());
        let list = format!("{version} addr show dev {device}");
        ip(self.stage.lab().relay(), &list).contains(&self.address())
    }

    pub(super) fn restore_route(&self) {
        self.use_route("");
    }

    /// The route to the network of the peer, with these attributes as well.
    pub(super) fn use_route(&self, attributes: &str) {
        self.ip(&format!("route replace {}{attributes}", self.way()));
    }

    /// That network, and how the relay's host reaches it.
    pub(super) fn way(&self) -> String {
        let (network, router) = (self.network(), self.router());
        format!("{network} via {router} dev {}", self.device())
    }

    fn router_host(&self) -> &Namespace {
        match self.side {
            Side::Client => self.stage.lab().client(),
            Side::Server => self.stage.lab().server(),
        }
    }

    /// Another address of the router.
    fn second_router(&self) -> String {
        match (self.stage.family(), self.side) {
            (Family::V4, Side::Client) => "198.18.1.9".into(),
            (Family::V4, Side::Server) => "198.18.2.9".into(),
            (Family::V6, Side::Client) => "2001:2:0:1::9".into(),
            (Family::V6, Side::Server) => "2001:2:0:2::9".into(),
        }
    }

    /// Sends to the router by its other address; who sends to the first one is not heard any more.
    pub(super) fn use_second_router(&self) {
        const NOBODY: &str = "02:00:00:00:00:01";
        let [first, second] = [self.router(), self.second_router()];
        let width = match self.stage.family() {
            Family::V4 => "24",
            Family::V6 => "64",
        };
        let version = self.version();
        let there = Lab::TO_RELAY;
        let nodad = self.nodad();
        let add = format!("{version} addr add {second}/{width} dev {there}{nodad}");
        ip(self.router_host(), &add);
        let (network, device) = (self.network(), self.device());
        self.ip(&format!(
            "route replace {network} via {second} dev {device}"
        ));
        let mute = format!("neigh replace {first} lladdr {NOBODY} nud permanent dev {device}");
        self.ip(&mute);
    }

    /// Joins the relay's host and the router by another cable, and sends there.
    pub(super) fn use_second_cable(&self) {
        let (router, device) = self.add_second_cable();
        let network = self.network();
        self.ip(&format!(
            "route replace {network} via {router} dev {device}"
        ));
    }

    /// The same, but by both cables.
    pub(super) fn use_both_cables(&self) {
        let (router, device) = self.add_second_cable();
        let hops = [(self.router(), self.device()), (router, device)];
        let hops = hops.map(|(router, device)| format!(" nexthop via {router} dev {device}"));
        let (network, hops) = (self.network(), hops.concat());
        self.ip(&format!("route replace {network}{hops}"));
    }

    /// Returns the router's address there, and the device of the relay's host.
    fn add_second_cable(&self) -> (String, &'static str) {
        const THERE: &str = "second";
        let (here, number) = match self.side {
            Side::Client => ("second-client", 6),
            Side::Server => ("second-server", 7),
        };
        let relay = self.stage.lab().relay();
        let router = self.router_host();
        let to = router.name();
        ip(
            relay,
            &format!("link add {here} type veth peer name {THERE} netns {to}"),
        );
        let address = |host: u8| match self.stage.family() {
            Family::V4 => format!("198.18.{number}.{host}"),
            Family::V6 => format!("2001:2:0:{number}::{host}"),
        };
        for (host, device, number) in [(relay, here, 1), (router, THERE, 2)] {
            let dad = format!("net.ipv6.conf.{device}.accept_dad");
            host.set_sysctl(&dad, "0").expect("set");
            let (version, nodad) = (self.version(), self.nodad());
            let width = if version == "-4" { "24" } else { "64" };
            let address = address(number);
            ip(
                host,
                &format!("{version} addr add {address}/{width} dev {device}{nodad}"),
            );
            ip(host, &format!("link set {device} up"));
        }
        (address(2), here)
    }

    fn nodad(&self) -> &'static str {
        match self.stage.family() {
            Family::V4 => "",
            Family::V6 => " nodad",
        }
    }

    /// Takes the device out of the relay's host, and with it the other end of the cable. Whoever is on this side loses it
    /// as well: `by_router` says who has it deleted.
    pub(super) fn remove_cable(&self, by_router: bool) {
        let relay = self.stage.lab().relay();
        match by_router {
            true => ip(self.router_host(), &format!("link del {}", Lab::TO_RELAY)),
            false => ip(relay, &format!("link del {}", self.device())),
        };
    }

    /// Lays a cable as the one before.
    pub(super) fn renew_cable(&self) {
        let (relay, router) = (self.stage.lab().relay(), self.router_host());
        let (here, there, to) = (self.device(), Lab::TO_RELAY, router.name());
        ip(
            relay,
            &format!("link add {here} type veth peer name {there} netns {to}"),
        );
        let width = match self.stage.family() {
            Family::V4 => "24",
            Family::V6 => "64",
        };
        let of_router = format!("{}/{width}", self.router());
        let (version, nodad) = (self.version(), self.nodad());
        for (host, device, address) in [(relay, here, self.address()), (router, there, of_router)] {
            let dad = format!("net.ipv6.conf.{device}.accept_dad");
            host.set_sysctl(&dad, "0").expect("set");
            let add = format!("{version} addr add {address} dev {device}{nodad}");
            ip(host, &add);
            ip(host, &format!("link set {device} up"));
        }
        let address = self.address();
        let (relay, _) = address.split_once('/').expect("a width");
        ip(router, &format!("{version} route add default via {relay}"));
        self.restore_route();
    }

    pub(super) fn restore_address(&self) {
        let (address, device, nodad) = (self.address(), self.device(), self.nodad());
        self.ip(&format!("addr replace {address} dev {device}{nodad}"));
    }
}
