//! What is known about the segments of an established TCP connection at each hook.

use std::net::IpAddr;

use crate::known::{Answer, Known};

/// The network protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// A network device of this namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Device {
    /// Its index.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Its hardware type (`ARPHRD_*` in `linux/if_arp.h`).
    pub hardware_type: u16,
}

impl Device {
    /// The hardware type of lo (`ARPHRD_LOOPBACK`).
    pub(crate) const LOOPBACK: u16 = 772;

    pub(crate) fn is_loopback(&self) -> bool {
        self.hardware_type == Self::LOOPBACK
    }
}

/// One end of a connection. `None` means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct End {
    /// Its address, of the connection's family.
    pub address: Option<IpAddr>,
    /// Its port.
    pub port: Option<u16>,
}

/// A TCP connection between this host and a peer, established unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// Its network protocol.
    pub family: Family,
    /// The end on this host.
    pub local: End,
    /// The other end.
    pub peer: End,
    /// The device that receives and sends its segments.
    pub device: Option<Device>,
    /// The peer opened the connection; otherwise this host did.
    pub accepted: bool,
    /// Connection tracking has the connection as established. It does not know a connection that is older
    /// than the first rule that uses connection tracking, or that was flushed (`conntrack -F`): the next
    /// segment would count as a new connection.
    pub tracked: bool,
    /// Its SYN, and the answer, are to pass as well.
    pub opening: bool,
}

impl Connection {
    /// Any tracked connection of a family.
    pub fn any(family: Family) -> Self {
        Self {
            family,
            local: End::default(),
            peer: End::default(),
            device: None,
            accepted: true,
            tracked: true,
            opening: false,
        }
    }
}

/// An established TCP connection that this host forwards.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Forwarded {
    /// Its network protocol.
    pub family: Family,
    /// The end that has opened it.
    pub client: End,
    /// The end that has accepted it.
    pub server: End,
    /// The devices towards the client and towards the server; `None` means unknown.
    pub devices: [Option<Device>; 2],
    /// Its addresses are translated on the way, so either may be one of this host's own at some hooks.
    pub translated: bool,
    /// As [`Connection::tracked`].
    pub tracked: bool,
}

/// Which way a segment goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    ToServer,
    ToClient,
}

/// A netfilter hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Hook {
    /// `ingress` of a device.
    Ingress,
    /// Before routing, for a packet that was received.
    Prerouting,
    /// On the way to a socket of this host.
    Input,
    /// Between two devices of this host.
    Forward,
    /// From a socket of this host.
    Output,
    /// On the way to the device.
    Postrouting,
    /// `egress` of a device.
    Egress,
}

impl Hook {
    /// The hooks of a host's own connections, in the order in which a packet passes them.
    pub const OWN: [Self; 6] = [
        Self::Ingress,
        Self::Prerouting,
        Self::Input,
        Self::Output,
        Self::Postrouting,
        Self::Egress,
    ];

    /// The hooks of forwarded connections, in that order.
    pub const FORWARDED: [Self; 5] = [
        Self::Ingress,
        Self::Prerouting,
        Self::Forward,
        Self::Postrouting,
        Self::Egress,
    ];

    /// Whether only received packets pass this hook, of which it is not known where they go.
    pub(crate) fn is_inbound(self) -> bool {
        matches!(self, Self::Ingress | Self::Prerouting | Self::Input)
    }
}

/// The segments of a connection at a hook, in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Segment<'a> {
    family: Family,
    pub(crate) hook: Hook,
    source: SegmentEnd,
    destination: SegmentEnd,
    in_device: DeviceAt<'a>,
    out_device: DeviceAt<'a>,
    is_original: bool,
    /// Connection tracking has processed the segment before this hook, and knows the connection.
    pub(crate) is_tracked: bool,
    /// The mark is 0: no rule sets one, and a socket with SO_MARK is not spliced. On lo the mark is
    /// unknown, since the peer is a socket of this host and its packets keep its mark.
    pub(crate) is_unmarked: bool,
    /// The IP header, of minimal length: TCP sends neither IPv4 options nor IPv6 extension headers. Filters
    /// see no fragments of TCP.
    pub(crate) network_header: Known,
    /// The TCP header, without options.
    pub(crate) transport_header: Known,
}

