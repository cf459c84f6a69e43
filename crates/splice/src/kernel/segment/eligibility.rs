//! Whether the segments of one connection can become those of another.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use super::datapath::Failure;
use crate::endpoint::{HEADERS_V4_BYTES, HEADERS_V6_BYTES, TIMESTAMP_BYTES};
use crate::kernel::segment::Asked;
use crate::kernel::tcp_state::{ESTABLISHED, LISTEN};
use crate::kernel::{Cause, Refusal};
use crate::outcome::{PeerNames, Side};
use splice_bpf::types::segment_socket_flag as has;
use splice_bpf::types::{SegmentInspection, SegmentSeen, SegmentSocket, SegmentTuple};

/// Why a pair cannot change over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It stays with its sockets.
    Refused(Refusal),
    /// It cannot yet: a device has no program, or the packet filters are being examined.
    NotNow,
    /// It cannot while this side's socket has no route. It looks for one when it sends next.
    Unrouted(Side),
    /// Something is short for the moment, such as descriptors.
    Short,
    /// A stream has come to its end.
    Ended,
}

impl From<Failure> for Obstacle {
    fn from(failure: Failure) -> Self {
        match failure.is_short() {
            true => Self::Short,
            false => Self::Refused(Cause::Engine.because(failure.why)),
        }
    }
}

pub(super) fn refused<T>(cause: Cause, why: impl Into<Cow<'static, str>>) -> Result<T, Obstacle> {
    Err(Obstacle::Refused(cause.because(why)))
}

/// From `linux/if_arp.h`.
const ARPHRD_ETHER: u32 = 1;
pub(super) const ARPHRD_LOOPBACK: u32 = 772;

/// The largest segment that a window is compared with, in bytes: the payload of a jumbo frame. Larger
/// segments exist on lo only, where a sender limits them to half a window.
const LARGEST_MSS_BYTES: u32 = 8960;

/// Whether frames of a device have Ethernet headers, which the program expects. `hardware_type`: `ARPHRD_*`.
pub(super) fn is_ethernet(hardware_type: u32) -> bool {
    hardware_type == ARPHRD_ETHER
}

