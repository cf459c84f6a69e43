//! The network devices of a namespace, how they are linked, and what traffic control does on them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use crate::netlink::{Attributes, DumpError, Socket, attribute};
use crate::segment::Device;

/// A network device, and the one that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// What rules may ask about it.
    pub device: Device,
    /// Its kind, as ip-link(8) names it: `veth`, `bridge`. Empty for hardware and lo.
    pub kind: String,
    /// The index of the device that it leads to: the other end of a veth, the lower device of a VLAN.
    pub peer: Option<u32>,
    /// The namespace of that device, by its number in this one. `None` for this one.
    pub peer_namespace: Option<i32>,
    /// The index of the bridge or bond of which it is a port.
    pub master: Option<u32>,
    /// An XDP program is attached to it.
    pub has_xdp: bool,
}

/// A queueing discipline or a filter of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discipline {
    /// The device's index.
    pub device: u32,
    /// Its kind, as tc(8) names it: `noqueue`, `tbf`.
    pub kind: String,
}

/// A filter of a device for packets that it has received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrafficFilter {
    /// Its kind, as tc(8) names it: `bpf`, `flower`.
    pub kind: String,
    /// The lowest one comes first.
    pub priority: u32,
    /// Its number among those of the same priority.
    pub handle: u32,
    /// How its BPF program is called by whoever has attached it.
    pub program: Option<String>,
    /// The id of that program.
    pub program_id: Option<u32>,
}

/// Reads the devices of one network namespace.
#[derive(Debug)]
pub struct Links(Socket);

/// Is notified when devices or their traffic control change. Programs that are attached by links of BPF change
/// silently.
#[derive(Debug)]
pub struct LinkChanges(Socket);

/// `RTM_GET*`.
mod message {
    pub(super) const GET_LINK: u16 = 18;
    pub(super) const GET_DISCIPLINE: u16 = 38;
    pub(super) const GET_FILTER: u16 = 46;
    pub(super) const GET_NAMESPACE: u16 = 90;
}

/// `IFLA_*` (linux/if_link.h).
mod ifla {
    pub(super) const NAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const LINK: u16 = 5;
    pub(super) const MASTER: u16 = 10;
    pub(super) const INFO: u16 = 18;
    pub(super) const FAMILIES: u16 = 26;
    pub(super) const EXTENT: u16 = 29;
    pub(super) const LINK_NAMESPACE: u16 = 37;
    pub(super) const XDP: u16 = 43;
    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const XDP_ATTACHED: u16 = 2;
}

/// `RTEXT_FILTER_SKIP_STATS`.
const WITHOUT_STATISTICS: u32 = 1 << 3;

/// `AF_INET6` among what the protocols tell of a device, its settings there (`IFLA_INET6_CONF`), and the place of the MTU
/// among these (`DEVCONF_MTU6`).
const IPV6: u16 = 10;
const IPV6_SETTINGS: u16 = 2;
const IPV6_MTU: usize = 2;

/// `TCA_KIND` and `TCA_OPTIONS`.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;

/// `TCA_BPF_*` (linux/pkt_cls.h), of filters of this kind.
mod filter_option {
    pub(super) const OF_BPF: &str = "bpf";
    pub(super) const BPF_NAME: u16 = 7;
    pub(super) const BPF_ID: u16 = 11;
}
/// `NETNSA_NSID` and `NETNSA_FD`.
const NAMESPACE_NUMBER: u16 = 1;
const NAMESPACE_DESCRIPTOR: u16 = 3;
/// `struct ifinfomsg`.
const LINK_HEADER: [u8; 16] = [0; 16];
/// `struct tcmsg`, with a device and the parent of its objects.
const TRAFFIC_HEADER_BYTES: usize = 20;
/// The filters of the qdiscs `clsact` and `ingress` (`TC_H_MIN_INGRESS`, `TC_H_MIN_EGRESS`, `TC_H_INGRESS`).
const FILTER_PARENTS: [u32; 3] = [0xffff_fff2, 0xffff_fff3, 0xffff_0000];

/// Those of them that see received packets.
const INGRESS_PARENTS: [u32; 2] = [FILTER_PARENTS[0], FILTER_PARENTS[2]];

