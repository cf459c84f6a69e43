//! A resolved address, which the kernel can bind or connect to.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::{Context, Result};
use nix::sys::socket::{SockaddrStorage, VsockAddr};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getpeername, getsockname, ipproto, socket_with, sockopt,
};
use splice::{Address, Kind, SeqpacketAddress, VsockAddress};

/// The address of a socket. What the user wrote is an [`Address`], which may stand for several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SocketAddress {
    Inet(SocketAddr),
    Unix(SocketAddrUnix),
    Vsock(VsockAddress),
    /// Of a socket that keeps messages apart.
    UnixSeqpacket(SocketAddrUnix),
    VsockSeqpacket(VsockAddress),
}

/// `VMADDR_CID_LOCAL` (vsock(7)): this machine itself.
pub(crate) const LOCAL_CID: u32 = 1;

/// `VMADDR_CID_HOST` (vsock(7)): the host, for its guests and for itself.
pub(crate) const HOST_CID: u32 = 2;

impl SocketAddress {
    /// The addresses to listen on for `address`.
    pub(crate) fn to_listen(address: &Address) -> Result<Vec<Self>> {
        match address {
            // One dual-stack socket, if the host has IPv6.
            Address::Inet { host, port } if host.is_empty() => {
                Ok(vec![Self::Inet((Ipv6Addr::UNSPECIFIED, *port).into())])
            }
            _ => Self::resolve(address),
        }
    }

    /// The addresses to connect to for `address`, in the order in which to try them. Blocks on name
    /// resolution.
    pub(crate) fn resolve(address: &Address) -> Result<Vec<Self>> {
        match address {
            Address::Inet { host, port } if host.is_empty() => Ok(vec![
                Self::Inet((Ipv4Addr::LOCALHOST, *port).into()),
                Self::Inet((Ipv6Addr::LOCALHOST, *port).into()),
            ]),
            // RFC 6761: the name is this host's loopback, whatever /etc/hosts or a server says.
            Address::Inet { host, port } if is_localhost(host) => Ok(vec![
                Self::Inet((Ipv4Addr::LOCALHOST, *port).into()),
                Self::Inet((Ipv6Addr::LOCALHOST, *port).into()),
            ]),
            Address::Inet { host, port } => {
                let found: Vec<_> = (host.as_str(), *port)
                    .to_socket_addrs()
                    .with_context(|| format!("the name in {address} cannot be resolved; check it"))?
                    .map(Self::Inet)
                    .collect();
                anyhow::ensure!(
                    !found.is_empty(),
                    "the name in {address} has no address; check it"
                );
                Ok(found)
            }
            Address::UnixPath(path) => Ok(vec![Self::Unix(unix_path(path, address)?)]),
            Address::UnixAbstract(name) => Ok(vec![Self::Unix(unix_abstract(name, address)?)]),
            Address::Vsock(vsock) => Ok(vec![Self::Vsock(*vsock)]),
            Address::Seqpacket(SeqpacketAddress::UnixPath(path)) => {
                Ok(vec![Self::UnixSeqpacket(unix_path(path, address)?)])
            }
            Address::Seqpacket(SeqpacketAddress::UnixAbstract(name)) => {
                Ok(vec![Self::UnixSeqpacket(unix_abstract(name, address)?)])
            }
            Address::Seqpacket(SeqpacketAddress::Vsock(vsock)) => {
                Ok(vec![Self::VsockSeqpacket(*vsock)])
            }
        }
    }

    /// The kind of the sockets that `address` stands for. A name may have addresses of IPv4 and of IPv6, which engines do
    /// not tell apart.
    pub(crate) fn kind_for(address: &Address) -> Kind {
        match address {
            Address::Inet { .. } => Kind::Tcp4,
            Address::UnixPath(_) | Address::UnixAbstract(_) => Kind::Unix,
            Address::Vsock(_) => Kind::Vsock,
            Address::Seqpacket(SeqpacketAddress::Vsock(_)) => Kind::VsockSeqpacket,
            Address::Seqpacket(_) => Kind::UnixSeqpacket,
        }
    }