pub(super) fn is_ipv4(tuple: &SegmentTuple) -> bool {
    tuple.source[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

/// The device on which a peer's segments come in, as far as the socket knows.
pub(super) fn device(socket: &SegmentSocket) -> u32 {
    if socket.in_device != 0 {
        socket.in_device
    } else {
        socket.out_device
    }
}

/// Whether this is the pair's own socket. After a reset, or once both streams have ended (`tcp_done`), the
/// kernel finds another in its place: the listener that it came from, whose sequence numbers are all 0, or a
/// later connection.
pub(super) fn is_own(socket: &SegmentSocket, cookie: u64) -> bool {
    socket.flags & has::FOUND != 0 && socket.state != LISTEN && socket.cookie == cookie
}

/// What is said of a socket whose control group has programs that see its packets.
const FILTERED: &str = "is filtered by a BPF program of its control group (systemd's IPAddressDeny= and \
                        IPAccounting= attach some), which translated segments bypass";

/// Why BPF programs may stop segments of the sockets with these cookies, if some see what their control groups receive or
/// send.
pub(super) fn why_filtered(
    found: &SegmentInspection,
    cookies: &[u64; 2],
    peers: PeerNames,
) -> Option<String> {
    let is_filtered = |side: &Side| {
        let socket = &found.socket[side.index()];
        is_own(socket, cookies[side.index()]) && socket.flags & has::FILTERED != 0
    };
    let side = Side::BOTH.into_iter().find(is_filtered)?;
    Some(format!("the connection with {} {FILTERED}", peers.of(side)))
}

/// Examines what does not change while the pair lives. Only BPF programs that filter its packets may come
/// later; if the pair bypasses the firewall they are no obstacle.
pub(super) fn examine(
    found: &SegmentInspection,
    cookies: &[u64; 2],
    asked: Asked,
) -> Result<(), Obstacle> {
    let bypassed = match asked.bypasses_firewall {
        true => has::FILTERED | has::EXTENDED,
        false => 0,
    };
    for (side, socket) in Side::BOTH.into_iter().zip(&found.socket) {
        // A socket that is no longer found may still hold bytes.
        if socket.flags & has::FOUND == 0 || socket.state == LISTEN {
            return Err(Obstacle::Ended);
        }
        let peer = asked.peers.of(side);
        if !is_own(socket, cookies[side.index()]) {
            let why = format!(
                "the connection with {peer} belongs to another network namespace than the thread"
            );
            return refused(Cause::Sockets, why);
        }
        for (bit, what) in [
            (has::SIGNED, "is signed (TCP-MD5 or TCP-AO)"),
            (
                has::LAYERED,
                "has a layer on it (a ULP, a sockmap or MPTCP)",
            ),
            (
                has::WRAPPED,
                "is reached by a route that encrypts or encapsulates (IPsec, `ip route ... encap`)",
            ),
            (
                has::MARKED,
                "has a mark (SO_MARK), by which its packets may be routed",
            ),
            (has::BOUND, "is bound to a device or VRF"),
            (
                has::CLASSED,
                "gives its packets a traffic class or priority (IP_TOS, IPV6_TCLASS, SO_PRIORITY), which translated \
                 segments have not",
            ),
            (
                has::COUNTS_ECN,
                "uses accurate ECN (net.ipv4.tcp_ecn below 3 turns it off)",
            ),
            (has::FILTERED, FILTERED),
            (
                has::EXTENDED,
                "has TCP options that a BPF program of its control group reads or writes (sock_ops), which translated \
                 segments bypass",
            ),
        ] {
            if socket.flags & bit & !bypassed != 0 {
                let cause = match bit {
                    has::WRAPPED => Cause::Network,
                    has::FILTERED | has::EXTENDED => Cause::Filters,
                    _ => Cause::Sockets,
                };
                return refused(cause, format!("the connection with {peer} {what}"));
            }
        }
        if socket.out_device == 0 {
            return Err(Obstacle::Unrouted(side));
        }
        if !matches!(socket.out_type, ARPHRD_ETHER | ARPHRD_LOOPBACK) {
            let why = format!(
                "{peer} is reached over a device of type {} without Ethernet headers",
                socket.out_type
            );
            return refused(Cause::Network, why);
        }
        if device(socket) != socket.out_device {
            let why = format!(
                "{peer}'s segments come in on device {}, and those to it leave by device {}",
                socket.in_device, socket.out_device
            );
            return refused(Cause::Network, why);
        }
    }
    let [a, b] = &found.socket;
    if is_ipv4(&found.tuple[0]) != is_ipv4(&found.tuple[1]) {
        let why = "one connection is over IPv4, the other over IPv6";
        return refused(Cause::Sockets, why);
    }
    if (a.flags ^ b.flags) & has::TIMESTAMPS != 0 {
        let why = "only one of the two connections has TCP timestamps";
        return refused(Cause::Network, why);
    }
    for from in Side::BOTH {
        let sender = &found.socket[from.index()];
        let receiver = &found.socket[from.other().index()];
        let announced = announced_to_peer(sender);
        let takes = mss_of_peer(found, from.other());
        if announced > takes {
            let why = format!(
                "{} may send segments of {announced} bytes, but {} takes {takes}; --engine segment \
                 (SegmentSize) announces what fits",
                asked.peers.of(from),
                asked.peers.of(from.other()),
            );
            return refused(Cause::Network, why);
        }
        let packet = longest_packet(found, from);
        if packet > receiver.path_mtu {
            let why = format!(
                "{} may send packets of {packet} bytes, and the path to {} takes {}",
                asked.peers.of(from),
                asked.peers.of(from.other()),
                receiver.path_mtu
            );
            return refused(Cause::Network, why);
        }
        // A window is announced in steps of the scale that the relay once chose.
        let step = 1u32 << sender.own_scale;
        let least = 2 * step.max(sender.announced_mss.min(LARGEST_MSS_BYTES));
        if receiver.largest_window < least {
            let why = format!(
                "{} has a window of at most {} bytes, too small for {}, which reads it in steps of {step}",
                asked.peers.of(from.other()),
                receiver.largest_window,
                asked.peers.of(from),
            );
            return refused(Cause::Network, why);
        }
    }
    Ok(())
}

/// The MSS that a socket has announced. It notes that without the room for timestamps (`tcp_create_openreq_child`,
/// `tcp_rcv_synsent_state_process`).
fn announced_to_peer(socket: &SegmentSocket) -> u32 {
    let timestamp_bytes = if socket.flags & has::TIMESTAMPS != 0 {
        TIMESTAMP_BYTES
    } else {
        0
    };
    socket.announced_mss + timestamp_bytes
}

/// How long the packets of a side's peer are, at most, in bytes.
pub(super) fn longest_packet(found: &SegmentInspection, from: Side) -> u32 {
    let headers = if is_ipv4(&found.tuple[from.index()]) {
        HEADERS_V4_BYTES
    } else {
        HEADERS_V6_BYTES
    };
    announced_to_peer(&found.socket[from.index()]) + headers
}

/// The MSS that a peer has announced. The socket notes no more than its own `TCP_MAXSEG`
/// (`tcp_parse_options`), so the one in the SYN may be larger.
fn mss_of_peer(found: &SegmentInspection, side: Side) -> u32 {
    let noted = found.socket[side.index()].peer_mss;
    handshake(found, side.index()).map_or(noted, |seen| noted.max(seen.mss.into()))
}

/// The right edge of the window that a socket has announced to its peer.
pub(super) fn announced_edge(socket: &SegmentSocket) -> u32 {
    socket.rcv_wup.wrapping_add(socket.rcv_wnd)
}

/// The SYN of this connection, if the program saw it.
fn handshake(found: &SegmentInspection, side: usize) -> Option<&SegmentSeen> {
    let (socket, seen) = (&found.socket[side], &found.seen[side]);
    // The stream begins after the SYN's number; a FIN may follow the stream.
    let begins = seen.seq.wrapping_add(1);
    let is_this = seen.device == device(socket)
        && socket.rcv_nxt.wrapping_sub(begins) == socket.received_bytes;
    is_this.then_some(seen)
}

/// A segment of a peer, as the program has noted it since it watches the connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct NotedSegment {
    pub(super) device: u32,
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// Its TTL or hop limit.
    pub(super) hops: u32,
}

/// Whether a peer's segments can be forwarded, by the TTL of the one that was noted, or else of the SYN:
/// translation spends a hop.
pub(super) fn can_go_on(
    found: &SegmentInspection,
    side: usize,
    noted: Option<NotedSegment>,
) -> bool {
    let seen = || handshake(found, side).map(|seen| seen.hops.into());
    let hops = noted.map(|noted| noted.hops).or_else(seen);
    hops.is_none_or(|hops: u32| hops > 1)
}

/// A stream of the connection has come to its end.
pub(super) fn has_ended(socket: &SegmentSocket) -> bool {
    socket.state != ESTABLISHED
}

/// How far a noted segment may lie from the socket's own place in the sequence space, in bytes: more than a
/// window, and so small a part of the space that another connection's segment does not match by chance.
const NEAR: u32 = 1 << 26;

/// Whether the program has seen segments of this very connection: its SYN, or the one that was noted. With `only_noted` the
/// SYN proves nothing.
pub(super) fn was_seen(
    found: &SegmentInspection,
    side: usize,
    noted: Option<NotedSegment>,
    only_noted: bool,
) -> bool {
    let socket = &found.socket[side];
    (!only_noted && handshake(found, side).is_some())
        || noted.is_some_and(|noted| {
            noted.device == device(socket)
                && noted.seq.wrapping_sub(socket.rcv_nxt).wrapping_add(NEAR) < 2 * NEAR
                && socket.snd_nxt.wrapping_sub(noted.ack) < NEAR
        })
}
