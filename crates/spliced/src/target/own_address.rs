//! Whether an address to connect to is the relay itself, which would relay to itself without end.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::{fs, io};

use splice::VsockAddress;
use splice_base::socket_option::vsock_local_cid;
use splice_firewall::Routes;

use crate::rate_limited_warning::{RateLimitedWarning, more};
use crate::socket_address::{HOST_CID, LOCAL_CID, SocketAddress};

/// Whether a connection to `target` reaches a listener on one of `listening`.
pub(crate) fn leads_to(target: &SocketAddress, listening: &[SocketAddress]) -> bool {
    let is_own = |target| is_own(target, None);
    reaches(target, listening, is_own, || vsock_local_cid().ok())
}

/// Whether a datagram that is said to come from `sender` comes from a listener on one of `listening`. Where the routes cannot
/// be read, only an address that is named there counts: any other sender with the listener's port is a client.
pub(crate) fn is_from_listener(sender: SocketAddr, listening: &[SocketAddress]) -> bool {
    let is_own = |sender| Some(is_known_as_own(sender));
    reaches(&SocketAddress::Inet(sender), listening, is_own, || None)
}

fn reaches(
    target: &SocketAddress,
    listening: &[SocketAddress],
    is_own: impl Fn(SocketAddr) -> Option<bool>,
    local_cid: impl Fn() -> Option<u32>,
) -> bool {
    listening.iter().any(|address| match (target, address) {
        (SocketAddress::Inet(target), SocketAddress::Inet(own)) => {
            target.port() == own.port() && covers(own, destination(target), &is_own)
        }
        (SocketAddress::Unix(_), SocketAddress::Unix(_))
        | (SocketAddress::UnixSeqpacket(_), SocketAddress::UnixSeqpacket(_)) => {
            target == address || is_same_file(target, address)
        }
        (SocketAddress::Vsock(target), SocketAddress::Vsock(own))
        | (SocketAddress::VsockSeqpacket(target), SocketAddress::VsockSeqpacket(own)) => {
            let is_every = own.cid == VsockAddress::ANY_CID;
            target.port == own.port
                && (target.cid == own.cid || is_every && is_own_cid(target.cid, &local_cid))
        }
        _ => false,
    })
}

/// Whether a VSOCK connection to `cid` stays on this machine, if it is made at all (`vsock_use_local_transport`). The host's
/// identifier means another machine in a guest, and this one elsewhere.
fn is_own_cid(cid: u32, local_cid: impl Fn() -> Option<u32>) -> bool {
    let is_guest = |own| own > HOST_CID && own != VsockAddress::ANY_CID;
    cid == LOCAL_CID
        || local_cid().is_some_and(|own| own == cid || cid == HOST_CID && !is_guest(own))
}

