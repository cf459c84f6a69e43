//! Three namespaces in a row.

use std::net::{Ipv4Addr, Ipv6Addr};

use anyhow::{Context, Result, ensure};

use crate::Namespace;
use crate::ip::ip;

/// `client`, `relay` and `server`, joined by two veths. The relay forwards packets.
///
/// The addresses are from the blocks that RFC 2544 (198.18.0.0/15) and RFC 5180 (2001:2::/48) reserve for
/// benchmarks, so they do not collide with a real network.
#[derive(Debug)]
pub struct Lab {
    client: Namespace,
    relay: Namespace,
    server: Namespace,
    has_ipv6: bool,
}

/// One veth: its ends, each with an interface and two addresses.
struct Cable<'a> {
    left: (&'a Namespace, &'a str, Ipv4Addr, Ipv6Addr),
    right: (&'a Namespace, &'a str, Ipv4Addr, Ipv6Addr),
}

impl Lab {
    /// The client's address.
    pub const CLIENT_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 2);
    /// The relay's address on the client's side, for a relay to listen on.
    pub const RELAY_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
    /// The relay's address on the server's side.
    pub const RELAY_FAR_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 1);
    /// The server's address.
    pub const SERVER_V4: Ipv4Addr = Ipv4Addr::new(198, 18, 2, 2);
    /// The client's address.
    pub const CLIENT_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 2);
    /// The relay's address on the client's side.
    pub const RELAY_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 1, 0, 0, 0, 1);
    /// The relay's address on the server's side.
    pub const RELAY_FAR_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 1);
    /// The server's address.
    pub const SERVER_V6: Ipv6Addr = Ipv6Addr::new(0x2001, 2, 0, 2, 0, 0, 0, 2);

    /// The relay's interface towards the client.
    pub const TO_CLIENT: &str = "to-client";
    /// The client's and the server's only interface.
    pub const TO_RELAY: &str = "to-relay";
    /// The relay's interface towards the server.
    pub const TO_SERVER: &str = "to-server";

    /// Creates the three namespaces and the veths between them. Needs root.
    pub fn new() -> Result<Self> {
        let client = Namespace::new("client")?;
        let relay = Namespace::new("relay")?;
        let server = Namespace::new("server")?;
        let has_ipv6 = relay.sysctl("net.ipv6.conf.all.forwarding")?.is_some();
        let lab = Self {
            client,
            relay,
            server,
            has_ipv6,
        };

        lab.join(&Cable {
            left: (
                &lab.client,
                Self::TO_RELAY,
                Self::CLIENT_V4,
                Self::CLIENT_V6,
            ),
            right: (&lab.relay, Self::TO_CLIENT, Self::RELAY_V4, Self::RELAY_V6),
        })?;
        lab.join(&Cable {
            left: (
                &lab.server,
                Self::TO_RELAY,
                Self::SERVER_V4,
                Self::SERVER_V6,
            ),
            right: (
                &lab.relay,
                Self::TO_SERVER,
                Self::RELAY_FAR_V4,
                Self::RELAY_FAR_V6,
            ),
        })?;
        lab.route()?;
        Ok(lab)
    }

    /// The namespace that the client runs in.
    pub fn client(&self) -> &Namespace {
        &self.client
    }

    /// The namespace that the relay runs in.
    pub fn relay(&self) -> &Namespace {
        &self.relay
    }

    /// The namespace that the server runs in.
    pub fn server(&self) -> &Namespace {
        &self.server
    }

    /// Whether the IPv6 addresses exist; some machines run without IPv6.
    pub fn has_ipv6(&self) -> bool {
        self.has_ipv6
    }

    /// Sets a sysctl in all three namespaces.
    pub fn set_sysctl(&self, name: &str, value: &str) -> Result<()> {
        [&self.client, &self.relay, &self.server]
            .into_iter()
            .try_for_each(|namespace| namespace.set_sysctl(name, value))
    }

    /// Enables NAPI on every veth, so that packets are polled from a queue of the device as with a network
    /// card, also by busy-polling sockets. A veth has NAPI only with GRO on, and uses it only if the other
    /// end has TSO off (`veth_set_features`, `veth_skb_is_eligible_for_gro`; Linux 5.13). Needs the program
    /// `ethtool`.
    pub fn enable_napi(&self) -> Result<()> {
        for (namespace, interface) in [
            (&self.client, Self::TO_RELAY),
            (&self.relay, Self::TO_CLIENT),
            (&self.relay, Self::TO_SERVER),
            (&self.server, Self::TO_RELAY),
        ] {
            let output = namespace
                .command("ethtool")
                .args(["-K", interface, "gro", "on", "tso", "off"])
                .output()
                .context("cannot run a program in a namespace")?;
            ensure!(
                output.status.success(),
                "cannot switch GRO on and TSO off (apt install ethtool?): {}",
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        Ok(())
    }

    fn join(&self, cable: &Cable<'_>) -> Result<()> {
        let (left, right) = (&cable.left, &cable.right);
        let (left_name, right_name) = (left.0.name(), right.0.name());
        // Creates both ends inside: the machine's own namespace never sees them.
        ip(&[
            "-n", left_name, "link", "add", left.1, "type", "veth", "peer", "name", right.1,
            "netns", right_name,
        ])?;
        for (namespace, interface, v4, v6) in [left, right] {
            let name = namespace.name();
            let v4 = format!("{v4}/24");
            ip(&["-n", name, "address", "add", &v4, "dev", interface])?;
            if self.has_ipv6 {
                // Duplicate address detection takes a second for link-local addresses as well, and
                // neighbour discovery does not work meanwhile.
                namespace.set_sysctl(&format!("net.ipv6.conf.{interface}.accept_dad"), "0")?;
                let v6 = format!("{v6}/64");
                ip(&["-n", name, "address", "add", &v6, "dev", interface, "nodad"])?;
            }
            ip(&["-n", name, "link", "set", interface, "up"])?;
        }
        Ok(())
    }

    fn route(&self) -> Result<()> {
        self.relay.set_sysctl("net.ipv4.ip_forward", "1")?;
        for (namespace, v4, v6) in [
            (&self.client, Self::RELAY_V4, Self::RELAY_V6),
            (&self.server, Self::RELAY_FAR_V4, Self::RELAY_FAR_V6),
        ] {
            let name = namespace.name();
            let route = |family, via: &str| {
                ip(&[family, "-n", name, "route", "add", "default", "via", via])
            };
            route("-4", &v4.to_string())?;
            if self.has_ipv6 {
                route("-6", &v6.to_string())?;
            }
        }
        if self.has_ipv6 {
            self.relay.set_sysctl("net.ipv6.conf.all.forwarding", "1")?;
        }
        Ok(())
    }
}
