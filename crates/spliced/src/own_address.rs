//! Whether an address is one of this host.

use std::net::{IpAddr, UdpSocket};

use crate::socket_address::SocketAddress;

/// Whether nobody but this host can be reached at `address`, or reach it.
pub(crate) fn is_loopback(address: &SocketAddress) -> bool {
    match address {
        SocketAddress::Inet(address) => address.ip().to_canonical().is_loopback(),
        SocketAddress::Unix(_) => true,
    }
}

/// Whether a server at `address` is on this host. Its segments pass the loopback device then, whatever the address.
pub(crate) fn is_own(address: &SocketAddress) -> bool {
    match address {
        SocketAddress::Inet(address) => is_own_ip(address.ip().to_canonical()),
        SocketAddress::Unix(_) => true,
    }
}

/// A socket can be bound to addresses of this host only, unless somebody has allowed others
/// (`net.ipv4.ip_nonlocal_bind`).
fn is_own_ip(ip: IpAddr) -> bool {
    ip.is_loopback() || !ip.is_unspecified() && UdpSocket::bind((ip, 0)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_loopback_are_own_and_those_of_documentation_are_not() {
        for (text, is_here) in [
            ("127.9.8.7:1", true),
            ("[::1]:1", true),
            ("192.0.2.1:1", false),
            ("[2001:db8::1]:1", false),
        ] {
            let address = SocketAddress::Inet(text.parse().expect("an address"));
            assert_eq!(is_own(&address), is_here, "{text}");
            assert_eq!(is_loopback(&address), is_here, "{text}");
        }
    }
}