/// How often to read what changes while it is read.
const TRIES: usize = 20;

impl Links {
    /// For this thread's network namespace.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Socket::for_devices().map(Self)
    }

    /// All devices.
    ///
    /// # Errors
    /// If they change all the time.
    pub fn all(&mut self) -> io::Result<Vec<Link>> {
        self.unchanged(message::GET_LINK, &LINK_HEADER, |header, attributes| {
            let index = u32::from_ne_bytes(header.get(4..8)?.try_into().ok()?);
            let hardware_type = u16::from_ne_bytes(header.get(2..4)?.try_into().ok()?);
            let kind = attributes.nested(ifla::INFO);
            let xdp = attributes.nested(ifla::XDP);
            let number = |kind| attributes.native_u32(kind).filter(|number| *number != 0);
            Some(Link {
                device: Device {
                    index,
                    name: attributes.text(ifla::NAME)?,
                    hardware_type,
                },
                kind: kind
                    .and_then(|info| info.text(ifla::INFO_KIND))
                    .unwrap_or_default(),
                peer: number(ifla::LINK),
                peer_namespace: attributes
                    .native_u32(ifla::LINK_NAMESPACE)
                    .map(|number| number as i32),
                master: number(ifla::MASTER),
                has_xdp: xdp
                    .and_then(|xdp| xdp.u8(ifla::XDP_ATTACHED))
                    .is_some_and(|attached| attached != 0),
            })
        })
    }

    /// How long packets of IPv6 may be on a device where that is less than its own MTU, as routers advertise it (RFC 4861,
    /// 4.6.4) or `net.ipv6.conf.NAME.mtu` says.
    ///
    /// # Errors
    /// Of the request, and if the device is gone.
    pub fn ipv6_mtu(&mut self, device: u32) -> io::Result<Option<u32>> {
        let mut header = LINK_HEADER;
        header[4..8].copy_from_slice(&device.to_ne_bytes());
        let asked = attribute(ifla::EXTENT, &WITHOUT_STATISTICS.to_ne_bytes());
        let mut mtu = None;
        let take = |_: &[u8], link: Attributes<'_>| {
            let ipv6 = link.nested(ifla::FAMILIES).and_then(|of| of.nested(IPV6));
            let settings = ipv6.and_then(|ipv6| ipv6.bytes(IPV6_SETTINGS));
            let (values, _) = settings.unwrap_or_default().as_chunks::<4>();
            mtu = values.get(IPV6_MTU).map(|mtu| u32::from_ne_bytes(*mtu));
            let of_device = link.native_u32(ifla::MTU).unwrap_or(u32::MAX);
            mtu = mtu.filter(|mtu| *mtu < of_device);
        };
        let answer = (self.0).get_route(message::GET_LINK, &header, &asked, take);
        answer.map_err(system)?;
        Ok(mtu)
    }

    /// The queueing disciplines of all devices.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn disciplines(&mut self) -> io::Result<Vec<Discipline>> {
        self.unchanged(
            message::GET_DISCIPLINE,
            &traffic_header(0, 0),
            discipline_of,
        )
    }

    /// The filters of a device with the queueing discipline `clsact` or `ingress`.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub fn filters(&mut self, device: u32) -> io::Result<Vec<Discipline>> {
        let mut found = Vec::new();
        for parent in FILTER_PARENTS {
            let header = traffic_header(device, parent);
            found.extend(self.unchanged(message::GET_FILTER, &header, discipline_of)?);
        }
        Ok(found)
    }

    /// The filters of a device for packets that it has received.
    ///
    /// # Errors
    /// As [`all`](Self::all), and if the device is gone.
    pub fn ingress_filters(&mut self, device: u32) -> io::Result<Vec<TrafficFilter>> {
        let mut found = Vec::new();
        for parent in INGRESS_PARENTS {
            let header = traffic_header(device, parent);
            found.extend(self.unchanged(message::GET_FILTER, &header, traffic_filter_of)?);
        }
        Ok(found)
    }

    /// The number by which this namespace knows another one; `None` if it does not.
    ///
    /// # Errors
    /// Of the request.
    pub fn number_of(&mut self, namespace: BorrowedFd<'_>) -> io::Result<Option<i32>> {
        let descriptor = namespace.as_raw_fd() as u32;
        let asked = attribute(NAMESPACE_DESCRIPTOR, &descriptor.to_ne_bytes());
        let mut number = None;
        // `struct rtgenmsg`, padded.
        let header = [0; 4];
        let take = |_: &[u8], of: Attributes<'_>| number = of.native_u32(NAMESPACE_NUMBER);
        let answer = self
            .0
            .get_route(message::GET_NAMESPACE, &header, &asked, take);
        answer.map_err(system)?;
        // `NETNSA_NSID_NOT_ASSIGNED` is -1.
        Ok(number
            .map(|number| number as i32)
            .filter(|number| *number >= 0))
    }

    fn unchanged<T>(
        &mut self,
        kind: u16,
        header: &[u8],
        decode: impl Fn(&[u8], Attributes<'_>) -> Option<T>,
    ) -> io::Result<Vec<T>> {
        for _ in 1..TRIES {
            let mut found = Vec::new();
            match self.0.dump_route(kind, header, |header, attributes| {
                found.extend(decode(header, attributes));
            }) {
                Ok(()) => return Ok(found),
                Err(DumpError::Changed) => {}
                Err(error) => return Err(system(error)),
            }
        }
        Err(system(DumpError::Changed))
    }
}

