//! An ICMP error about a TCP segment.

use std::net::IpAddr;

use super::segment::{Segment, checksum};

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
const HOP_LIMIT: u8 = 64;

#[derive(Clone, Debug)]
pub(super) struct IcmpError {
    pub(super) kind: u8,
    pub(super) code: u8,
    pub(super) mtu: u16,
    /// The segment that it quotes, to whose sender it goes.
    pub(super) segment: Segment,
    /// How much of it is quoted, with the IP header.
    pub(super) quoted_bytes: usize,
    /// Whether its checksum is wrong.
    pub(super) is_damaged: bool,
}

impl IcmpError {
    /// As a router says that a segment was too long.
    pub(super) fn too_big(segment: Segment, mtu: u16) -> Self {
        let (kind, code) = if segment.from.is_ipv4() {
            (3, 4)
        } else {
            (2, 0)
        };
        Self {
            kind,
            code,
            mtu,
            segment,
            quoted_bytes: usize::MAX,
            is_damaged: false,
        }
    }

    /// With its IP header. The receiver of the quoted segment claims to send it.
    pub(super) fn packet(&self) -> Vec<u8> {
        let Segment { from, to, .. } = &self.segment;
        let mut message = vec![self.kind, self.code, 0, 0, 0, 0];
        message.extend(self.mtu.to_be_bytes());
        let quoted = self.segment.packet();
        message.extend(&quoted[..quoted.len().min(self.quoted_bytes)]);
        let length = message.len() as u16;
        let mut packet;
        let mut summed = Vec::new();
        match (to.ip(), from.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                packet = vec![0x45, 0];
                packet.extend((20 + length).to_be_bytes());
                packet.extend([0, 1, 0, 0]);
                // The kernel fills in the checksum (raw(7)).
                packet.extend([HOP_LIMIT, ICMP, 0, 0]);
                packet.extend([from.octets(), to.octets()].concat());
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                packet = vec![0x60, 0, 0, 0];
                packet.extend(length.to_be_bytes());
                packet.extend([ICMPV6, HOP_LIMIT]);
                let addresses = [from.octets(), to.octets()].concat();
                packet.extend(&addresses);
                summed = addresses;
                summed.extend([0, ICMPV6]);
                summed.extend(length.to_be_bytes());
            }
            (from, to) => panic!("{from} and {to} are of different families"),
        }
        summed.extend(&message);
        let sum = checksum(&summed) ^ u16::from(self.is_damaged);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        packet.extend(message);
        packet
    }
}
