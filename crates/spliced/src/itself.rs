//! Whether a place to connect to is the relay itself: it would relay to itself without end.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::place::Place;

/// Whether who connects to `target` reaches a listener on one of `listening`.
pub(crate) fn leads_to(target: &Place, listening: &[Place]) -> bool {
    listening.iter().any(|place| match (target, place) {
        (Place::Inet(target), Place::Inet(own)) => {
            target.port() == own.port() && covers(own, destination(target))
        }
        (Place::Unix(_), Place::Unix(_)) => target == place || is_same_file(target, place),
        _ => false,
    })
}

/// Whether the answer can differ later: an address or a file can come to this host.
pub(crate) fn may_lead_to(target: &Place, listening: &[Place]) -> bool {
    listening.iter().any(|place| match (target, place) {
        (Place::Inet(target), Place::Inet(own)) => target.port() == own.port(),
        (Place::Unix(_), Place::Unix(_)) => true,
        _ => false,
    })
}

/// Where a connection to `target` goes: an IPv4-mapped address to the IPv4 one, and the unspecified
/// address to this host's loopback (`ip_route_output_key_hash_rcu`, `tcp_v6_connect`).
fn destination(target: &SocketAddr) -> SocketAddr {
    let ip: IpAddr = match target.ip().to_canonical() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        IpAddr::V4(ip) => ip.into(),
        // A link-local address has its interface with it.
        IpAddr::V6(_) => return *target,
    };
    (ip, target.port()).into()
}

fn covers(own: &SocketAddr, target: SocketAddr) -> bool {
    match own.ip() {
        // Such a listener takes both families.
        IpAddr::V6(ip) if ip.is_unspecified() => is_local(target),
        IpAddr::V4(ip) if ip.is_unspecified() => target.is_ipv4() && is_local(target),
        ip => ip.to_canonical() == target.ip(),
    }
}

/// Whether `target` is an address of this network namespace. Nothing is sent to find out.
fn is_local(target: SocketAddr) -> bool {
    target.ip().is_loopback() || is_own_source(target) || can_bind(target)
}

/// What is sent to a local address comes from that address.
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

/// A range that is routed here (`ip route add local`) has another source. Its addresses can be bound,
/// but so can any with `ip_nonlocal_bind`, which therefore says nothing.
fn can_bind(mut target: SocketAddr) -> bool {
    let family = if target.is_ipv4() { "ipv4" } else { "ipv6" };
    let binds_all = fs::read_to_string(format!("/proc/sys/net/{family}/ip_nonlocal_bind"));
    target.set_port(0);
    binds_all.is_ok_and(|value| value.trim() == "0") && UdpSocket::bind(target).is_ok()
}

/// Two paths can lead to one socket file.
fn is_same_file(target: &Place, own: &Place) -> bool {
    let identity = |place: &Place| {
        let Place::Unix(unix) = place else {
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

    fn inet(text: &str) -> Place {
        Place::Inet(text.parse().expect(text))
    }

    #[test]
    fn a_place_leads_back_by_any_of_the_addresses_that_the_listener_covers() {
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
            // From a range for documentation, RFC 5737 and RFC 3849.
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
