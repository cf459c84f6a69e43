//! The six kinds of sockets that maps take.

use std::fmt;
use std::os::fd::AsFd;

use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_protocol, socket_type};
use rustix::net::{AddressFamily, SocketType, ipproto};
use splice_base::error::{Error, ErrorKind, Result};

/// The longest payload of a datagram over IPv4: 65535 bytes less the headers of IP and UDP (RFC 768). IPv6 would take
/// 20 more.
const UDP_MOST_BYTES: u32 = 65535 - 20 - 8;

/// The longest UNIX datagram that fits the smallest default send buffer (net.core.wmem_default is 212992 bytes), and
/// the longest that SEQPACKET of VSOCK takes in one piece of memory, with room to spare.
const MESSAGE_MOST_BYTES: u32 = 64 << 10;

/// The kind of a socket, as the redirects tell them apart. IPv4 and IPv6 are one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SocketKind {
    /// TCP over IPv4 or IPv6.
    Tcp,
    /// UDP over IPv4 or IPv6.
    Udp,
    /// UNIX, `SOCK_STREAM`.
    UnixStream,
    /// UNIX, `SOCK_DGRAM`.
    UnixDatagram,
    /// VSOCK, `SOCK_STREAM`.
    VsockStream,
    /// VSOCK, `SOCK_SEQPACKET`.
    VsockSeqpacket,
}

impl SocketKind {
    /// Every kind, in the order of the tables.
    pub const ALL: [Self; 6] = [
        Self::Tcp,
        Self::Udp,
        Self::UnixStream,
        Self::UnixDatagram,
        Self::VsockStream,
        Self::VsockSeqpacket,
    ];

    /// The kind of a socket.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedSocket`] if it is of no kind that a map takes: multipath TCP, UNIX `SOCK_SEQPACKET`,
    /// or no socket at all.
    pub fn of(socket: impl AsFd) -> Result<Self> {
        let unsupported = |what: &str| {
            Err(Error::new(
                ErrorKind::UnsupportedSocket,
                format!("a map of sockets takes TCP, UDP, UNIX and VSOCK sockets, and not {what}"),
            ))
        };
        let facts = socket_domain(&socket)
            .and_then(|domain| Ok((domain, socket_type(&socket)?, socket_protocol(&socket)?)));
        let (domain, of, protocol) = match facts {
            Ok(facts) => facts,
            Err(Errno::NOTSOCK) => return unsupported("a descriptor that is no socket"),
            Err(errno) => return Err(Error::system("cannot tell the kind of a socket", errno)),
        };
        let is_internet = matches!(domain, AddressFamily::INET | AddressFamily::INET6);
        match (domain, of, protocol) {
            (_, SocketType::STREAM, Some(ipproto::TCP)) if is_internet => Ok(Self::Tcp),
            (_, SocketType::STREAM, Some(ipproto::MPTCP)) if is_internet => {
                unsupported("multipath TCP")
            }
            (_, SocketType::DGRAM, Some(ipproto::UDP)) if is_internet => Ok(Self::Udp),
            (AddressFamily::UNIX, SocketType::STREAM, _) => Ok(Self::UnixStream),
            (AddressFamily::UNIX, SocketType::DGRAM, _) => Ok(Self::UnixDatagram),
            (AddressFamily::UNIX, SocketType::SEQPACKET, _) => unsupported("UNIX SOCK_SEQPACKET"),
            (AddressFamily::VSOCK, SocketType::STREAM, _) => Ok(Self::VsockStream),
            (AddressFamily::VSOCK, SocketType::SEQPACKET, _) => Ok(Self::VsockSeqpacket),
            _ => unsupported("a socket of another family, type or protocol"),
        }
    }

    /// Its name in the tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::UnixStream => "UNIX stream",
            Self::UnixDatagram => "UNIX dgram",
            Self::VsockStream => "VSOCK stream",
            Self::VsockSeqpacket => "VSOCK seqpacket",
        }
    }

    /// Whether it is a stream of bytes, without borders between messages.
    pub fn is_stream(self) -> bool {
        matches!(self, Self::Tcp | Self::UnixStream | Self::VsockStream)
    }

    /// The longest message that a redirect gives to such a socket in one piece, in bytes. `None` for a stream.
    pub fn most_bytes(self) -> Option<u32> {
        match self {
            Self::Tcp | Self::UnixStream | Self::VsockStream => None,
            Self::Udp => Some(UDP_MOST_BYTES),
            Self::UnixDatagram | Self::VsockSeqpacket => Some(MESSAGE_MOST_BYTES),
        }
    }

    pub(crate) fn is_unix(self) -> bool {
        matches!(self, Self::UnixStream | Self::UnixDatagram)
    }

    pub(crate) fn is_vsock(self) -> bool {
        matches!(self, Self::VsockStream | Self::VsockSeqpacket)
    }
}

impl fmt::Display for SocketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