/// An end of a connection as a hook sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SegmentEnd {
    end: End,
    /// Whether its address is one of this host's.
    pub(crate) is_local: Answer,
}

/// `IPPROTO_TCP`.
pub(crate) const TCP: u8 = 6;
/// `ETH_P_IP` and `ETH_P_IPV6`.
const ETHERTYPES: [u16; 2] = [0x0800, 0x86dd];
/// The known TCP flags of an established connection: no segment has SYN, and all but some RSTs have
/// ACK.
const TCP_FLAGS: (u8, u8) = (0x10, 0x12);
/// Of one that is opening nothing is known.
const ANY_TCP_FLAGS: (u8, u8) = (0, 0);

/// The priority at which connection tracking sees a packet (`NF_IP_PRI_CONNTRACK`).
const CONNECTION_TRACKING: i32 = -200;

impl<'a> Segment<'a> {
    /// The segment of an own connection as a base chain of this priority sees it.
    pub(crate) fn at(
        connection: &'a Connection,
        hook: Hook,
        priority: i32,
        marks_are_set: bool,
    ) -> Self {
        let device = DeviceAt::of(connection.device.as_ref());
        let local = SegmentEnd {
            end: connection.local,
            is_local: Answer::Yes,
        };
        let peer = SegmentEnd {
            end: connection.peer,
            is_local: match &connection.device {
                Some(device) => device.is_loopback().into(),
                None => Answer::Maybe,
            },
        };
        let is_inbound = hook.is_inbound();
        Self {
            family: connection.family,
            hook,
            source: if is_inbound { peer } else { local },
            destination: if is_inbound { local } else { peer },
            in_device: if is_inbound { device } else { DeviceAt::None },
            out_device: if is_inbound { DeviceAt::None } else { device },
            is_original: is_inbound == connection.accepted,
            is_tracked: is_seen(hook, priority) && connection.tracked,
            is_unmarked: !marks_are_set
                && !connection.device.as_ref().is_some_and(Device::is_loopback),
            network_header: Known::unknown(0),
            transport_header: Known::unknown(0),
        }
        .with_headers(if connection.opening {
            ANY_TCP_FLAGS
        } else {
            TCP_FLAGS
        })
    }

    /// The segment of a forwarded connection as a base chain of this priority sees it.
    pub(crate) fn forwarded(
        connection: &'a Forwarded,
        direction: Direction,
        hook: Hook,
        priority: i32,
        marks_are_set: bool,
    ) -> Self {
        let [near_client, near_server] = connection
            .devices
            .each_ref()
            .map(|device| DeviceAt::of(device.as_ref()));
        let (source, destination, received_by, sent_by) = match direction {
            Direction::ToServer => (
                connection.client,
                connection.server,
                near_client,
                near_server,
            ),
            Direction::ToClient => (
                connection.server,
                connection.client,
                near_server,
                near_client,
            ),
        };
        let is_local = if connection.translated {
            Answer::Maybe
        } else {
            Answer::No
        };
        let [source, destination] = [source, destination].map(|end| SegmentEnd { end, is_local });
        Self {
            family: connection.family,
            hook,
            source,
            destination,
            in_device: match hook {
                // Linux before 5.7 does not tell it.
                Hook::Postrouting => DeviceAt::Unknown,
                Hook::Egress => DeviceAt::None,
                _ => received_by,
            },
            out_device: if hook.is_inbound() {
                DeviceAt::None
            } else {
                sent_by
            },
            is_original: direction == Direction::ToServer,
            is_tracked: is_seen(hook, priority) && connection.tracked,
            is_unmarked: !marks_are_set,
            network_header: Known::unknown(0),
            transport_header: Known::unknown(0),
        }
        .with_headers(TCP_FLAGS)
    }

    fn with_headers(mut self, tcp_flags: (u8, u8)) -> Self {
        self.network_header = self.ip_header();
        self.transport_header = self.tcp_header(tcp_flags);
        self
    }