    /// Whether `address` is a name, whose addresses may change.
    pub(crate) fn needs_resolver(address: &Address) -> bool {
        matches!(address, Address::Inet { host, .. }
            if !host.is_empty() && !is_localhost(host) && host.parse::<IpAddr>().is_err())
    }

    pub(crate) fn from_kernel(any: Option<SocketAddrAny>) -> Option<Self> {
        let any = any?;
        match SocketAddr::try_from(any.clone()) {
            Ok(inet) => Some(Self::Inet(inet)),
            Err(_) => SocketAddrUnix::try_from(any).ok().map(Self::Unix),
        }
    }

    /// The address that `socket`, of any kind, is bound to.
    pub(crate) fn own(socket: &OwnedFd) -> Option<Self> {
        let vsock = || nix::sys::socket::getsockname(socket.as_raw_fd());
        Self::named(socket, getsockname(socket).ok(), vsock)
    }

    /// The address that `socket`, of any kind, is connected with.
    pub(crate) fn of_peer(socket: &OwnedFd) -> Option<Self> {
        let vsock = || nix::sys::socket::getpeername(socket.as_raw_fd());
        Self::named(socket, getpeername(socket).ok().flatten(), vsock)
    }

    fn named(
        socket: &OwnedFd,
        any: Option<SocketAddrAny>,
        vsock: impl Fn() -> nix::Result<SockaddrStorage>,
    ) -> Option<Self> {
        let keeps_messages =
            || sockopt::socket_type(socket).is_ok_and(|of| of == SocketType::SEQPACKET);
        match Self::from_kernel(any) {
            Some(Self::Unix(unix)) if keeps_messages() => Some(Self::UnixSeqpacket(unix)),
            Some(other) => Some(other),
            None => {
                let name = vsock().ok()?;
                let name = name.as_vsock_addr()?;
                let vsock = VsockAddress {
                    cid: name.cid(),
                    port: name.port(),
                };
                Some(match keeps_messages() {
                    true => Self::VsockSeqpacket(vsock),
                    false => Self::Vsock(vsock),
                })
            }
        }
    }

