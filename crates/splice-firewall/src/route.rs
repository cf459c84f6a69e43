//! Where packets to an address leave, and which addresses this host has.

#[cfg(test)]
mod tests;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;

use crate::netlink::{Attributes, DumpError, Socket, attribute};
use crate::segment::TCP;

/// How packets to an address leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The index of the device.
    pub device: u32,
    /// The address that they carry, unless their sender has another one.
    pub source: IpAddr,
    /// Who gets the packets on the device: the receiver itself, or a gateway. `None`: a gateway of the other family.
    pub next_hop: Option<IpAddr>,
    /// Packets get another header on their way (`ip route ... encap`).
    pub encapsulates: bool,
    /// How long packets may be, if the route says so (`ip route ... mtu`), or if the host has learned of a smaller path
    /// MTU. `None`: as long as the device takes.
    pub mtu: Option<u32>,
}

/// Reads routes and addresses of one network namespace.
#[derive(Debug)]
pub struct Routes(Socket);

/// `RTM_GET*`.
mod message {
    pub(super) const GET_ADDRESS: u16 = 22;
    pub(super) const GET_ROUTE: u16 = 26;
}

/// `RTA_*` (linux/rtnetlink.h).
mod rta {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const SOURCE: u16 = 2;
    pub(super) const IN_DEVICE: u16 = 3;
    pub(super) const OUT_DEVICE: u16 = 4;
    pub(super) const GATEWAY: u16 = 5;
    pub(super) const PREFERRED_SOURCE: u16 = 7;
    pub(super) const METRICS: u16 = 8;
    pub(super) const NEXT_HOPS: u16 = 9;
    pub(super) const VIA: u16 = 18;
    pub(super) const ENCAPSULATION_TYPE: u16 = 21;
    pub(super) const USER: u16 = 25;
    pub(super) const NEXT_HOP_OBJECT: u16 = 30;
    pub(super) const IP_PROTOCOL: u16 = 27;
    pub(super) const SOURCE_PORT: u16 = 28;
    pub(super) const DESTINATION_PORT: u16 = 29;
}

/// `RTAX_MTU` (linux/rtnetlink.h), among the metrics of a route. What an ICMP error has taught the host stands there as well,
/// until it expires (`rt_fill_info`; `rt6_do_update_pmtu`).
const MTU: u16 = 2;

/// `RTN_*` (linux/rtnetlink.h).
mod rtn {
    pub(super) const LOCAL: u8 = 2;
    /// Of a router's subnets (RFC 4291, 2.6.1), and delivered as well.
    pub(super) const ANYCAST: u8 = 4;
}

/// Where `struct rtmsg` has `rtm_type`.
const KIND_AT: usize = 7;

/// `RTM_F_FIB_MATCH`: the route itself is told, not what is chosen from it.
const WHOLE: u32 = 0x2000;

/// `struct rtnexthop`, and where it has the index of the device.
const NEXT_HOP_BYTES: usize = 8;
const NEXT_HOP_DEVICE_AT: usize = 4;

/// `IFA_ADDRESS`, `IFA_LOCAL` (linux/if_addr.h). A point-to-point address has its own end in the latter.
const ADDRESS: u16 = 1;
const LOCAL: u16 = 2;

/// `struct ifaddrmsg`.
const ADDRESS_HEADER: [u8; 8] = [0; 8];

/// How often to read what changes while it is read.
const TRIES: usize = 20;

