//! Operations on the relay's own two sockets.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use rustix::net::{connect_unspec, getpeername, getsockname, sockopt};

use super::datapath::Datapath;
use crate::endpoint::Endpoint;
use splice_base::repair::{self, Repair};
use splice_base::socket_option;
use splice_bpf::types::SegmentTuple;

/// Has the socket neither answer nor send from now on, nor send a FIN when it is closed.
pub(super) fn put_to_sleep(end: &Endpoint, datapath: &Datapath) {
    // Neither call can fail on a socket in use by a process with these capabilities. Should one fail, no
    // segment reaches the socket as long as the program is attached.
    let _ = socket_option::attach_filter(end, datapath.asleep());
    let _ = repair::repair(end, Repair::On);
}

/// Stops the keep-alive timer, which fires in repair mode, too, and what it reads besides. No other timer runs on a
/// socket that has nothing to send (`tcp_write_timeout`, `tcp_probe_timer`).
pub(super) fn end_timers(end: &Endpoint) {
    // As above.
    let _ = sockopt::set_socket_keepalive(end, false);
    let _ = sockopt::set_tcp_user_timeout(end, 0);
}

/// Has a socket that sleeps, and is established, ask its peer for a sign of life. The program gives the question the
/// numbers that count now.
pub(super) fn ask(end: &Endpoint) {
    // As above. The question is one of several.
    let _ = repair::repair(end, Repair::OffWithProbe);
    let _ = repair::repair(end, Repair::On);
}

/// The same for one that is not established: leaving repair mode sends nothing then (`tcp_send_window_probe`), but the
/// keep-alive timer does, which is due at once.
pub(super) fn ask_by_keep_alive(end: &Endpoint) {
    // As above.
    let _ = sockopt::set_tcp_keepcnt(end, MOST_PROBES);
    let _ = sockopt::set_tcp_keepintvl(end, LONGEST_INTERVAL);
    let _ = sockopt::set_socket_keepalive(end, true);
    let _ = sockopt::set_tcp_keepidle(end, SHORTEST_IDLE);
}

/// The bounds of the options of keep-alive (`MAX_TCP_KEEPINTVL`, `MAX_TCP_KEEPCNT` in net/tcp.h).
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
const LONGEST_INTERVAL: Duration = Duration::from_secs(32_767);
const MOST_PROBES: u32 = 127;

/// Undoes `put_to_sleep`, but does not start the keep-alive timer again.
pub(super) fn wake(end: &Endpoint) {
    // As above.
    let _ = socket_option::detach_filter(end);
    leave_repair(end, Repair::Off);
}

/// Has a socket go on that has taken up its connection: it asks its peer where it stands.
pub(super) fn go_on(end: &Endpoint) {
    // As above.
    let _ = socket_option::detach_filter(end);
    leave_repair(end, Repair::OffWithProbe);
}

/// Advances the socket's timestamps to the last one that its peer saw in Overlap. The peer would drop
/// segments with an earlier timestamp.
pub(super) fn advance_timestamps(end: &Endpoint, timestamp: u32, in_microseconds: bool) {
    // Should it fail, the socket retransmits until its clock has reached that timestamp.
    let _ = repair::repair(end, Repair::On);
    let _ = repair::advance_timestamps(end, timestamp, in_microseconds);
    leave_repair(end, Repair::Off);
}

/// Disconnects the socket, whoever else has a descriptor of it. In repair mode nothing is sent
/// (`tcp_disconnect`).
pub(super) fn disconnect(end: &Endpoint) {
    // Should it fail, the close disconnects it.
    let _ = connect_unspec(end);
}

/// Sends a window probe, which the peer answers with its acknowledgement and its window.
pub(super) fn probe(end: &Endpoint) {
    // Should it fail, the program waits for what the peer sends unasked.
    let _ = repair::repair(end, Repair::On);
    leave_repair(end, Repair::OffWithProbe);
}

/// Leaves repair mode. The address can be bound again, as before.
pub(super) fn leave_repair(end: &Endpoint, how: Repair) {
    // As above.
    let _ = repair::repair(end, how);
    let _ = sockopt::set_socket_reuseaddr(end, true);
}

/// The relay's address and the peer's. A mapped IPv4 address becomes a plain one.
pub(super) fn address_pair(end: &Endpoint) -> Option<(SocketAddr, SocketAddr)> {
    let local = SocketAddr::try_from(getsockname(end).ok()?).ok()?;
    let peer = SocketAddr::try_from(getpeername(end).ok()??).ok()?;
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    Some((plain(local), plain(peer)))
}

/// The tuple that the peer's segments carry.
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

/// The relay's address and the peer's, from the tuple of the peer's segments.
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