    pub(crate) fn family(&self) -> Family {
        self.family
    }

    pub(crate) fn source(&self) -> &SegmentEnd {
        &self.source
    }

    pub(crate) fn destination(&self) -> &SegmentEnd {
        &self.destination
    }

    /// Whether it has the direction of the connection's first packet (`IP_CT_DIR_ORIGINAL`).
    pub(crate) fn is_original(&self) -> bool {
        self.is_original
    }

    /// Bytes of an address, in network order.
    pub(crate) fn address(&self, end: &SegmentEnd) -> Known {
        match end.end.address {
            Some(IpAddr::V4(v4)) => Known::bytes(&v4.octets()),
            Some(IpAddr::V6(v6)) => Known::bytes(&v6.octets()),
            None => Known::unknown(match self.family() {
                Family::Ipv4 => 4,
                Family::Ipv6 => 16,
            }),
        }
    }

    /// Bytes of a port, in network order.
    pub(crate) fn port(end: &SegmentEnd) -> Known {
        end.end.port.map_or_else(
            || Known::unknown(2),
            |port| Known::bytes(&port.to_be_bytes()),
        )
    }

    /// The EtherType in the link header.
    pub(crate) fn ethertype(&self) -> u16 {
        match self.family() {
            Family::Ipv4 => ETHERTYPES[0],
            Family::Ipv6 => ETHERTYPES[1],
        }
    }

    fn ip_header(&self) -> Known {
        let (mut value, mut known) = ([0; 40], [0; 40]);
        let mut put = |at: usize, part: Known| {
            value[at..at + part.len()].copy_from_slice(part.value());
            known[at..at + part.len()].copy_from_slice(part.mask());
        };
        let (source, destination) = (
            self.address(self.source()),
            self.address(self.destination()),
        );
        let header = match self.family() {
            Family::Ipv4 => {
                put(0, Known::bytes(&[0x45]));
                // Not a fragment: offset and MF are 0, DF is unknown.
                put(6, Known::masked(&[0, 0], &[0x3f, 0xff]));
                put(9, Known::bytes(&[TCP]));
                put(12, source);
                put(16, destination);
                20
            }
            Family::Ipv6 => {
                put(0, Known::masked(&[0x60], &[0xf0]));
                put(6, Known::bytes(&[TCP]));
                put(8, source);
                put(24, destination);
                40
            }
        };
        Known::masked(&value[..header], &known[..header])
    }

    fn tcp_header(&self, flags: (u8, u8)) -> Known {
        let (mut value, mut known) = ([0; 20], [0; 20]);
        for (at, end) in [(0, self.source()), (2, self.destination())] {
            let port = Self::port(end);
            value[at..at + 2].copy_from_slice(port.value());
            known[at..at + 2].copy_from_slice(port.mask());
        }
        (value[13], known[13]) = flags;
        Known::masked(&value, &known)
    }

    pub(crate) fn in_device(&self) -> DeviceAt<'a> {
        self.in_device
    }

    /// The outgoing device, at every hook but `ingress`, `prerouting` and `input`.
    pub(crate) fn out_device(&self) -> DeviceAt<'a> {
        self.out_device
    }

    /// The device whose `ingress` or `egress` it passes.
    pub(crate) fn device(&self) -> DeviceAt<'a> {
        match self.hook.is_inbound() {
            true => self.in_device,
            false => self.out_device,
        }
    }
}

/// Whether connection tracking has seen a segment before a base chain of this priority does.
fn is_seen(hook: Hook, priority: i32) -> bool {
    match hook {
        Hook::Ingress | Hook::Egress => false,
        Hook::Prerouting | Hook::Output => priority > CONNECTION_TRACKING,
        Hook::Input | Hook::Forward | Hook::Postrouting => true,
    }
}

/// A device as a hook sees it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DeviceAt<'a> {
    /// This hook has none.
    None,
    Known(&'a Device),
    Unknown,
}

impl<'a> DeviceAt<'a> {
    fn of(device: Option<&'a Device>) -> Self {
        device.map_or(Self::Unknown, Self::Known)
    }
}
