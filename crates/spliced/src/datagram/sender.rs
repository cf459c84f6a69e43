//! Who has sent a datagram, and can be answered.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use rustix::net::{SocketAddrAny, SocketAddrUnix};

use crate::socket_address::SocketAddress;

/// Who has sent a datagram.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Sender {
    Udp {
        client: SocketAddr,
        /// The address of this host that the client has sent to, from which it expects its answers.
        own: Option<IpAddr>,
    },
    Unix(SocketAddrUnix),
    /// A UNIX socket without a name, or with one that is relative to its directory: nobody can answer it.
    Unnamed,
}

impl Sender {
    /// Who sent a datagram that a UNIX socket has received.
    pub(crate) fn of_unix(from: Option<SocketAddrAny>) -> Self {
        let unix = from.and_then(|from| SocketAddrUnix::try_from(from).ok());
        match unix {
            // A relative path leads elsewhere from here, perhaps to another client.
            Some(unix)
                if unix.path_bytes().is_some_and(|path| path.starts_with(b"/"))
                    || unix.abstract_name().is_some() =>
            {
                Self::Unix(unix)
            }
            _ => Self::Unnamed,
        }
    }
}

impl Sender {
    /// The address of this host that the client has sent to, if the listener has several.
    pub(crate) fn own(&self) -> Option<IpAddr> {
        match self {
            Self::Udp { own, .. } => *own,
            Self::Unix(_) | Self::Unnamed => None,
        }
    }

    /// The address of the client's host.
    pub(crate) fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Udp { client, .. } => Some(client.ip().to_canonical()),
            Self::Unix(_) | Self::Unnamed => None,
        }
    }
}

impl fmt::Display for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Udp { client, .. } => SocketAddress::Inet(*client).fmt(f),
            Self::Unix(unix) => SocketAddress::Unix(unix.clone()).fmt(f),
            Self::Unnamed => f.write_str("unnamed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_relative_path_is_no_name() {
        let of = |path| Sender::of_unix(SocketAddrUnix::new(path).ok().map(Into::into));
        assert_eq!(of("client.sock"), Sender::Unnamed);
        assert_eq!(of("./client.sock"), Sender::Unnamed);
        assert!(matches!(of("/run/client.sock"), Sender::Unix(_)));
    }
}
