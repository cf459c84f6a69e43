//! One datagram socket: receiving many datagrams at a time, and sending.

mod header;

use std::cell::Cell;
use std::io::IoSliceMut;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recvfrom, send, sendto,
    socket_with, sockopt,
};
use splice_base::socket_option::{merge_datagrams, report_destination};

use super::batch::{Batch, Message};
use super::sender::Sender;
use super::terms::DatagramTerms;
use crate::ip_header::TimeToLive;
use crate::socket_address::SocketAddress;

/// A datagram socket of a kind.
#[derive(Debug)]
pub(crate) struct DatagramSocket {
    fd: OwnedFd,
    family: AddressFamily,
    /// It takes over the time to live of what it sends on.
    keeps_ttl: bool,
    /// The time to live that was set last.
    ttl: Cell<Option<u8>>,
}

impl DatagramSocket {
    /// A non-blocking socket for the family of `address`.
    pub(crate) fn new(address: &SocketAddress, terms: &DatagramTerms) -> Result<Self, Errno> {
        let family = match address {
            SocketAddress::Inet(SocketAddr::V4(_)) => AddressFamily::INET,
            SocketAddress::Inet(SocketAddr::V6(_)) => AddressFamily::INET6,
            SocketAddress::Unix(_) => AddressFamily::UNIX,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let fd = socket_with(family, SocketType::DGRAM, flags, None)?;
        let socket = Self {
            fd,
            family,
            keeps_ttl: terms.ttl == TimeToLive::Keep,
            ttl: Cell::new(None),
        };
        if socket.is_udp() {
            // Without it datagrams come one by one.
            let _ = merge_datagrams(&socket.fd);
            // Without it congestion marks are lost.
            let _ = match family {
                AddressFamily::INET => sockopt::set_ip_recvtos(&socket.fd, true),
                _ => sockopt::set_ipv6_recvtclass(&socket.fd, true),
            };
            socket.set_header(terms)?;
        }
        Ok(socket)
    }

    fn is_udp(&self) -> bool {
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
    pub(crate) fn receive(&self, offload: &Offload, batch: &mut Batch) -> Result<(), Errno> {
        batch.messages.clear();
        match self.family {
            AddressFamily::UNIX => self.receive_unix(batch),
            _ if self.keeps_ttl => self.receive_with_ttl(batch),
            _ => self.receive_udp(offload, batch),
        }
    }

    fn receive_udp(&self, offload: &Offload, batch: &mut Batch) -> Result<(), Errno> {
        let mut meta = [RecvMeta::default(); Batch::MESSAGES];
        let count = {
            let mut buffers = batch.buffers.iter_mut();
            // There are as many.
            let mut slices: [IoSliceMut<'_>; Batch::MESSAGES] = std::array::from_fn(|_| {
                IoSliceMut::new(buffers.next().map_or(&mut [], |buffer| &mut buffer[..]))
            });
            let received =
                offload
                    .state
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
    pub(crate) fn send(&self, offload: &Offload, piece: &Piece<'_>) -> Result<(), Errno> {
        self.use_ttl(piece.ttl)?;
        let connected = piece.connected.filter(|_| self.is_udp());
        match connected {
            Some(peer) if piece.needs_control() => offload.send(self.fd.as_fd(), piece, peer, None),
            _ => send(
                &self.fd,
                piece.bytes,
                SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
            )
            .map(drop),
        }
    }

    /// Sends an answer to `receiver`, from the address that it has sent to.
    pub(crate) fn answer(
        &self,
        offload: &Offload,
        piece: &Piece<'_>,
        receiver: &Sender,
    ) -> Result<(), Errno> {
        self.use_ttl(piece.ttl)?;
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match receiver {
            Sender::Udp { client, own } => {
                if own.is_some() || piece.needs_control() {
                    offload.send(self.fd.as_fd(), piece, *client, *own)
                } else {
                    sendto(&self.fd, piece.bytes, flags, client).map(drop)
                }
            }
            Sender::Unix(client) => sendto(&self.fd, piece.bytes, flags, client).map(drop),
            Sender::Unnamed => Err(Errno::DESTADDRREQ),
        }
    }
}

/// One or more datagrams to be sent in one call.
#[derive(Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// The length of each datagram but the last.
    pub(crate) stride: usize,
    pub(crate) congestion: Option<EcnCodepoint>,
    /// The time to live that is left, if it is kept.
    pub(crate) ttl: Option<u8>,
    /// The peer of the sending socket, if it is a UDP socket.
    pub(crate) connected: Option<SocketAddr>,
}

impl<'a> Piece<'a> {
    pub(crate) fn is_many(&self) -> bool {
        self.stride < self.bytes.len()
    }

    pub(crate) fn datagrams(&self) -> usize {
        match self.stride {
            0 => 1,
            stride => self.bytes.len().div_ceil(stride).max(1),
        }
    }

    /// Each datagram by itself.
    pub(crate) fn singles(&self) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let Self {
            stride,
            congestion,
            ttl,
            connected,
            bytes,
        } = *self;
        let pieces = bytes.chunks(stride.max(1));
        pieces.map(move |bytes| Piece {
            bytes,
            stride: bytes.len(),
            congestion,
            ttl,
            connected,
        })
    }

    fn needs_control(&self) -> bool {
        self.is_many() || self.congestion.is_some()
    }
}

/// What the kernel offers beside plain system calls: segmentation, congestion marks, source addresses.
#[derive(Debug)]
pub(crate) struct Offload {
    state: UdpSocketState,
}

impl Offload {
    /// Finds out with a socket of its own what this kernel offers. Nothing of it is bound to that socket,
    /// and the relay's own sockets keep what the library would forbid: fragments.
    pub(crate) fn probe() -> std::io::Result<Self> {
        let socket = std::net::UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0))?;
        let state = UdpSocketState::new(UdpSockRef::from(&socket))?;
        Ok(Self { state })
    }

    /// Whether a call may send as many datagrams.
    pub(crate) fn takes(&self, datagrams: usize) -> bool {
        datagrams <= self.state.max_gso_segments()
    }

    fn send(
        &self,
        socket: BorrowedFd<'_>,
        piece: &Piece<'_>,
        destination: SocketAddr,
        src_ip: Option<IpAddr>,
    ) -> Result<(), Errno> {
        let transmit = Transmit {
            destination,
            ecn: piece.congestion,
            contents: piece.bytes,
            segment_size: piece.is_many().then_some(piece.stride),
            src_ip,
        };
        let sent = self.state.try_send(UdpSockRef::from(&socket), &transmit);
        sent.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))
    }
}