impl Routes {
    /// For this thread's network namespace.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Socket::for_devices().map(Self)
    }

    /// The route to an address, `None` if there is none.
    ///
    /// # Errors
    /// If netlink fails.
    pub fn to(&mut self, address: IpAddr) -> io::Result<Option<Route>> {
        let mut route = None;
        let is_routed = self.look_up(Asked::to(address), &[], |_, found| {
            route = route_of(address, None, found);
        })?;
        Ok(route.filter(|_| is_routed))
    }

    /// Whether the segments of a TCP connection to an address stay on this host: it is one of its addresses, or of a
    /// range that is routed here (`ip route add local`). Rules may tell by ports and sources (`ip rule add ipproto tcp
    /// dport ...`). `from` is the other end once the connection is made. A link-local address is local only on
    /// the interface that its scope ID names, if it has one.
    ///
    /// # Errors
    /// If netlink fails, or the host does not have the address `from` any more.
    pub fn is_local(&mut self, to: SocketAddr, from: Option<SocketAddr>) -> io::Result<bool> {
        let mut connection = vec![
            attribute(rta::IP_PROTOCOL, &[TCP]),
            attribute(rta::DESTINATION_PORT, &to.port().to_be_bytes()),
        ];
        if let Some(from) = from {
            connection.push(attribute(rta::SOURCE_PORT, &from.port().to_be_bytes()));
        }
        if let SocketAddr::V6(to) = to
            && to.ip().is_unicast_link_local()
            && to.scope_id() != 0
        {
            connection.push(attribute(rta::OUT_DEVICE, &to.scope_id().to_ne_bytes()));
        }
        let mut is_local = false;
        let source = from.map(|from| from.ip());
        let asked = Asked {
            from: source,
            ..Asked::to(to.ip())
        };
        let is_routed = self.look_up(asked, &connection, |header, _| {
            is_local = is_delivered(header);
        })?;
        Ok(is_routed && is_local)
    }

    /// Whether the segments of a TCP connection that come in on a device stay on this host; `None` if there is no such
    /// device.
    ///
    /// # Errors
    /// If netlink fails.
    pub(crate) fn comes_in(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        type_of_service: u8,
        device: u32,
    ) -> io::Result<Option<bool>> {
        let asked = Asked {
            from: Some(from.ip()),
            type_of_service,
            ..Asked::to(to.ip())
        };
        let mut by = ports(from, to).to_vec();
        by.push(attribute(rta::IN_DEVICE, &device.to_ne_bytes()));
        let mut is_local = false;
        let found = self.look_up(asked, &by, |header, _| is_local = is_delivered(header));
        match found.map_err(|error| error.raw_os_error().map(Errno::from_raw_os_error)) {
            Ok(is_routed) => Ok(Some(is_routed && is_local)),
            // A `blackhole`, a source that none has or that comes by another device (`ip_route_input_rcu`).
            Err(Some(Errno::INVAL | Errno::XDEV)) => Ok(Some(false)),
            Err(Some(Errno::NODEV)) => Ok(None),
            Err(errno) => {
                Err(errno.map_or_else(|| io::Error::other("no route was read"), Into::into))
            }
        }
    }

    /// How the segments of a TCP connection leave, which rules may tell by its ends, this process's user and the type of
    /// service.
    ///
    /// # Errors
    /// If netlink fails, or the host does not have the address `from` any more.
    pub(crate) fn of_connection(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        type_of_service: u8,
    ) -> io::Result<Option<Route>> {
        self.from(from.ip(), to.ip(), type_of_service, &ports(from, to))
    }

    /// The devices of the next hops of a route that has several, from which the stack chooses for each packet; 0 for those
    /// that the kernel does not tell.
    ///
    /// # Errors
    /// As [`of_connection`](Self::of_connection).
    pub(crate) fn devices(
        &mut self,
        from: SocketAddr,
        to: SocketAddr,
        type_of_service: u8,
    ) -> io::Result<Vec<u32>> {
        let asked = Asked {
            from: Some(from.ip()),
            type_of_service,
            flags: WHOLE,
            ..Asked::to(to.ip())
        };
        let mut devices = Vec::new();
        self.look_up(asked, &ports(from, to), |_, found| {
            devices = devices_of(found.bytes(rta::NEXT_HOPS).unwrap_or_default());
            // A group of next hops is not told then (`nexthop_compat_mode`).
            if found.native_u32(rta::NEXT_HOP_OBJECT).is_some() && devices.is_empty() {
                devices.push(found.native_u32(rta::OUT_DEVICE).unwrap_or(0));
            }
        })?;
        Ok(devices)
    }

    /// How they would leave where a BPF program redirects them to a device (`bpf_redirect_neigh`): it tells neither ports
    /// nor a user.
    ///
    /// # Errors
    /// As [`of_connection`](Self::of_connection).
    pub(crate) fn by_device(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        type_of_service: u8,
        device: u32,
    ) -> io::Result<Option<Route>> {
        let root = 0u32;
        let by = [
            attribute(rta::OUT_DEVICE, &device.to_ne_bytes()),
            attribute(rta::IP_PROTOCOL, &[TCP]),
            attribute(rta::USER, &root.to_ne_bytes()),
        ];
        self.from(from, to, type_of_service, &by)
    }

    fn from(
        &mut self,
        from: IpAddr,
        to: IpAddr,
        type_of_service: u8,
        by: &[Vec<u8>],
    ) -> io::Result<Option<Route>> {
        let asked = Asked {
            from: Some(from),
            type_of_service,
            ..Asked::to(to)
        };
        let mut route = None;
        let is_routed = self.look_up(asked, by, |_, found| {
            // What was asked for is not told again.
            route = route_of(to, Some(from), found);
        })?;
        Ok(route.filter(|_| is_routed))
    }

    /// Calls `take` with the header and the attributes of the route to an address. `false` if the kernel says that
    /// there is none. Everything else that is not a route is an error, since guards ask.
    fn look_up(
        &mut self,
        asked: Asked,
        further: &[Vec<u8>],
        mut take: impl FnMut(&[u8], Attributes<'_>),
    ) -> io::Result<bool> {
        let source = asked.from;
        let octets_of_source = source.map(octets).unwrap_or_default();
        let octets = octets(asked.to);
        // `struct rtmsg`: the family, and how many bits of the destination and of the source count.
        let mut header = [0; 12];
        header[0] = family(asked.to);
        header[1] = 8 * octets.len() as u8;
        header[2] = 8 * octets_of_source.len() as u8;
        header[3] = asked.type_of_service;
        header[8..].copy_from_slice(&asked.flags.to_ne_bytes());
        let mut request = attribute(rta::DESTINATION, &octets);
        if source.is_some() {
            request.extend(attribute(rta::SOURCE, &octets_of_source));
        }
        request.extend(further.concat());
        let mut is_routed = false;
        let asked = (self.0).get_route(
            message::GET_ROUTE,
            &header,
            &request,
            |header, attributes| {
                is_routed = true;
                take(header, attributes);
            },
        );
        match asked {
            Ok(()) if is_routed => Ok(true),
            Ok(()) => Err(io::Error::other("the answer has no route")),
            // Also said of a source that this host does not have (`ip_route_output_key_hash_rcu`).
            Err(DumpError::Answer(Errno::INVAL)) if source.is_some() => Err(Errno::INVAL.into()),
            Err(DumpError::Answer(errno)) if is_no_route(errno) => Ok(false),
            Err(error) => Err(system(error)),
        }
    }

    /// The addresses of this host, with the indices of their devices.
    ///
    /// # Errors
    /// If they change all the time.
    pub fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr)>> {
        for _ in 0..TRIES {
            let mut found = Vec::new();
            let read = self
                .0
                .dump_route(message::GET_ADDRESS, &ADDRESS_HEADER, |header, about| {
                    let device = header.get(4..8).and_then(|bytes| bytes.try_into().ok());
                    let address = about.bytes(LOCAL).or_else(|| about.bytes(ADDRESS));
                    let of = device.map(u32::from_ne_bytes);
                    found.extend(of.zip(address.and_then(address_of)));
                });
            match read {
                Ok(()) => return Ok(found),
                Err(DumpError::Changed) => {}
                Err(error) => return Err(system(error)),
            }
        }
        Err(system(DumpError::Changed))
    }
}

