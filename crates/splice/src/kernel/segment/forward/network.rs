//! What this host's network says about forwarding: addresses, devices, routes, and who else looks at segments.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use splice_base::error::{Result, ResultExt as _};
use splice_bpf::types::{SegmentFlow, segment_socket_flag as has};
use splice_firewall::{Connection, Device, End, Family, Link, Links, Route, Routes};

use super::super::datapath::{Datapath, LOOPBACK};
use super::super::eligibility::is_ethernet;
use super::super::sockets::{addresses_of, tuple_of};
use super::ended::tuples;

/// Reads the network of the thread that made it.
pub(super) struct Network {
    routes: Routes,
    links: Links,
    addresses: Vec<(u32, IpAddr)>,
    devices: Vec<Link>,
}

/// How clients get to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Path {
    /// The addresses that clients connect to.
    pub(super) listeners: Vec<SocketAddr>,
    /// The devices that clients may come in on.
    pub(super) devices: Vec<Device>,
    pub(super) route: Route,
    /// The device towards the server.
    pub(super) out: Device,
}

impl Network {
    /// # Errors
    /// If there is no netlink.
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            routes: Routes::new().context("routes cannot be read")?,
            links: Links::new().context("devices cannot be read")?,
            addresses: Vec::new(),
            devices: Vec::new(),
        })
    }

    /// Looks at addresses and devices again.
    ///
    /// # Errors
    /// If they cannot be read.
    pub(super) fn look(&mut self) -> Result<()> {
        self.addresses = self
            .routes
            .addresses()
            .context("addresses cannot be read")?;
        self.devices = self.links.all().context("devices cannot be read")?;
        Ok(())
    }

    /// How clients of `listen` get to `server`, or why they need sockets.
    pub(super) fn path(
        &mut self,
        listen: &[SocketAddr],
        server: SocketAddr,
    ) -> std::result::Result<Path, String> {
        let listeners: Vec<_> = listen
            .iter()
            .filter(|address| address.is_ipv4() == server.is_ipv4())
            .flat_map(|address| self.own_addresses(*address))
            .collect();
        if listeners.is_empty() {
            return Err(format!(
                "this host has no address of the family of {server} that clients of other hosts could connect to"
            ));
        }
        let found = self.routes.to(server.ip());
        let route = found
            .map_err(|error| error.to_string())?
            .ok_or_else(|| format!("there is no route to {server}"))?;
        if route.device == LOOPBACK {
            return Err(format!("{server} is this host"));
        }
        if route.encapsulates {
            return Err(format!("the route to {server} encapsulates packets"));
        }
        let devices: Vec<_> = self.usable_devices().collect();
        let out = devices.iter().find(|device| device.index == route.device);
        let out = out.cloned().ok_or_else(|| {
            format!("the device towards {server} is no Ethernet device, or a port of another one")
        })?;
        if let Some(device) = devices
            .iter()
            .find(|device| filters_reverse_paths(&device.name))
            && devices.len() > 1
            && server.is_ipv4()
        {
            return Err(format!(
                "{} has a strict reverse path filter (net.ipv4.conf.*.rp_filter), which needs the stack",
                device.name
            ));
        }
        Ok(Path {
            listeners,
            devices,
            route,
            out,
        })
    }

    /// A connection's two halves as packet filters see them; `None` if a device of its is gone.
    pub(super) fn connections(&self, flow: &SegmentFlow) -> Option<[Connection; 2]> {
        let device = |side: usize| {
            let index = flow.side[side].out_device.load(Relaxed);
            let mut links = self.devices.iter();
            links
                .find(|link| link.device.index == index)
                .map(|link| link.device.clone())
        };
        let [from_client, to_server] = tuples(flow);
        let (listener, client) = addresses_of(&from_client);
        let (server, source) = addresses_of(&to_server);
        Some([
            new_connection(end(listener), end(client), device(1)?, true),
            new_connection(end(source), end(server), device(0)?, false),
        ])
    }

    /// The addresses of this host.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.addresses.iter().map(|(_, address)| *address)
    }

    /// Ethernet devices that are no port of a bridge or bond.
    fn usable_devices(&self) -> impl Iterator<Item = Device> {
        self.devices
            .iter()
            .filter(|link| link.master.is_none() && is_ethernet(link.device.hardware_type.into()))
            .map(|link| link.device.clone())
    }

    /// The addresses of this host that a listening address stands for, but for those of the loopback and of links.
    fn own_addresses(&self, listen: SocketAddr) -> Vec<SocketAddr> {
        let is_meant = |address: &IpAddr| {
            let any = listen.ip().is_unspecified();
            (any && address.is_ipv4() == listen.is_ipv4() || *address == listen.ip())
                && !address.is_loopback()
                && !is_of_link(*address)
        };
        let addresses = self.addresses.iter().map(|(_, address)| *address);
        let mut found: Vec<_> = addresses
            .filter(is_meant)
            .map(|address| SocketAddr::new(address, listen.port()))
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }
}