    /// The address, if it is one of TCP.
    pub(crate) fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(inet) => Some(*inet),
            _ => None,
        }
    }

    /// The address, if it is one of VSOCK.
    pub(crate) fn vsock(&self) -> Option<VsockAddress> {
        match self {
            Self::Vsock(vsock) | Self::VsockSeqpacket(vsock) => Some(*vsock),
            _ => None,
        }
    }

    /// The name of a UNIX socket of either kind.
    pub(crate) fn unix(&self) -> Option<&SocketAddrUnix> {
        match self {
            Self::Unix(unix) | Self::UnixSeqpacket(unix) => Some(unix),
            _ => None,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Inet(SocketAddr::V4(_)) => Kind::Tcp4,
            Self::Inet(SocketAddr::V6(_)) => Kind::Tcp6,
            Self::Unix(_) => Kind::Unix,
            Self::Vsock(_) => Kind::Vsock,
            Self::UnixSeqpacket(_) => Kind::UnixSeqpacket,
            Self::VsockSeqpacket(_) => Kind::VsockSeqpacket,
        }
    }

    /// Whether a listener on this address is dual-stack: it accepts clients over IPv4 and IPv6.
    pub(crate) fn is_dual_stack(&self) -> bool {
        matches!(self, Self::Inet(inet) if inet.is_ipv6() && inet.ip().is_unspecified())
    }

    /// Why the kernel does not know where it is, and what to do: each interface has link-local addresses of its own.
    pub(crate) fn lacks_interface(&self) -> Option<String> {
        match self {
            Self::Inet(SocketAddr::V6(it))
                if it.ip().is_unicast_link_local() && it.scope_id() == 0 =>
            {
                let ip = it.ip();
                Some(format!(
                    "the link-local address {ip} needs its interface; write [{ip}%INTERFACE]"
                ))
            }
            _ => None,
        }
    }

    /// Whether nobody but this host can be reached at it, or reach it.
    pub(crate) fn is_of_loopback(&self) -> bool {
        match self {
            Self::Inet(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) | Self::UnixSeqpacket(_) => true,
            Self::Vsock(vsock) | Self::VsockSeqpacket(vsock) => vsock.cid == LOCAL_CID,
        }
    }

    /// Whether connections to this address use IPv4.
    pub(crate) fn is_ipv4(&self) -> bool {
        matches!(self, Self::Inet(inet) if inet.ip().to_canonical().is_ipv4())
    }

    /// A socket of this address's kind with the options that a pair needs: non-blocking, and for TCP
    /// `TCP_NODELAY`, `SO_KEEPALIVE` and `SO_OOBINLINE`. An accepted socket inherits them from the
    /// listening socket (`sk_clone`).
    pub(crate) fn socket(&self) -> Result<OwnedFd, Errno> {
        let (family, socket_type, protocol) = match self.kind() {
            Kind::Tcp4 => (AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP)),
            Kind::Tcp6 => (AddressFamily::INET6, SocketType::STREAM, Some(ipproto::TCP)),
            Kind::Vsock => (AddressFamily::VSOCK, SocketType::STREAM, None),
            Kind::VsockSeqpacket => (AddressFamily::VSOCK, SocketType::SEQPACKET, None),
            Kind::UnixSeqpacket => (AddressFamily::UNIX, SocketType::SEQPACKET, None),
            _ => (AddressFamily::UNIX, SocketType::STREAM, None),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, socket_type, flags, protocol)?;
        match self {
            Self::Inet(_) => {
                sockopt::set_tcp_nodelay(&socket, true)?;
                sockopt::set_socket_keepalive(&socket, true)?;
                sockopt::set_socket_oobinline(&socket, true)?;
            }
            Self::Unix(_) => keep_urgent_bytes(&socket),
            _ => {}
        }
        Ok(socket)
    }

    pub(crate) fn bind(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Inet(inet) => bind(socket, inet),
            Self::Unix(unix) | Self::UnixSeqpacket(unix) => bind(socket, unix),
            Self::Vsock(vsock) | Self::VsockSeqpacket(vsock) => {
                let vsock = VsockAddr::new(vsock.cid, vsock.port);
                errno(nix::sys::socket::bind(socket.as_raw_fd(), &vsock))
            }
        }
    }

    pub(crate) fn connect(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Inet(inet) => connect(socket, inet),
            Self::Unix(unix) | Self::UnixSeqpacket(unix) => connect(socket, unix),
            Self::Vsock(vsock) | Self::VsockSeqpacket(vsock) => {
                let vsock = VsockAddr::new(vsock.cid, vsock.port);
                errno(nix::sys::socket::connect(socket.as_raw_fd(), &vsock))
            }
        }
    }

    /// Whether `socket`, which was connected to this address, is connected to itself.
    pub(crate) fn is_itself(&self, socket: &OwnedFd) -> bool {
        let Self::Inet(peer) = self else {
            return false;
        };
        // The port nearly always rules it out, which saves the second system call.
        match Self::from_kernel(getsockname(socket).ok()) {
            Some(Self::Inet(own)) if own.port() == peer.port() => {
                let peer = getpeername(socket).ok().flatten();
                Self::from_kernel(peer) == Some(Self::Inet(own))
            }
            _ => false,
        }
    }
}

fn unix_path(path: &Path, shown: &Address) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new(path).with_context(|| format!("{shown} cannot be the name of a socket"))
}

fn unix_abstract(name: &str, shown: &Address) -> Result<SocketAddrUnix> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
        .with_context(|| format!("{shown} cannot be the name of a socket"))
}

