//! Whether an address to connect to is the relay itself, which would relay to itself without end.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::socket_address::SocketAddress;

/// Whether a connection to `target` reaches a listener on one of `listening`.
pub(crate) fn leads_to(target: &SocketAddress, listening: &[SocketAddress]) -> bool {
    listening.iter().any(|address| match (target, address) {
        (SocketAddress::Inet(target), SocketAddress::Inet(own)) => {
            target.port() == own.port() && covers(own, destination(target))
        }
        (SocketAddress::Unix(_), SocketAddress::Unix(_)) => {
            target == address || is_same_file(target, address)
        }
        _ => false,
    })
}

/// Whether that may become true later: an address or a file may come to this host.
pub(super) fn may_lead_to(target: &SocketAddress, listening: &[SocketAddress]) -> bool {
    listening.iter().any(|address| match (target, address) {
        (SocketAddress::Inet(target), SocketAddress::Inet(own)) => target.port() == own.port(),
        (SocketAddress::Unix(_), SocketAddress::Unix(_)) => true,
        _ => false,
    })
}

/// Where a connection to `target` goes: an IPv4-mapped address means the IPv4 address, the unspecified
/// address means this host's loopback (`ip_route_output_key_hash_rcu`, `tcp_v6_connect`).
fn destination(target: &SocketAddr) -> SocketAddr {
    let ip: IpAddr = match target.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(ip) => ip.into(),
        // A link-local address includes its interface.
        IpAddr::V6(_) => return *target,
    };
    (ip, target.port()).into()
}

fn covers(own: &SocketAddr, target: SocketAddr) -> bool {
    match own.ip() {
        // Such a listener is dual-stack.
        IpAddr::V6(ip) if ip.is_unspecified() => is_local(target),
        IpAddr::V4(ip) if ip.is_unspecified() => target.is_ipv4() && is_local(target),
        ip => ip.to_canonical() == target.ip(),
    }
}

/// Whether `ip` is an address of this host.
pub(crate) fn is_own(ip: IpAddr) -> bool {
    // Any port does: nothing is sent.
    is_local((ip, 9).into())
}

/// Whether `target` is an address of this network namespace. Sends nothing.
fn is_local(target: SocketAddr) -> bool {
    target.ip().is_loopback() || is_own_source(target) || can_bind(target)
}

/// The kernel sends to a local address from that same address.
fn is_own_source(target: SocketAddr) -> bool {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = UdpSocket::bind((any, 0))
        .and_then(|socket| socket.connect(target).map(|()| socket))
        .and_then(|socket| socket.local_addr());
    source.is_ok_and(|source| source.ip() == target.ip())
}

/// A range that is routed here (`ip route add local`) has another source address, but can be bound. With
/// `ip_nonlocal_bind` every address can be bound, so the test proves nothing.
fn can_bind(mut target: SocketAddr) -> bool {
    let family = if target.is_ipv4() { "ipv4" } else { "ipv6" };
    let binds_all = fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    target.set_port(0);
    binds_all.is_ok_and(|value| value.trim() == "0") && UdpSocket::bind(target).is_ok()
}

/// Two paths may name the same socket file.
fn is_same_file(target: &SocketAddress, own: &SocketAddress) -> bool {
    let identity = |address: &SocketAddress| {
        let SocketAddress::Unix(unix) = address else {
            return None;
        };
        let path = Path::new(std::ffi::OsStr::from_bytes(unix.path_bytes()?));
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    identity(target).is_some_and(|file| identity(own) == Some(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inet(text: &str) -> SocketAddress {
        SocketAddress::Inet(text.parse().expect(text))
    }

    #[test]
    fn a_target_is_recognised_by_any_address_that_the_listener_covers() {
        for (target, own, leads) in [
            ("127.0.0.1:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "127.0.0.1:81", false),
            ("127.0.0.2:80", "127.0.0.1:80", false),
            ("127.0.0.2:80", "0.0.0.0:80", true),
            ("0.0.0.0:80", "127.0.0.1:80", true),
            ("[::]:80", "[::1]:80", true),
            ("[::1]:80", "127.0.0.1:80", false),
            ("[::1]:80", "0.0.0.0:80", false),
            ("127.0.0.1:80", "[::]:80", true),
            ("[::ffff:127.0.0.1]:80", "127.0.0.1:80", true),
            ("127.0.0.1:80", "[::ffff:127.0.0.1]:80", true),
            // Ranges for documentation: RFC 5737 and RFC 3849.
            ("203.0.113.1:80", "0.0.0.0:80", false),
            ("[2001:db8::1]:80", "[::]:80", false),
            ("203.0.113.1:80", "[::]:80", false),
        ] {
            assert_eq!(
                leads_to(&inet(target), &[inet("127.0.0.9:9"), inet(own)]),
                leads,
                "{target} to {own}"
            );
        }
    }
}
