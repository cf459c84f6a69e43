//! A resolved address: what the kernel can bind to or connect to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getpeername, getsockname, ipproto, socket_with, sockopt,
};
use splice::{Address, Kind};

/// One address as the kernel takes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Inet(SocketAddr),
    Unix(SocketAddrUnix),
}

impl Place {
    /// The places that `address` stands for when listening.
    pub(crate) fn to_listen(address: &Address) -> Result<Vec<Self>> {
        match address {
            // One socket takes both families where the host has IPv6.
            Address::Inet { host, port } if host.is_empty() => {
                Ok(vec![Self::Inet((Ipv6Addr::UNSPECIFIED, *port).into())])
            }
            _ => Self::resolve(address),
        }
    }

    /// The places that `address` stands for when connecting, in the order in which to try them.
    /// It may block on name resolution.
    pub(crate) fn resolve(address: &Address) -> Result<Vec<Self>> {
        match address {
            Address::Inet { host, port } if host.is_empty() => Ok(vec![
                Self::Inet((Ipv4Addr::LOCALHOST, *port).into()),
                Self::Inet((Ipv6Addr::LOCALHOST, *port).into()),
            ]),
            // RFC 6761: the name is this host's loopback, whatever /etc/hosts or a server says of it.
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
            Address::UnixPath(path) => Ok(vec![Self::Unix(
                SocketAddrUnix::new(path.as_path())
                    .with_context(|| format!("{address} cannot be the name of a socket"))?,
            )]),
            Address::UnixAbstract(name) => Ok(vec![Self::Unix(
                SocketAddrUnix::new_abstract_name(name.as_bytes())
                    .with_context(|| format!("{address} cannot be the name of a socket"))?,
            )]),
        }
    }

    /// Whether `address` is a name whose addresses can be others later.
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

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Inet(SocketAddr::V4(_)) => Kind::Tcp4,
            Self::Inet(SocketAddr::V6(_)) => Kind::Tcp6,
            Self::Unix(_) => Kind::Unix,
        }
    }

    /// A listener on this place takes clients over IPv4 and over IPv6.
    pub(crate) fn takes_both_families(&self) -> bool {
        matches!(self, Self::Inet(inet) if inet.is_ipv6() && inet.ip().is_unspecified())
    }

    /// Segments on the way here are IPv4.
    pub(crate) fn is_ipv4(&self) -> bool {
        matches!(self, Self::Inet(inet) if inet.ip().to_canonical().is_ipv4())
    }

    /// A socket of this place's kind that is ready to be an end of a pair: non-blocking, and,
    /// where it is TCP, without Nagle's delay, with keep-alive, with urgent bytes in their place.
    /// A listening socket hands these options on to what it accepts (`sk_clone`).
    pub(crate) fn socket(&self) -> Result<OwnedFd, Errno> {
        let (family, protocol) = match self.kind() {
            Kind::Tcp4 => (AddressFamily::INET, Some(ipproto::TCP)),
            Kind::Tcp6 => (AddressFamily::INET6, Some(ipproto::TCP)),
            _ => (AddressFamily::UNIX, None),
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, protocol)?;
        if family != AddressFamily::UNIX {
            sockopt::set_tcp_nodelay(&socket, true)?;
            sockopt::set_socket_keepalive(&socket, true)?;
            sockopt::set_socket_oobinline(&socket, true)?;
        } else {
            keep_urgent_bytes(&socket);
        }
        Ok(socket)
    }

    pub(crate) fn bind(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Inet(inet) => bind(socket, inet),
            Self::Unix(unix) => bind(socket, unix),
        }
    }

    pub(crate) fn connect(&self, socket: &OwnedFd) -> Result<(), Errno> {
        match self {
            Self::Inet(inet) => connect(socket, inet),
            Self::Unix(unix) => connect(socket, unix),
        }
    }

    /// Whether `socket`, which was connected to this place, is its own peer.
    pub(crate) fn is_itself(&self, socket: &OwnedFd) -> bool {
        let Self::Inet(peer) = self else {
            return false;
        };
        // Its port says no nearly always, which saves the other system call.
        match Self::from_kernel(getsockname(socket).ok()) {
            Some(Self::Inet(own)) if own.port() == peer.port() => {
                let peer = getpeername(socket).ok().flatten();
                Self::from_kernel(peer) == Some(Self::Inet(own))
            }
            _ => false,
        }
    }
}

fn is_localhost(host: &str) -> bool {
    let name = host.strip_suffix('.').unwrap_or(host);
    name.eq_ignore_ascii_case("localhost")
}

/// Keeps the urgent bytes of a UNIX stream in their place. What a UNIX listener accepts does not
/// have its options. A kernel whose UNIX streams know no urgent byte (before 5.15) loses none.
pub(crate) fn keep_urgent_bytes(unix: &OwnedFd) {
    let _ = sockopt::set_socket_oobinline(unix, true);
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(inet) => match inet.ip().to_canonical() {
                // A client that came over IPv4 to a socket of both families.
                IpAddr::V4(mapped) => write!(f, "{mapped}:{}", inet.port()),
                IpAddr::V6(_) => inet.fmt(f),
            },
            Self::Unix(unix) => match (unix.path_bytes(), unix.abstract_name()) {
                (_, Some(name)) => write!(f, "unix:@{}", String::from_utf8_lossy(name)),
                (Some(path), None) => write!(f, "unix:{}", String::from_utf8_lossy(path)),
                (None, None) => f.write_str("unix:"),
            },
        }
    }
}
