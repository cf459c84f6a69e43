//! A resolved address, which the kernel can bind or connect to.

use std::fmt::{self, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrAny, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getpeername, getsockname, ipproto, socket_with, sockopt,
};
use splice::{Address, Kind};

/// The address of a socket. What the user wrote is an [`Address`], which may stand for several.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum SocketAddress {
    Inet(SocketAddr),
    Unix(SocketAddrUnix),
}

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

    /// The address, unless it is a UNIX socket's.
    pub(crate) fn inet(&self) -> Option<SocketAddr> {
        match self {
            Self::Inet(inet) => Some(*inet),
            Self::Unix(_) => None,
        }
    }

    pub(crate) fn kind(&self) -> Kind {
        match self {
            Self::Inet(SocketAddr::V4(_)) => Kind::Tcp4,
            Self::Inet(SocketAddr::V6(_)) => Kind::Tcp6,
            Self::Unix(_) => Kind::Unix,
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
            Self::Unix(_) => true,
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

impl fmt::Display for SocketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet(inet) => match inet.ip().to_canonical() {
                // An IPv4 client of a dual-stack listener.
                IpAddr::V4(mapped) => write!(f, "{mapped}:{}", inet.port()),
                IpAddr::V6(_) => inet.fmt(f),
            },
            Self::Unix(unix) => match (unix.path_bytes(), unix.abstract_name()) {
                (_, Some(name)) => write!(f, "unix:@{}", Shown(name)),
                (Some(path), None) => write!(f, "unix:{}", Shown(path)),
                (None, None) => f.write_str("unix:"),
            },
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
