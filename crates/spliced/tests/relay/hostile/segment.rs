//! A TCP segment that its sender has not sent.

use std::net::SocketAddr;

use splice_base::repair::{Repair, RepairQueue, queue_sequence, repair, timestamp as timestamp_of};

use crate::peer::Peer;

pub(super) const FIN: u8 = 1;
pub(super) const SYN: u8 = 2;
pub(super) const RST: u8 = 4;
pub(super) const ACK: u8 = 16;

const IPPROTO_TCP: u8 = 6;
const IPV4_HEADER_BYTES: usize = 20;
const HOP_LIMIT: u8 = 64;
const DONT_FRAGMENT: u16 = 0x4000;
const CHECKSUM_AT: usize = 16;
const WINDOW: u16 = 500;

#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) flags: u8,
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) timestamp: Option<u32>,
    pub(super) payload: &'static [u8],
    /// Its path has flipped a bit of the checksum.
    pub(super) is_damaged: bool,
}

impl Segment {
    /// A pure ACK as the end could send it now. The end must have no unread data.
    pub(super) fn next_of(end: &Peer) -> Self {
        repair(end, Repair::On).expect("TCP_REPAIR");
        let [seq, ack] = [RepairQueue::Send, RepairQueue::Receive]
            .map(|queue| queue_sequence(end, queue).expect("TCP_QUEUE_SEQ"));
        // A window probe would be a segment of the end itself.
        repair(end, Repair::Off).expect("TCP_REPAIR");
        let address = |text: String| text.parse().expect("an address");
        Self {
            from: address(end.local_address()),
            to: address(end.peer_address()),
            flags: ACK,
            seq,
            ack,
            timestamp: Some(timestamp_of(end).expect("TCP_TIMESTAMP")),
            payload: &[],
            is_damaged: false,
        }
    }

    /// The same, `ahead` in the sequence space.
    pub(super) fn ahead(mut self, ahead: u32) -> Self {
        self.seq = self.seq.wrapping_add(ahead);
        self
    }

    /// With its IP header.
    pub(super) fn packet(&self) -> Vec<u8> {
        let mut tcp = self.tcp();
        let length = tcp.len() as u16;
        // The pseudo-headers of IPv4 and IPv6 have the same sum.
        let mut summed = self.addresses();
        summed.extend([0, IPPROTO_TCP]);
        summed.extend(length.to_be_bytes());
        summed.extend(&tcp);
        let sum = checksum(&summed) ^ u16::from(self.is_damaged);
        tcp[CHECKSUM_AT..CHECKSUM_AT + 2].copy_from_slice(&sum.to_be_bytes());
        let mut packet = Vec::new();
        if self.from.is_ipv4() {
            packet.extend([0x45, 0]);
            packet.extend((IPV4_HEADER_BYTES as u16 + length).to_be_bytes());
            packet.extend([0, 1]);
            packet.extend(DONT_FRAGMENT.to_be_bytes());
            // The kernel fills in the checksum (raw(7)).
            packet.extend([HOP_LIMIT, IPPROTO_TCP, 0, 0]);
        } else {
            packet.extend([0x60, 0, 0, 0]);
            packet.extend(length.to_be_bytes());
            packet.extend([IPPROTO_TCP, HOP_LIMIT]);
        }
        packet.extend(self.addresses());
        packet.extend(tcp);
        packet
    }

    fn tcp(&self) -> Vec<u8> {
        let mut options = Vec::new();
        if let Some(timestamp) = self.timestamp {
            options.extend([1, 1, 8, 10]);
            options.extend(timestamp.to_be_bytes());
            // It echoes nothing.
            options.extend([0; 4]);
        }
        let words = 5 + options.len() / 4;
        let mut tcp = Vec::new();
        tcp.extend(self.from.port().to_be_bytes());
        tcp.extend(self.to.port().to_be_bytes());
        tcp.extend(self.seq.to_be_bytes());
        // The field is unused without the flag.
        let ack = if self.flags & ACK == 0 { 0 } else { self.ack };
        tcp.extend(ack.to_be_bytes());
        tcp.extend([(words as u8) << 4, self.flags]);
        tcp.extend(WINDOW.to_be_bytes());
        // Checksum and urgent pointer.
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(self.payload);
        tcp
    }

    fn addresses(&self) -> Vec<u8> {
        match (self.from, self.to) {
            (SocketAddr::V4(from), SocketAddr::V4(to)) => {
                [from.ip().octets(), to.ip().octets()].concat()
            }
            (SocketAddr::V6(from), SocketAddr::V6(to)) => {
                [from.ip().octets(), to.ip().octets()].concat()
            }
            (from, to) => panic!("{from} and {to} are of different families"),
        }
    }
}

/// RFC 1071.
pub(super) fn checksum(bytes: &[u8]) -> u16 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let words = pairs.iter().map(|pair| u16::from_be_bytes(*pair));
    let mut sum: u32 = words.map(u32::from).sum();
    sum += rest.first().map_or(0, |last| u32::from(*last) << 8);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