/// Whether that may become true later: an address or a file may come to this host.
pub(super) fn may_lead_to(target: &SocketAddress, listening: &[SocketAddress]) -> bool {
    listening.iter().any(|address| match (target, address) {
        (SocketAddress::Inet(target), SocketAddress::Inet(own)) => target.port() == own.port(),
        (SocketAddress::Unix(_), SocketAddress::Unix(_))
        | (SocketAddress::UnixSeqpacket(_), SocketAddress::UnixSeqpacket(_)) => true,
        // The identifier is that of a transport, which may be loaded later.
        (SocketAddress::Vsock(target), SocketAddress::Vsock(own))
        | (SocketAddress::VsockSeqpacket(target), SocketAddress::VsockSeqpacket(own)) => {
            target.port == own.port
        }
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

/// A target of which it is not known whether it is this host counts as that: a loop would never end.
fn covers(
    own: &SocketAddr,
    target: SocketAddr,
    is_own: impl Fn(SocketAddr) -> Option<bool>,
) -> bool {
    let is_local = || is_own(target) != Some(false);
    match own.ip() {
        // Such a listener is dual-stack.
        IpAddr::V6(ip) if ip.is_unspecified() => is_local(),
        IpAddr::V4(ip) if ip.is_unspecified() => target.is_ipv4() && is_local(),
        ip => ip.to_canonical() == target.ip(),
    }
}

/// Whether a connection to `to` stays on this host, by its routes: it is an address of this host, or of a range
/// that is routed here (`ip route add local`). `from` is its other end once it is made. Sends nothing. `None` if that
/// cannot be found out, which a guard must take for the worse; the log has the reason.
pub(crate) fn is_own(to: SocketAddr, from: Option<SocketAddr>) -> Option<bool> {
    static WARNING: LazyLock<RateLimitedWarning> =
        LazyLock::new(|| RateLimitedWarning::of("addresses whose routes could not be read"));
    match ask_whether_own(to, from) {
        Ok(is_own) => Some(is_own),
        Err(error) => {
            let ip = to.ip().to_canonical();
            WARNING.emit(|suppressed| {
                tracing::warn!(
                    "whether {ip} is an address of this host cannot be found out, so it is refused: its routes \
                     cannot be read by netlink(7): {error}{}",
                    more(suppressed)
                );
            });
            None
        }
    }
}

/// As [`is_own`], but without a warning: an address that cannot be looked up counts as foreign.
fn is_known_as_own(address: SocketAddr) -> bool {
    ask_whether_own(address, None).unwrap_or(false)
}

fn ask_whether_own(to: SocketAddr, from: Option<SocketAddr>) -> io::Result<bool> {
    let to = match to.ip().to_canonical() {
        ip if ip.is_loopback() => return Ok(true),
        IpAddr::V4(ip) => (ip, to.port()).into(),
        // A link-local address includes its interface.
        IpAddr::V6(_) => to,
    };
    let from = from.map(|from| SocketAddr::new(from.ip().to_canonical(), from.port()));
    // An address that another one stands for may be of the other family.
    let from = from.filter(|from| from.is_ipv4() == to.is_ipv4());
    ask(|routes| routes.is_local(to, from))
}

/// Whether a server at `address` is on this host, as far as its routes are known: its segments pass the loopback device then,
/// whatever the address.
pub(crate) fn is_on_this_host(address: &SocketAddress) -> bool {
    match address {
        // A connection to it goes to this host.
        SocketAddress::Inet(address) if address.ip().to_canonical().is_unspecified() => true,
        SocketAddress::Inet(address) => is_known_as_own(*address),
        other => other.is_of_loopback(),
    }
}

/// Has the answers of [`is_own`] not depend on a descriptor that is free when a client asks.
pub(crate) fn follow_routes() {
    if let Err(error) = ask(|_| Ok(false)) {
        tracing::warn!("routes cannot be read by netlink(7): {error}");
    }
}

fn ask(question: impl FnOnce(&mut Routes) -> io::Result<bool>) -> io::Result<bool> {
    /// Kept, so that the answer does not depend on a free descriptor. One that has failed is replaced: it may
    /// have an answer that nobody waits for.
    static ROUTES: Mutex<Option<Routes>> = Mutex::new(None);
    let mut kept = ROUTES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut routes = match kept.take() {
        Some(routes) => routes,
        None => Routes::new()?,
    };
    let is_local = question(&mut routes)?;
    *kept = Some(routes);
    Ok(is_local)
}

/// What a target and a listener have in common if the one leads to the other, so that many of both need not be
/// compared with one another.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Meeting {
    Port(u16),
    VsockPort(u32),
    /// The device and the inode.
    File(u64, u64),
    Name(SocketAddress),
}

impl Meeting {
    pub(crate) fn of(address: &SocketAddress) -> Self {
        match (address, identity(address)) {
            (SocketAddress::Inet(address), _) => Self::Port(address.port()),
            (SocketAddress::Vsock(vsock) | SocketAddress::VsockSeqpacket(vsock), _) => {
                Self::VsockPort(vsock.port)
            }
            (_, Some((device, inode))) => Self::File(device, inode),
            (_, None) => Self::Name(address.clone()),
        }
    }
}

/// Two paths may name the same socket file. A path that cannot be looked at cannot be connected to, either.
fn is_same_file(target: &SocketAddress, own: &SocketAddress) -> bool {
    identity(target).is_some_and(|file| identity(own) == Some(file))
}

/// The device and the inode of a socket file.
fn identity(address: &SocketAddress) -> Option<(u64, u64)> {
    let path = Path::new(OsStr::from_bytes(address.unix()?.path_bytes()?));
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
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

    #[test]
    fn a_target_of_which_it_is_not_known_may_be_the_relay() {
        let reaches =
            |target, own, answer| reaches(&inet(target), &[inet(own)], |_| answer, || None);
        for own in ["0.0.0.0:80", "[::]:80"] {
            for (answer, leads) in [(None, true), (Some(true), true), (Some(false), false)] {
                assert_eq!(reaches("203.0.113.1:80", own, answer), leads, "{own}");
            }
        }
        // These need no answer.
        assert!(!reaches("203.0.113.1:81", "0.0.0.0:80", None));
        assert!(!reaches("203.0.113.1:80", "203.0.113.2:80", None));
    }

    #[test]
    fn a_vsock_target_is_recognised_by_each_identifier_of_this_machine() {
        let own = |cid| [SocketAddress::Vsock(VsockAddress { cid, port: 7 })];
        let (guest, host, loopback) = (Some(5), Some(2), Some(1));
        for (target, listener, local, leads) in [
            (1, u32::MAX, None, true),
            (1, u32::MAX, guest, true),
            (5, u32::MAX, guest, true),
            (5, u32::MAX, host, false),
            (5, u32::MAX, None, false),
            // In a guest it is another machine.
            (2, u32::MAX, guest, false),
            (2, u32::MAX, host, true),
            (2, u32::MAX, loopback, true),
            (2, u32::MAX, None, false),
            (3, u32::MAX, loopback, false),
            // A listener at one identifier is not reached by another.
            (5, 5, guest, true),
            (1, 5, guest, false),
            (5, 1, guest, false),
        ] {
            for (port, leads) in [(7, leads), (8, false)] {
                let target = SocketAddress::Vsock(VsockAddress { cid: target, port });
                let reaches = reaches(&target, &own(listener), |_| Some(true), || local);
                assert_eq!(reaches, leads, "{target} to {listener} of {local:?}");
            }
        }
        let of_messages = VsockAddress { cid: 1, port: 7 };
        let of_messages = SocketAddress::VsockSeqpacket(of_messages);
        assert!(!leads_to(&of_messages, &own(u32::MAX)));
    }
}