impl LinkChanges {
    /// Notifications for this thread's network namespace, from now on.
    ///
    /// # Errors
    /// If no netlink socket can be created.
    pub fn new() -> io::Result<Self> {
        Socket::listening_for_devices().map(Self)
    }

    /// Reads all pending notifications. Returns whether anything may have changed.
    ///
    /// # Errors
    /// If the socket has failed.
    pub fn any(&mut self) -> io::Result<bool> {
        self.0.drain()
    }
}

impl AsFd for LinkChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn traffic_header(device: u32, parent: u32) -> [u8; TRAFFIC_HEADER_BYTES] {
    let mut header = [0; TRAFFIC_HEADER_BYTES];
    header[4..8].copy_from_slice(&device.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

fn discipline_of(header: &[u8], attributes: Attributes<'_>) -> Option<Discipline> {
    Some(Discipline {
        device: u32::from_ne_bytes(header.get(4..8)?.try_into().ok()?),
        kind: attributes.text(KIND)?,
    })
}

/// `None` for a message about all filters of a priority.
fn traffic_filter_of(header: &[u8], attributes: Attributes<'_>) -> Option<TrafficFilter> {
    let number = |at: usize| Some(u32::from_ne_bytes(header.get(at..at + 4)?.try_into().ok()?));
    let handle = number(8).filter(|handle| *handle != 0)?;
    let kind = attributes.text(KIND)?;
    let options = attributes
        .nested(OPTIONS)
        .filter(|_| kind == filter_option::OF_BPF);
    Some(TrafficFilter {
        kind,
        // `tcm_info`: the protocol stands below.
        priority: number(16)? >> 16,
        handle,
        program: options.and_then(|options| options.text(filter_option::BPF_NAME)),
        program_id: options.and_then(|options| options.native_u32(filter_option::BPF_ID)),
    })
}

fn system(error: DumpError) -> io::Error {
    match error {
        DumpError::Changed => io::Error::other("the devices change faster than they can be read"),
        DumpError::System(error) => error,
        DumpError::Answer(errno) => errno.into(),
    }
}

#[cfg(test)]
mod tests {
    use netlab::{Namespace, Need, available};

    use super::*;

    #[test]
    fn the_mtu_of_ipv6_may_be_smaller_than_that_of_the_device() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("links").expect("a namespace");
        let mut links = here.enter(Links::new).expect("entered").expect("netlink");
        let all = links.all().expect("the devices");
        let lo = all.iter().find(|link| link.device.name == "lo");
        let lo = lo.expect("lo").device.index;
        assert_eq!(links.ipv6_mtu(lo).expect("an answer"), None);
        here.set_sysctl("net.ipv6.conf.lo.mtu", "1400")
            .expect("set");
        assert_eq!(links.ipv6_mtu(lo).expect("an answer"), Some(1400));
        let beyond = all.len() as u32 + 1000;
        assert!(links.ipv6_mtu(beyond).is_err());
    }
}
