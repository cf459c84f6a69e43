//! Sending with control messages: several datagrams with one call, congestion marks, the source address.
//!
//! quinn-udp does the same, but after one `EINVAL` it sends without `UDP_SEGMENT` and congestion marks for good, and a
//! client can cause that error.

use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd as _;

use nix::libc::{in_addr, in_pktinfo, in6_addr, in6_pktinfo};
use nix::sys::socket::{ControlMessage, MsgFlags, SockaddrStorage, sendmsg};
use rustix::io::Errno;
use rustix::net::AddressFamily;

use super::DatagramSocket;
use super::header::of_nix;
use crate::datagram::piece::Piece;

impl Piece<'_> {
    pub(super) fn needs_control(&self) -> bool {
        self.is_many() || self.congestion.is_some()
    }
}

impl DatagramSocket {
    /// Sends `piece` to `client`, or to the peer of a connected socket, from the address `own` of this host or the one
    /// that the kernel chooses.
    pub(super) fn send_with_control(
        &self,
        piece: &Piece<'_>,
        client: Option<SocketAddr>,
        own: Option<IpAddr>,
    ) -> Result<(), Errno> {
        let is_to_ipv4 = match client {
            Some(client) => client.ip().to_canonical().is_ipv4(),
            None => self.is_to_ipv4,
        };
        let mark = piece.congestion.map_or(0, |mark| mark as u8);
        let class = i32::from(mark);
        // Merged datagrams are not longer together than 64 KiB.
        let stride = u16::try_from(piece.stride).unwrap_or(u16::MAX);
        let (ipv4, ipv6);
        let mut control = Vec::with_capacity(3);
        if piece.congestion.is_some() {
            control.push(match is_to_ipv4 {
                true => ControlMessage::Ipv4Tos(&mark),
                false => ControlMessage::Ipv6TClass(&class),
            });
        }
        if piece.is_many() {
            control.push(ControlMessage::UdpGsoSegments(&stride));
        }
        match own.map(|own| self.of_family(own)) {
            Some(IpAddr::V4(own)) => {
                ipv4 = in_pktinfo {
                    ipi_ifindex: 0,
                    ipi_spec_dst: in_addr {
                        s_addr: u32::from_ne_bytes(own.octets()),
                    },
                    ipi_addr: in_addr { s_addr: 0 },
                };
                control.push(ControlMessage::Ipv4PacketInfo(&ipv4));
            }
            Some(IpAddr::V6(own)) => {
                ipv6 = in6_pktinfo {
                    ipi6_addr: in6_addr {
                        s6_addr: own.octets(),
                    },
                    ipi6_ifindex: 0,
                };
                control.push(ControlMessage::Ipv6PacketInfo(&ipv6));
            }
            None => {}
        }
        let client = client.map(SockaddrStorage::from);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let bytes = [IoSlice::new(piece.bytes)];
        let fd = self.fd.as_raw_fd();
        let sent = sendmsg(fd, &bytes, &control, flags, client.as_ref());
        sent.map(drop).map_err(of_nix)
    }

    /// An address as this socket knows it.
    fn of_family(&self, address: IpAddr) -> IpAddr {
        match (self.family, address) {
            (AddressFamily::INET6, IpAddr::V4(ipv4)) => ipv4.to_ipv6_mapped().into(),
            _ => address.to_canonical(),
        }
    }
}
