//! Ethernet frames with an ICMP error about a TCP segment.

use std::net::{IpAddr, SocketAddr};

use super::frame::{Frame, folded, words};

pub(super) const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
const ICMP_BYTES: usize = 8;
/// Of the quoted TCP header, the least that a router quotes (RFC 792).
const QUOTED_TCP_BYTES: usize = 8;
/// Of the segment that is quoted.
pub(super) const SEGMENT_BYTES: usize = 1400;

const ACK: u8 = 16;
const TCP: u8 = 6;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// An error about a segment of one of the relay's sockets, as a router would send it.
#[derive(Clone, Debug)]
pub(super) struct IcmpError {
    /// The addresses of the segment: from the relay to its receiver.
    pub(super) quoted: [SocketAddr; 2],
    pub(super) kind: (u8, u8),
    pub(super) seq: u32,
    pub(super) mtu: u16,
    pub(super) protocol: u8,
    /// Of the quoted IPv4 header, and of the outer one.
    pub(super) fragment_offsets: [u16; 2],
    pub(super) hops: u8,
    /// Bytes that are quoted beyond the least.
    pub(super) quoted_more: usize,
    /// Otherwise to the relay's address.
    pub(super) to: IpAddr,
}

pub(super) fn header_bytes(ip: IpAddr) -> usize {
    match ip {
        IpAddr::V4(_) => IPV4_BYTES,
        IpAddr::V6(_) => IPV6_BYTES,
    }
}

/// An IP header with a right checksum.
fn ip_header(
    [from, to]: [IpAddr; 2],
    protocol: u8,
    hops: u8,
    payload: usize,
    fragment: u16,
) -> Vec<u8> {
    let mut header;
    match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            header = vec![0x45, 0];
            header.extend(((IPV4_BYTES + payload) as u16).to_be_bytes());
            header.extend([0, 7]);
            header.extend(fragment.to_be_bytes());
            header.extend([hops, protocol, 0, 0]);
            header.extend(from.octets());
            header.extend(to.octets());
            let sum = !folded(words(&header));
            header[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header = vec![0x60, 0, 0, 0];
            header.extend((payload as u16).to_be_bytes());
            header.extend([protocol, hops]);
            header.extend(from.octets());
            header.extend(to.octets());
        }
        _ => panic!("one version of IP"),
    }
    header
}

/// RFC 792 and RFC 4443: that of IPv6 covers a pseudo-header.
fn icmp_sum([from, to]: [IpAddr; 2], message: &[u8]) -> u16 {
    let pseudo = match (from, to) {
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            words(&from.octets()) + words(&to.octets()) + message.len() as u32 + u32::from(ICMPV6)
        }
        _ => 0,
    };
    folded(pseudo + words(message))
}

impl IcmpError {
    pub(super) fn about(quoted: [SocketAddr; 2], kind: (u8, u8), seq: u32) -> Self {
        Self {
            quoted,
            kind,
            seq,
            mtu: 0,
            protocol: TCP,
            fragment_offsets: [0; 2],
            hops: 64,
            quoted_more: 0,
            to: quoted[0].ip(),
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let [from, to] = self.quoted;
        let ends = [from.ip(), to.ip()];
        let router = match from.ip() {
            IpAddr::V4(_) => IpAddr::from([198, 51, 100, 1]),
            IpAddr::V6(_) => IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1]),
        };
        let mut message = vec![self.kind.0, self.kind.1, 0, 0, 0, 0];
        message.extend(self.mtu.to_be_bytes());
        let [quoted, outer] = self.fragment_offsets;
        message.extend(ip_header(ends, self.protocol, 9, SEGMENT_BYTES, quoted));
        message.extend(from.port().to_be_bytes());
        message.extend(to.port().to_be_bytes());
        message.extend(self.seq.to_be_bytes());
        message.extend((0..self.quoted_more).map(|at| at as u8));
        let sum = !icmp_sum([router, self.to], &message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let is_v4 = from.is_ipv4();
        let mut frame = Frame::new(self.quoted, [0; 2], ACK).bytes()[..ETHERNET_BYTES].to_vec();
        let protocol = if is_v4 { ICMP } else { ICMPV6 };
        frame.extend(ip_header(
            [router, self.to],
            protocol,
            self.hops,
            message.len(),
            outer,
        ));
        frame.extend(message);
        frame
    }
}

/// What is in the frame of an error.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub(super) outer: [IpAddr; 2],
    pub(super) kind: (u8, u8),
    pub(super) mtu: u16,
    pub(super) quoted: [SocketAddr; 2],
    pub(super) seq: u32,
}

/// Reads an error, all of whose checksums have to be right.
pub(super) fn read(frame: &[u8], is_v4: bool) -> Read {
    let packet = &frame[ETHERNET_BYTES..];
    let header = if is_v4 { IPV4_BYTES } else { IPV6_BYTES };
    let address = |packet: &[u8], which: usize| -> IpAddr {
        match is_v4 {
            true => {
                let at = 12 + which * 4;
                let octets: [u8; 4] = packet[at..at + 4].try_into().expect("four");
                octets.into()
            }
            false => {
                let at = 8 + which * 16;
                let octets: [u8; 16] = packet[at..at + 16].try_into().expect("sixteen");
                octets.into()
            }
        }
    };
    let ends = |packet: &[u8]| [0, 1].map(|which| address(packet, which));
    let outer = ends(packet);
    let message = &packet[header..];
    assert_eq!(icmp_sum(outer, message), 0xffff, "{frame:?}");
    let quoted = &message[ICMP_BYTES..];
    if is_v4 {
        assert_eq!(folded(words(&packet[..header])), 0xffff, "{frame:?}");
        assert_eq!(folded(words(&quoted[..header])), 0xffff, "{frame:?}");
    }
    let tcp = &quoted[header..header + QUOTED_TCP_BYTES];
    let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
    let [from, to] = ends(quoted);
    Read {
        outer,
        kind: (message[0], message[1]),
        mtu: u16::from_be_bytes([message[6], message[7]]),
        quoted: [SocketAddr::new(from, port(0)), SocketAddr::new(to, port(2))],
        seq: u32::from_be_bytes(tcp[4..].try_into().expect("four")),
    }
}
