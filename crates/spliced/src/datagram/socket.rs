//! One datagram socket: receiving many datagrams at a time, and sending.

mod control_message;
mod header;
mod merging;

use std::cell::Cell;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

use quinn_udp::{RecvMeta, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, connect, connect_unspec,
    recvfrom, send, sendto, socket_with, sockopt,
};
use splice_base::socket_option::{merge_datagrams, report_destination};

use self::merging::Merging;
use super::batch::{Batch, Message};
use super::piece::Piece;
use super::sender::Sender;
use crate::ip_header::TimeToLive;
use crate::plan::DatagramTerms;
use crate::socket_address::SocketAddress;

const FLAGS: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

/// A port to which nothing is sent (RFC 863).
const DISCARD: u16 = 9;

/// A datagram socket of a kind.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    fd: OwnedFd,
    family: AddressFamily,
    /// It is connected to a peer of IPv4, perhaps by a socket of IPv6.
    is_to_ipv4: bool,
    /// It takes over the time to live of what it sends on.
    keeps_ttl: bool,
    /// The time to live that was set last.
    ttl: Cell<Option<u8>>,
    merging: Cell<Merging>,
}

impl DatagramSocket {
    /// A non-blocking socket for the family of `address`.
    pub(crate) fn new(address: &SocketAddress, terms: &DatagramTerms) -> Result<Self, Errno> {
        let family = match address {
            SocketAddress::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
            SocketAddress::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
            _ => AddressFamily::UNIX,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::DGRAM, flags, None)?;
        let socket = Self {
            fd,
            family,
            is_to_ipv4: address
                .inet()
                .is_some_and(|inet| inet.ip().to_canonical().is_ipv4()),
            keeps_ttl: terms.ttl == TimeToLive::Keep,
            ttl: Cell::new(None),
            merging: Cell::default(),
        };
        if socket.is_udp() {
            // Without it congestion marks are lost.
            let _ = match family {
                AddressFamily::INET => sockopt::set_ip_recvtos(&socket.fd, true),
                _ => sockopt::set_ipv6_recvtclass(&socket.fd, true),
            };
            socket.set_header(terms)?;
        }
        Ok(socket)
    }

    pub(crate) fn is_udp(&self) -> bool {
        self.family != AddressFamily::UNIX
    }

    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Has the socket report which of this host's addresses a datagram was sent to.
    pub(crate) fn report_destination(&self, is_ipv6: bool) -> Result<(), Errno> {
        report_destination(&self.fd, is_ipv6)?;
        if is_ipv6 {
            let _ = sockopt::set_ip_recvtos(&self.fd, true);
        }
        Ok(())
    }

    /// Receives what has come, as much as fits into `batch`. `unconnected`: the datagrams have senders.
    pub(crate) fn receive(&self, host: &Host, batch: &mut Batch) -> Result<(), Errno> {
        batch.messages.clear();
        match self.family {
            AddressFamily::UNIX => return self.receive_unix(batch),
            _ if self.keeps_ttl => self.receive_with_ttl(batch)?,
            _ => self.receive_udp(host, batch)?,
        }
        let mut merging = self.merging.get();
        if merging.begins_with(&batch.messages) {
            // Without it datagrams come one by one.
            let _ = merge_datagrams(&self.fd);
        }
        self.merging.set(merging);
        Ok(())
    }

