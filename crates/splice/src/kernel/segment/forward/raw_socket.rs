//! Segments for the ends of connections that have no socket.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, ipproto, sendto, socket_with,
};
use splice_base::error::{Result, ResultExt as _};
use splice_bpf::types::SegmentFlow;
use std::sync::atomic::Ordering::Relaxed;

use super::super::sockets::addresses_of;
use super::ended::tuples;

/// Sends segments of connections that this host has no socket of.
#[derive(Debug)]
pub(super) struct RawSocket {
    v4: OwnedFd,
    /// A host may be without IPv6.
    v6: Option<OwnedFd>,
}

/// The TTL of what this host sends (`IPDEFTTL`).
const HOPS: u8 = 64;

const TCP_HEADER_BYTES: usize = 20;
const RST: u8 = 0x04;
const ACK: u8 = 0x10;
/// `IPPROTO_TCP`.
const TCP: u8 = 6;

impl RawSocket {
    /// # Errors
    /// Without CAP_NET_RAW.
    pub(super) fn new() -> Result<Self> {
        let raw = |family| {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            socket_with(family, SocketType::RAW, flags, Some(ipproto::RAW))
        };
        Ok(Self {
            v4: raw(AddressFamily::INET).context(
                "connections from the SYN on need a raw socket to be reset by, and so CAP_NET_RAW",
            )?,
            v6: raw(AddressFamily::INET6).ok(),
        })
    }

    /// Resets both ends of an established connection. An end accepts a reset only at the number that it expects
    /// next (RFC 5961), which lies between what it has acknowledged and what was sent to it.
    pub(super) fn reset(&self, flow: &SegmentFlow) {
        let [from_client, to_server] = tuples(flow);
        let (listener, client) = addresses_of(&from_client);
        let (server, source) = addresses_of(&to_server);
        for (near, far, receiver, sender) in [(listener, client, 0, 1), (source, server, 1, 0)] {
            let acknowledged = flow.side[receiver].high_ack.load(Relaxed);
            let sent = flow.side[sender].high_seq();
            self.send(near, far, RST, acknowledged, 0);
            if sent != acknowledged {
                self.send(near, far, RST, sent, 0);
            }
        }
    }

    /// Asks a peer of an established connection for a sign of life, as a keep-alive does: it answers what it has received
    /// already with an acknowledgement (RFC 9293, 3.10.7.4).
    pub(super) fn ask(&self, flow: &SegmentFlow, peer: usize) {
        let [from_client, to_server] = tuples(flow);
        let (near, far) = if peer == 0 {
            addresses_of(&from_client)
        } else {
            let (server, source) = addresses_of(&to_server);
            (source, server)
        };
        let [received, acknowledged] =
            [peer, 1 - peer].map(|side| flow.side[side].high_ack.load(Relaxed));
        self.send(near, far, ACK, received.wrapping_sub(1), acknowledged);
    }

    /// Refuses a client whose server does not answer.
    pub(super) fn refuse(&self, flow: &SegmentFlow) {
        let (listener, client) = addresses_of(&tuples(flow)[0]);
        let next = flow.first[0].load(Relaxed);
        self.send(listener, client, RST | ACK, 0, next);
    }

    fn send(&self, from: SocketAddr, to: SocketAddr, flags: u8, seq: u32, ack: u32) {
        let segment = segment(from, to, flags, seq, ack);
        let (socket, packet) = match (from.ip(), to.ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let mut packet = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, HOPS, TCP, 0, 0];
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(segment);
                (&self.v4, packet)
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let Some(socket) = &self.v6 else { return };
                let mut packet = vec![0x60, 0, 0, 0, 0, TCP_HEADER_BYTES as u8, TCP, HOPS];
                packet.extend(source.octets());
                packet.extend(destination.octets());
                packet.extend(segment);
                (socket, packet)
            }
            _ => return,
        };
        // Should a reset fail, the stack sends one when the peer sends next.
        let _ = sendto(
            socket,
            &packet,
            SendFlags::empty(),
            &SocketAddr::new(to.ip(), 0),
        );
    }
}

/// A TCP header. The checksum is over the pseudo-header, too (RFC 9293, 3.1).
fn segment(
    from: SocketAddr,
    to: SocketAddr,
    flags: u8,
    seq: u32,
    ack: u32,
) -> [u8; TCP_HEADER_BYTES] {
    let mut header = [0; TCP_HEADER_BYTES];
    header[..2].copy_from_slice(&from.port().to_be_bytes());
    header[2..4].copy_from_slice(&to.port().to_be_bytes());
    header[4..8].copy_from_slice(&seq.to_be_bytes());
    header[8..12].copy_from_slice(&ack.to_be_bytes());
    header[12] = (TCP_HEADER_BYTES as u8 / 4) << 4;
    header[13] = flags;
    let mut sum = u32::from(TCP) + TCP_HEADER_BYTES as u32;
    let mut add = |bytes: &[u8]| {
        for pair in bytes.as_chunks::<2>().0 {
            sum += u32::from(u16::from_be_bytes(*pair));
        }
    };
    for address in [from.ip(), to.ip()] {
        match address {
            IpAddr::V4(address) => add(&address.octets()),
            IpAddr::V6(address) => add(&address.octets()),
        }
    }
    add(&header);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[16..18].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_of_a_segment_is_right() {
        for (from, to) in [
            ("192.0.2.1:80", "198.51.100.2:65535"),
            ("[2001:db8::1]:443", "[2001:db8::2]:1"),
        ] {
            let (from, to): (SocketAddr, SocketAddr) = (from.parse().unwrap(), to.parse().unwrap());
            let segment = segment(from, to, RST | ACK, 0x1234_5678, 7);
            let mut words = vec![u16::from(TCP), TCP_HEADER_BYTES as u16];
            let mut add = |bytes: &[u8]| {
                words.extend(
                    bytes
                        .as_chunks::<2>()
                        .0
                        .iter()
                        .copied()
                        .map(u16::from_be_bytes),
                );
            };
            for ip in [from.ip(), to.ip()] {
                match ip {
                    IpAddr::V4(ip) => add(&ip.octets()),
                    IpAddr::V6(ip) => add(&ip.octets()),
                }
            }
            add(&segment);
            let sum = words.into_iter().map(u64::from).sum::<u64>();
            assert_eq!(sum % 0xffff, 0, "{from} to {to}");
        }
    }
}
