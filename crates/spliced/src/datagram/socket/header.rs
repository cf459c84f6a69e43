//! What the IP header of a socket's datagrams says: time to live, and whether routers may split them.

use std::io::IoSliceMut;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::AsRawFd as _;

use nix::cmsg_space;
use nix::libc::{in_pktinfo, in6_pktinfo};
use nix::sys::socket::sockopt::{Ipv4RecvTtl, Ipv6RecvHopLimit};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt};
use quinn_udp::EcnCodepoint;
use rustix::io::Errno;
use rustix::net::AddressFamily;
use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, ip_mtu, ipv6_mtu, set_ip_mtu_discover, set_ip_ttl,
    set_ipv6_mtu_discover, set_ipv6_unicast_hops,
};

use super::DatagramSocket;
use crate::datagram::batch::{Batch, Message};
use crate::datagram::sender::Sender;
use crate::ip_header::{DontFragment, TimeToLive};
use crate::plan::DatagramTerms;

impl DatagramSocket {
    pub(super) fn set_header(&self, terms: &DatagramTerms) -> Result<(), Errno> {
        let is_ipv6 = self.family == AddressFamily::INET6;
        match terms.dont_fragment {
            DontFragment::Auto => {}
            DontFragment::Yes => {
                set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::DO)?;
                if is_ipv6 {
                    set_ipv6_mtu_discover(&self.fd, Ipv6PathMtuDiscovery::DO)?;
                }
            }
            DontFragment::No => set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::DONT)?,
        }
        match terms.ttl {
            TimeToLive::Host => {}
            TimeToLive::Fixed(ttl) => self.set_ttl(ttl.get())?,
            TimeToLive::Keep => {
                setsockopt(&self.fd, Ipv4RecvTtl, &true).map_err(of_nix)?;
                if is_ipv6 {
                    setsockopt(&self.fd, Ipv6RecvHopLimit, &true).map_err(of_nix)?;
                }
            }
        }
        Ok(())
    }

    /// Has what is sent from now on have the headers of other terms than those that the socket was made with.
    pub(crate) fn follow(&mut self, terms: &DatagramTerms) -> Result<(), Errno> {
        if !self.is_udp() {
            return Ok(());
        }
        let is_ipv6 = self.family == AddressFamily::INET6;
        // Those of the host.
        set_ip_ttl(&self.fd, u32::MAX)?;
        set_ip_mtu_discover(&self.fd, Ipv4PathMtuDiscovery::WANT)?;
        setsockopt(&self.fd, Ipv4RecvTtl, &false).map_err(of_nix)?;
        if is_ipv6 {
            set_ipv6_unicast_hops(&self.fd, None)?;
            set_ipv6_mtu_discover(&self.fd, Ipv6PathMtuDiscovery::WANT)?;
            setsockopt(&self.fd, Ipv6RecvHopLimit, &false).map_err(of_nix)?;
        }
        self.ttl.set(None);
        self.keeps_ttl = terms.ttl == TimeToLive::Keep;
        self.set_header(terms)
    }

    /// Has the next datagram leave with this time to live, if it has one.
    pub(super) fn use_ttl(&self, ttl: Option<u8>) -> Result<(), Errno> {
        let Some(ttl) = ttl.filter(|_| self.is_udp()) else {
            return Ok(());
        };
        if self.ttl.get() == Some(ttl) {
            return Ok(());
        }
        self.set_ttl(ttl)?;
        self.ttl.set(Some(ttl));
        Ok(())
    }

    /// A socket of IPv6 also sends datagrams of IPv4.
    fn set_ttl(&self, ttl: u8) -> Result<(), Errno> {
        set_ip_ttl(&self.fd, ttl.into())?;
        if self.family == AddressFamily::INET6 {
            set_ipv6_unicast_hops(&self.fd, Some(ttl))?;
        }
        Ok(())
    }

    /// How long a packet to the peer of this socket may be, in bytes, and whether it is one of IPv6. `None` for a
    /// UNIX socket.
    pub(crate) fn path_mtu(&self) -> Option<(u32, bool)> {
        match self.family {
            AddressFamily::INET => Some((ip_mtu(&self.fd).ok()?, false)),
            AddressFamily::INET6 => Some((ipv6_mtu(&self.fd).ok()?, true)),
            _ => None,
        }
    }

    /// Receives message by message, since quinn-udp does not report a time to live.
    pub(super) fn receive_with_ttl(&self, batch: &mut Batch) -> Result<(), Errno> {
        let mut control = cmsg_space!(i32, i32, i32, i32, in_pktinfo, in6_pktinfo);
        for buffer in &mut batch.buffers {
            let mut slices = [IoSliceMut::new(buffer)];
            let fd = self.fd.as_raw_fd();
            let flags = MsgFlags::MSG_DONTWAIT;
            let received = recvmsg::<SockaddrStorage>(fd, &mut slices, Some(&mut control), flags);
            let received = match received {
                Ok(received) => received,
                Err(nix::errno::Errno::EAGAIN) if !batch.messages.is_empty() => return Ok(()),
                Err(error) if batch.messages.is_empty() => return Err(of_nix(error)),
                // The next call reports it again, or it was for a datagram that is gone.
                Err(_) => return Ok(()),
            };
            let client = received.address.as_ref().and_then(inet);
            // The kernel names the sender of each datagram.
            let client = client.unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into());
            let mut message = Message {
                sender: Sender::Udp { client, own: None },
                length: received.bytes,
                stride: received.bytes,
                congestion: None,
                ttl: None,
                is_cut: false,
            };
            for part in received.cmsgs().map_err(of_nix)? {
                let own = match part {
                    ControlMessageOwned::Ipv4Ttl(ttl) | ControlMessageOwned::Ipv6HopLimit(ttl) => {
                        message.ttl = u8::try_from(ttl.saturating_sub(1)).ok();
                        continue;
                    }
                    ControlMessageOwned::Ipv4Tos(tos) => {
                        message.congestion = EcnCodepoint::from_bits(tos);
                        continue;
                    }
                    ControlMessageOwned::Ipv6TClass(class) => {
                        message.congestion = EcnCodepoint::from_bits(class as u8);
                        continue;
                    }
                    ControlMessageOwned::UdpGroSegments(stride) => {
                        message.stride = usize::try_from(stride).unwrap_or(received.bytes);
                        continue;
                    }
                    ControlMessageOwned::Ipv4PacketInfo(info) => {
                        IpAddr::from(info.ipi_addr.s_addr.to_ne_bytes())
                    }
                    ControlMessageOwned::Ipv6PacketInfo(info) => {
                        IpAddr::from(info.ipi6_addr.s6_addr)
                    }
                    _ => continue,
                };
                message.sender = Sender::Udp {
                    client,
                    own: Some(own),
                };
            }
            batch.messages.push(message);
        }
        Ok(())
    }
}

fn inet(address: &SockaddrStorage) -> Option<SocketAddr> {
    let ipv4 = address
        .as_sockaddr_in()
        .map(|it| SocketAddr::V4((*it).into()));
    ipv4.or_else(|| {
        address
            .as_sockaddr_in6()
            .map(|it| SocketAddr::V6((*it).into()))
    })
}

pub(super) fn of_nix(errno: nix::errno::Errno) -> Errno {
    Errno::from_raw_os_error(errno as i32)
}