    fn receive_udp(&self, host: &Host, batch: &mut Batch) -> Result<(), Errno> {
        let mut meta = [RecvMeta::default(); Batch::MESSAGES];
        let count = {
            let mut buffers = batch.buffers.iter_mut();
            // There are as many.
            let mut slices: [IoSliceMut<'_>; Batch::MESSAGES] = std::array::from_fn(|_| {
                IoSliceMut::new(buffers.next().map_or(&mut [], |buffer| &mut buffer[..]))
            });
            let received =
                host.receiving
                    .recv(UdpSockRef::from(&self.fd), &mut slices, &mut meta[..]);
            received.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?
        };
        for meta in &meta[..count] {
            batch.messages.push(Message {
                sender: Sender::Udp {
                    client: meta.addr,
                    own: meta.dst_ip,
                },
                length: meta.len,
                stride: meta.stride,
                congestion: meta.ecn,
                ttl: None,
                is_cut: false,
            });
        }
        Ok(())
    }

    fn receive_unix(&self, batch: &mut Batch) -> Result<(), Errno> {
        for buffer in &mut batch.buffers {
            let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
            let (_, length, from) = match recvfrom(&self.fd, &mut buffer[..], flags) {
                Ok(received) => received,
                Err(Errno::AGAIN) if !batch.messages.is_empty() => return Ok(()),
                Err(error) if batch.messages.is_empty() => return Err(error),
                // The next call reports it again, or it was for a datagram that is gone.
                Err(_) => return Ok(()),
            };
            let kept = length.min(buffer.len());
            batch.messages.push(Message {
                sender: Sender::of_unix(from),
                length: kept,
                stride: kept,
                congestion: None,
                ttl: None,
                is_cut: length > buffer.len(),
            });
        }
        Ok(())
    }

    /// Sends to the peer that this socket is connected to.
    pub(crate) fn send(&self, piece: &Piece<'_>) -> Result<(), Errno> {
        self.use_ttl(piece.ttl)?;
        if self.is_udp() && piece.needs_control() {
            return self.send_with_control(piece, None, None);
        }
        send(&self.fd, piece.bytes, FLAGS).map(drop)
    }

    /// Sends an answer to `receiver`, from the address `own` of this host if there is a choice.
    pub(crate) fn answer(
        &self,
        piece: &Piece<'_>,
        receiver: &Sender,
        own: Option<IpAddr>,
    ) -> Result<(), Errno> {
        self.use_ttl(piece.ttl)?;
        match receiver {
            // RFC 768: no port to reply to.
            Sender::Udp { client, .. } if client.port() == 0 => Err(Errno::DESTADDRREQ),
            Sender::Udp { client, .. } if own.is_some() || piece.needs_control() => {
                self.send_with_control(piece, Some(*client), own)
            }
            Sender::Udp { client, .. } => sendto(&self.fd, piece.bytes, FLAGS, client).map(drop),
            Sender::Unix(client) => sendto(&self.fd, piece.bytes, FLAGS, client).map(drop),
            Sender::Unnamed => Err(Errno::DESTADDRREQ),
        }
    }
}

/// A socket that is asked about this host.
#[derive(Debug)]
pub(crate) struct Host {
    /// What quinn-udp wants to know of the kernel to receive. It forbids fragments to the socket that it has.
    receiving: UdpSocketState,
    socket: UdpSocket,
}

impl Host {
    pub(crate) fn new() -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        Ok(Self {
            receiving: UdpSocketState::new(UdpSockRef::from(&socket))?,
            socket,
        })
    }

    /// The address that answers come from, if a client has sent to `own`. `None`: the one that the kernel chooses, since
    /// nobody answers from a broadcast or multicast address.
    pub(crate) fn answers_from(&self, own: IpAddr) -> Option<IpAddr> {
        (!self.is_of_many(own)).then_some(own)
    }

    /// Whether an address is a broadcast or multicast address.
    pub(crate) fn is_of_many(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            address if address.is_multicast() => true,
            IpAddr::V4(address) => self.is_broadcast(address),
            IpAddr::V6(_) => false,
        }
    }

    /// connect(2) to a broadcast address fails with EACCES without SO_BROADCAST; if a route prohibits it, also with.
    fn is_broadcast(&self, address: Ipv4Addr) -> bool {
        let connect = || connect(&self.socket, &SocketAddr::from((address, DISCARD)));
        let connected = connect().or_else(|errno| match errno {
            Errno::ACCESS => Err(errno),
            // The socket keeps the source address of its first connection, which this host may have lost since.
            _ => {
                connect_unspec(&self.socket)?;
                connect()
            }
        });
        if connected != Err(Errno::ACCESS) || self.socket.set_broadcast(true).is_err() {
            return false;
        }
        let is_broadcast = connect().is_ok();
        let _ = self.socket.set_broadcast(false);
        is_broadcast
    }
}