/// What a route is looked up by.
struct Asked {
    to: IpAddr,
    from: Option<IpAddr>,
    type_of_service: u8,
    /// `RTM_F_*`.
    flags: u32,
}

impl Asked {
    fn to(to: IpAddr) -> Self {
        Self {
            to,
            from: None,
            type_of_service: 0,
            flags: 0,
        }
    }
}

/// Whether a route, by its `struct rtmsg`, ends on this host.
fn is_delivered(header: &[u8]) -> bool {
    matches!(header.get(KIND_AT), Some(&(rtn::LOCAL | rtn::ANYCAST)))
}

/// What rules may tell a TCP connection by, beside its addresses.
fn ports(from: SocketAddr, to: SocketAddr) -> [Vec<u8>; 3] {
    [
        attribute(rta::IP_PROTOCOL, &[TCP]),
        attribute(rta::SOURCE_PORT, &from.port().to_be_bytes()),
        attribute(rta::DESTINATION_PORT, &to.port().to_be_bytes()),
    ]
}

/// Those of a list of `struct rtnexthop`, each with attributes behind it.
fn devices_of(mut list: &[u8]) -> Vec<u32> {
    let mut devices = Vec::new();
    while let Some(hop) = list.get(..NEXT_HOP_BYTES) {
        let length = usize::from(u16::from_ne_bytes([hop[0], hop[1]])).max(NEXT_HOP_BYTES);
        devices.extend(
            hop[NEXT_HOP_DEVICE_AT..]
                .try_into()
                .map(u32::from_ne_bytes)
                .ok(),
        );
        list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    devices
}

/// The route to an address, from the attributes of the kernel's answer.
fn route_of(address: IpAddr, from: Option<IpAddr>, found: Attributes<'_>) -> Option<Route> {
    let device = found.native_u32(rta::OUT_DEVICE)?;
    let gateway = found.bytes(rta::GATEWAY).and_then(address_of);
    let next_hop = match found.bytes(rta::VIA) {
        None => Some(gateway.unwrap_or(address)),
        Some(_) => None,
    };
    Some(Route {
        device,
        source: from.or_else(|| found.bytes(rta::PREFERRED_SOURCE).and_then(address_of))?,
        next_hop,
        encapsulates: found.bytes(rta::ENCAPSULATION_TYPE).is_some(),
        mtu: found
            .nested(rta::METRICS)
            .and_then(|metrics| metrics.native_u32(MTU)),
    })
}

fn system(error: DumpError) -> io::Error {
    match error {
        DumpError::Changed => io::Error::other("the addresses change faster than they can be read"),
        DumpError::System(error) => error,
        DumpError::Answer(errno) => errno.into(),
    }
}

/// Without a route, and by those that `ip route add` makes as `unreachable`, `prohibit` and `blackhole` (`fib_props`,
/// `ip6_rt_type_to_error`).
fn is_no_route(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::ACCESS | Errno::INVAL
    )
}

/// `AF_INET` or `AF_INET6`.
fn family(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 2,
        IpAddr::V6(_) => 10,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().into(),
        IpAddr::V6(address) => address.octets().into(),
    }
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(Ipv4Addr::from);
    let v6 = <[u8; 16]>::try_from(bytes).map(Ipv6Addr::from);
    v4.map(IpAddr::V4).or_else(|_| v6.map(IpAddr::V6)).ok()
}
