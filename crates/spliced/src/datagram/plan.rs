//! What is particular to listeners of datagrams in a plan: their threads, and how their addresses are shown.

use splice::SocketName;

use crate::socket_address::SocketAddress;

/// The number of threads of a listener, of which there are `all`. The kernel spreads clients over UDP sockets that share
/// a port; a UNIX socket has one queue, whose order more threads would lose.
pub(crate) fn threads_of(listen: &SocketName, all: impl FnOnce() -> usize) -> usize {
    match listen {
        SocketName::Udp(_) => all(),
        _ => 1,
    }
}

/// `address` with the kind of its socket.
pub(crate) fn shown(address: &SocketAddress) -> String {
    match address {
        SocketAddress::Inet(_) => format!("udp:{address}"),
        _ => address.to_string().replacen("unix:", "unixgram:", 1),
    }
}
