//! Errors of socket(2), bind(2) and connect(2): which of them say something about the server.

use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use splice::Kind;

use crate::resource_limit::words;
use crate::socket_address::SocketAddress;

/// What an error says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server, or the network before it, does not take the connection.
    Server,
    /// The server has taken the connection and reset it at once.
    Reset,
    /// This host lacks or forbids something. Nothing is known of the server.
    Shortage,
    /// This host has no address that could reach the server's. Other addresses of the server decide.
    NoWay,
}

/// [`Fault::NoWay`] in words.
pub(crate) const NO_WAY: &str = "this host has no source address for it: none of its family, or 'source' is not an address of this host";

/// Of an error while the socket was made and bound, before anything could be sent.
pub(crate) fn of_socket(errno: Errno) -> Fault {
    match errno {
        // The family is disabled, or no source address is of it, or is this host's.
        Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => Fault::NoWay,
        _ => Fault::Shortage,
    }
}

/// Of what became of a connection that was under way (`SO_ERROR`): whatever came back, came from there.
pub(crate) fn of_attempt(errno: Errno) -> Fault {
    match errno {
        // The answer to a SYN is ECONNREFUSED, so that the connection was made (`tcp_reset`).
        Errno::CONNRESET | Errno::PIPE => Fault::Reset,
        _ => Fault::Server,
    }
}

/// The error of a connection to `address` as TCP would have it: VSOCK resets a connection where nobody listens
/// (`virtio_transport_recv_connecting`, seen on 7.3).
pub(crate) fn as_of_tcp(errno: Errno, address: &SocketAddress) -> Errno {
    match errno {
        Errno::CONNRESET if address.kind().is_vsock() => Errno::CONNREFUSED,
        errno => errno,
    }
}

/// `errno` of a connection to an address of this kind, in words: `ENODEV` of VSOCK has two causes, which nothing tells apart
/// (`vsock_assign_transport`, `vhost_transport_send_pkt`).
pub(crate) fn told(errno: Errno, kind: Option<Kind>) -> String {
    match (errno, kind) {
        (Errno::NODEV, Some(kind)) if kind.is_vsock() => {
            "no machine that runs has this context identifier, or this host lacks the VSOCK transport to it".into()
        }
        _ => words(errno),
    }
}

/// Of an error that connect(2) has returned at once.
pub(crate) fn of_connect(errno: Errno, address: &SocketAddress) -> Fault {
    match errno {
        Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::CONNABORTED
        | Errno::TIMEDOUT
        | Errno::HOSTUNREACH
        | Errno::HOSTDOWN
        | Errno::NETUNREACH
        // Of a UNIX server: its file, its directory, and the type of its socket.
        | Errno::NOENT
        | Errno::NOTDIR
        | Errno::PROTOTYPE => Fault::Server,
        // The machine is off, or its transport has no SEQPACKET. If this host lacks the transport, another server may do.
        Errno::NODEV | Errno::SOCKTNOSUPPORT if address.kind().is_vsock() => Fault::Server,
        Errno::ADDRNOTAVAIL if lacks_address_for(address) => Fault::NoWay,
        // An unknown error must not take down a server.
        _ => Fault::Shortage,
    }
}

/// Tells a host without an address for `address`, such as one without IPv6, from one without a free port: a
/// UDP socket needs the same address, and has ports of its own.
fn lacks_address_for(address: &SocketAddress) -> bool {
    let Some(address) = address.inet() else {
        return false;
    };
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(family, SocketType::DGRAM, flags, None)
        .is_ok_and(|socket| connect(&socket, &address) == Err(Errno::ADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use splice::VsockAddress;

    use super::*;

    #[test]
    fn a_shortage_says_nothing_about_the_server() {
        let address = SocketAddress::Inet(SocketAddr::from(([127, 0, 0, 1], 1)));
        for errno in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOBUFS,
            Errno::NOMEM,
            Errno::ADDRNOTAVAIL,
            Errno::PERM,
            Errno::ACCESS,
            Errno::AGAIN,
            Errno::INVAL,
        ] {
            assert_eq!(of_connect(errno, &address), Fault::Shortage, "{errno}");
            assert_ne!(of_socket(errno), Fault::Server, "{errno}");
        }
        assert_eq!(of_attempt(Errno::CONNREFUSED), Fault::Server);
        assert_eq!(of_attempt(Errno::CONNRESET), Fault::Reset);
        let vsock = SocketAddress::Vsock(VsockAddress { cid: 2, port: 1 });
        for (address, meant) in [(&address, Errno::CONNRESET), (&vsock, Errno::CONNREFUSED)] {
            assert_eq!(as_of_tcp(Errno::CONNRESET, address), meant);
            assert_eq!(as_of_tcp(Errno::TIMEDOUT, address), Errno::TIMEDOUT);
        }
        // Over TCP it is a matter of an interface.
        for (address, fault) in [(&address, Fault::Shortage), (&vsock, Fault::Server)] {
            assert_eq!(of_connect(Errno::NODEV, address), fault, "{address}");
            let told = told(Errno::NODEV, Some(address.kind()));
            assert_eq!(told.contains("VSOCK"), fault == Fault::Server, "{told}");
        }
        assert_eq!(of_connect(Errno::CONNREFUSED, &address), Fault::Server);
        assert_eq!(of_connect(Errno::NETUNREACH, &address), Fault::Server);
        // Nothing that fails before a packet could leave is the server's fault.
        assert_eq!(of_socket(Errno::NODEV), Fault::Shortage);
        assert_eq!(of_socket(Errno::AFNOSUPPORT), Fault::NoWay);
    }
}
