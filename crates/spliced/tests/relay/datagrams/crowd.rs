//! Many clients behind one socket: each datagram has a source address of its own.

use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::cmsg_space;
use nix::libc::{in_addr, in_pktinfo};
use nix::sys::socket::sockopt::Ipv4PacketInfo;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrIn, recvmsg, sendmsg, setsockopt,
};

use super::socket;

/// 127.1.0.0; those before are left to others.
const FIRST: u32 = 0x7f01_0000;

/// Addresses of this host's loopback, of which there are 16 million. What comes back for any of them is received.
pub(crate) struct Crowd {
    socket: UdpSocket,
    to: SockaddrIn,
}

impl Crowd {
    pub(crate) fn of(to: SocketAddr) -> Self {
        let SocketAddr::V4(to) = to else {
            panic!("{to} is none of IPv4");
        };
        let socket = socket("0.0.0.0:0");
        setsockopt(&socket, Ipv4PacketInfo, &true).expect("IP_PKTINFO");
        Self {
            socket,
            to: to.into(),
        }
    }

    /// The address of client `number`.
    fn address(number: u32) -> Ipv4Addr {
        Ipv4Addr::from(FIRST + number)
    }

    /// Receives a datagram, and the number of the client that it was sent to.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> (u32, usize) {
        let mut slices = [IoSliceMut::new(buffer)];
        let mut control = cmsg_space!(in_pktinfo);
        let fd = self.socket.as_raw_fd();
        let received =
            recvmsg::<SockaddrIn>(fd, &mut slices, Some(&mut control), MsgFlags::empty());
        let received = received.expect("a datagram");
        let mut parts = received.cmsgs().expect("control messages");
        let address = parts.find_map(|part| match part {
            ControlMessageOwned::Ipv4PacketInfo(info) => Some(info.ipi_addr.s_addr),
            _ => None,
        });
        let address = Ipv4Addr::from(address.expect("an address").to_ne_bytes());
        (u32::from(address) - FIRST, received.bytes)
    }

    pub(crate) fn send(&self, number: u32, bytes: &[u8]) {
        let source = in_addr {
            s_addr: u32::from_ne_bytes(Self::address(number).octets()),
        };
        let info = in_pktinfo {
            ipi_ifindex: 0,
            ipi_spec_dst: source,
            ipi_addr: in_addr { s_addr: 0 },
        };
        let sent = sendmsg(
            self.socket.as_raw_fd(),
            &[IoSlice::new(bytes)],
            &[ControlMessage::Ipv4PacketInfo(&info)],
            MsgFlags::empty(),
            Some(&self.to),
        );
        assert_eq!(sent.expect("it is sent"), bytes.len());
    }
}