fn is_of_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// A file that cannot be read is not there: no filter.
fn filters_reverse_paths(device: &str) -> bool {
    let of = |name: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{name}/rp_filter");
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    };
    // The larger one counts (`IN_DEV_RPFILTER`). 1 is strict, 2 is satisfied with any route.
    u8::max(of("all"), of(device)) == 1
}

/// The connections of a path as packet filters see them: from any client, on each device that one may come in on.
pub(super) fn connections(
    path: &Path,
    listener: SocketAddr,
    server: SocketAddr,
) -> Vec<[Connection; 2]> {
    let anyone = End::default();
    let source = End {
        address: Some(path.route.source),
        port: None,
    };
    // The server's segments may come in on any of them, too.
    let pair = |device: &Device| {
        [
            new_connection(end(listener), anyone, device.clone(), true),
            new_connection(source, end(server), device.clone(), false),
        ]
    };
    path.devices.iter().map(pair).collect()
}

/// One that connection tracking does not know: every rule applies to it as to the first packet.
fn new_connection(local: End, peer: End, device: Device, accepted: bool) -> Connection {
    let address = local.address.or(peer.address);
    Connection {
        family: match address {
            Some(IpAddr::V6(_)) => Family::Ipv6,
            _ => Family::Ipv4,
        },
        local,
        peer,
        device: Some(device),
        accepted,
        tracked: false,
        opening: true,
    }
}

fn end(address: SocketAddr) -> End {
    End {
        address: Some(address.ip()),
        port: Some(address.port()),
    }
}

/// What the socket that listens, or this host's routing, asks for that only the stack does.
pub(super) fn needs_stack(datapath: &Datapath, listener: SocketAddr) -> Option<&'static str> {
    // Any peer finds it.
    let anyone: IpAddr = match listener {
        SocketAddr::V4(_) => Ipv4Addr::new(192, 0, 2, 1).into(),
        SocketAddr::V6(_) => Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into(),
    };
    let tuple = tuple_of(listener, SocketAddr::new(anyone, 1));
    let found = datapath.inspect(&[tuple; 2]).ok()?.socket[0];
    [
        (
            has::POLICED,
            "this host has policies of IPsec, which the stack applies",
        ),
        (
            has::FILTERED,
            "a BPF program of its control group sees its packets",
        ),
        (
            has::RULED,
            "a rule of this host chooses routes by ports or protocols",
        ),
        (has::BOUND, "it is bound to a device"),
        (has::SIGNED, "it signs its segments"),
        (has::MARKED, "it has a mark"),
        (
            has::CLASSED,
            "it gives its packets a traffic class or priority",
        ),
    ]
    .into_iter()
    .find_map(|(flag, why)| (found.flags & flag != 0).then_some(why))
}

/// The ports that the kernel gives to nobody: the larger run of those that are not for everybody to use, as
/// (first, count).
pub(super) fn own_ports() -> (u16, u32) {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
    let range = match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(low), Some(high)) => low..high,
        // The kernel's default (`inet_net_init`).
        _ => 32768..60999,
    };
    outside(&range)
}

/// The first port that needs no privilege (`PROT_SOCK`).
const FIRST_PORT: u32 = 1024;

/// As [`own_ports`], for the range of the kernel, both ends included.
fn outside(ephemeral: &Range<u32>) -> (u16, u32) {
    let below = ephemeral.start.saturating_sub(FIRST_PORT);
    let above = u32::from(u16::MAX).saturating_sub(ephemeral.end);
    if below >= above {
        (FIRST_PORT as u16, below)
    } else {
        ((ephemeral.end + 1) as u16, above)
    }
}

#[cfg(test)]
mod tests {
    use super::outside;

    #[test]
    fn own_ports_are_none_of_the_kernels() {
        assert_eq!(outside(&(32768..60999)), (1024, 31744));
        assert_eq!(outside(&(1024..40000)), (40001, 25535));
        assert_eq!(outside(&(1024..65535)), (1024, 0));
    }
}