fn errno(result: nix::Result<()>) -> Result<(), Errno> {
    result.map_err(|error| Errno::from_raw_os_error(error as i32))
}

/// Whether `socket`, which is being connected and is reported as ready, is connected. Without an error and without a peer
/// it is not: the report was about another socket that had its descriptor, or came before connect(2).
///
/// # Errors
/// Why it could not be connected.
pub(crate) fn has_connected(socket: impl AsFd) -> Result<bool, Errno> {
    // While a socket is being connected, and after a failure, it has no peer (`inet_getname`, `unix_getname`).
    if getpeername(&socket).is_ok() {
        return Ok(true);
    }
    sockopt::socket_error(&socket)??;
    Ok(false)
}

pub(crate) fn is_localhost(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost")
}

/// Sets `SO_OOBINLINE`, so that an urgent byte stays in the stream. A socket that a UNIX listener accepts
/// does not inherit the option. Before Linux 5.15 UNIX streams have no urgent bytes.
pub(crate) fn keep_urgent_bytes(unix: &OwnedFd) {
    let _ = sockopt::set_socket_oobinline(unix, true);
}

/// The name of a UNIX socket. A client chooses that of its own, so nothing in it may control a terminal.
struct Shown<'a>(&'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(self.0);
        text.chars().try_for_each(|character| match character {
            // Harmless to a terminal.
            '"' | '\'' | '\\' => f.write_char(character),
            _ => character.escape_debug().fmt(f),
        })
    }
}

/// The name of a UNIX socket, without its kind.
struct Named<'a>(&'a SocketAddrUnix);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.path_bytes(), self.0.abstract_name()) {
            (_, Some(name)) => write!(f, "@{}", Shown(name)),
            (Some(path), None) => write!(f, "{}", Shown(path)),
            (None, None) => Ok(()),
        }
    }
}

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(inet) => match inet.ip().to_canonical() {
                // An IPv4 client of a dual-stack listener.
                IpAddr::V4(mapped) => write!(f, "{mapped}:{}", inet.port()),
                IpAddr::V6(_) => inet.fmt(f),
            },
            Self::Unix(unix) => write!(f, "unix:{}", Named(unix)),
            Self::UnixSeqpacket(unix) => write!(f, "seqpacket:{}", Named(unix)),
            Self::Vsock(vsock) => write!(f, "vsock:{vsock}"),
            Self::VsockSeqpacket(vsock) => write!(f, "vsock-seqpacket:{vsock}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use netlab::until_found;

    use super::*;

    #[test]
    fn a_socket_without_error_and_without_peer_is_not_connected() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("it listens");
        let address = SocketAddress::Inet(listener.local_addr().expect("its address"));
        let socket = || address.socket().expect("a socket");
        let connecting = || {
            let socket = socket();
            let begun = address.connect(&socket);
            assert!(
                matches!(begun, Ok(()) | Err(Errno::INPROGRESS)),
                "{begun:?}"
            );
            socket
        };
        assert_eq!(has_connected(socket()), Ok(false));
        let good = connecting();
        until_found("it is connected", || {
            has_connected(&good).ok().filter(|is| *is)
        });
        drop(listener);
        let refused = connecting();
        let errno = until_found("it is refused", || has_connected(&refused).err());
        assert_eq!(errno, Errno::CONNREFUSED);
        // The error is reported once.
        assert_eq!(has_connected(&refused), Ok(false));
    }

    #[test]
    fn the_name_of_a_socket_controls_no_terminal() {
        let path = SocketAddrUnix::new("/run/\u{1b}[31m\n\"a\\ü\u{202e}").expect("a path");
        assert_eq!(
            SocketAddress::Unix(path).to_string(),
            "unix:/run/\\u{1b}[31m\\n\"a\\ü\\u{202e}"
        );
    }
}
