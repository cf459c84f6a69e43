//! What is done to the relay's own two sockets.

use std::net::{Ipv6Addr, SocketAddr};

use rustix::net::{connect_unspec, getpeername, getsockname, sockopt};

use super::datapath::Datapath;
use crate::endpoint::Endpoint;
use splice_base::socket_option::{self, Repair};
use splice_bpf::types::SegmentTuple;

/// The socket neither answers nor sends nor says good-bye from now on.
pub(super) fn put_to_sleep(end: &Endpoint, datapath: &Datapath) {
    // None of these can fail on a socket that was just in use by a process that may do all of it;
    // and should one, no segment reaches the socket as long as the program is there.
    let _ = socket_option::attach_filter(end, datapath.asleep());
    let _ = socket_option::repair(end, Repair::On);
}

/// Silences the timer that fires in repair mode, too. No other runs on a socket that has nothing to
/// send, and none of those reads TCP_USER_TIMEOUT (`tcp_write_timeout`, `tcp_probe_timer`). Until a
/// pair has slept for a while the program drops what its sockets say, so a short one goes without.
pub(super) fn end_keep_alive(end: &Endpoint) {
    // As above.
    let _ = sockopt::set_socket_keepalive(end, false);
}

/// Takes `put_to_sleep` back, but for the keep-alive.
pub(super) fn wake(end: &Endpoint) {
    // As there.
    let _ = socket_option::detach_filter(end);
    leave_repair(end, Repair::Off);
}

/// Has the socket go on by itself after Overlap: its peer would drop what is stamped with less than it
/// was told there.
pub(super) fn go_on_from(end: &Endpoint, stamp: u32, in_microseconds: bool) {
    // Should it fail, the socket says it again until its clock is there.
    let _ = socket_option::repair(end, Repair::On);
    let _ = socket_option::advance_timestamps(end, stamp, in_microseconds);
    leave_repair(end, Repair::Off);
}

/// Takes the connection from the socket, whoever else has a descriptor of it. In repair mode its peer
/// hears nothing of that (`tcp_disconnect`).
pub(super) fn disconnect(end: &Endpoint) {
    // Should it fail, the close takes it.
    let _ = connect_unspec(end);
}

/// Makes the peer send a segment, which carries its acknowledgement and its window.
pub(super) fn ask(end: &Endpoint) {
    // Should it fail, there is what the peer sends by itself.
    let _ = socket_option::repair(end, Repair::On);
    leave_repair(end, Repair::OffWithProbe);
}

fn leave_repair(end: &Endpoint, how: Repair) {
    let _ = socket_option::repair(end, how);
    let _ = sockopt::set_socket_reuseaddr(end, true);
}

/// The relay's address and the peer's, an IPv4 one as such.
pub(super) fn address_pair(end: &Endpoint) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(getsockname(end).ok()?).ok()?;
    let peer = SocketAddr::try_from(getpeername(end).ok()??).ok()?;
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Some((plain(local), plain(peer)))
}

/// What the peer's segments carry.
pub(super) fn tuple_of(local: SocketAddr, peer: SocketAddr) -> SegmentTuple {
    let octets = |address: SocketAddr| match address {
        SocketAddr::V4(address) => address.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(address) => address.ip().octets(),
    };
    SegmentTuple {
        source: octets(peer),
        destination: octets(local),
        source_port: peer.port().to_be_bytes(),
        destination_port: local.port().to_be_bytes(),
    }
}

/// The relay's end and the peer's.
pub(super) fn addresses_of(tuple: &SegmentTuple) -> (SocketAddr, SocketAddr) {
    let address = |octets: [u8; 16], port: [u8; 2]| {
        SocketAddr::new(
            Ipv6Addr::from(octets).to_canonical(),
            u16::from_be_bytes(port),
        )
    };
    (
        address(tuple.destination, tuple.destination_port),
        address(tuple.source, tuple.source_port),
    )
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::{addresses_of, tuple_of};

    #[test]
    fn a_tuple_keeps_both_addresses() {
        for (local, peer) in [
            ("192.0.2.1:80", "198.51.100.2:65535"),
            ("[2001:db8::1]:443", "[::1]:1"),
        ] {
            let pair: (SocketAddr, SocketAddr) = (local.parse().unwrap(), peer.parse().unwrap());
            assert_eq!(addresses_of(&tuple_of(pair.0, pair.1)), pair);
        }
    }
}
