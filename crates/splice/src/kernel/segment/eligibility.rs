//! Whether the segments of one connection can become those of another, and how.

use std::borrow::Cow;

use crate::endpoint::{HEADERS_V4_BYTES, HEADERS_V6_BYTES, TIMESTAMP_BYTES};
use crate::outcome::Side;
use splice_bpf::types::{SegmentInspection, SegmentSeen, SegmentSocket, SegmentTuple};
use splice_bpf::types::{segment_flag as flag, segment_socket_flag as has};

/// Why a pair is not spliced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It never will be.
    Refused(Cow<'static, str>),
    /// The moment is a bad one: a device has no program yet, or the packet filters are being looked at.
    NotNow,
    /// A stream has come to its end.
    Ended,
}

pub(super) fn refused<T>(why: impl Into<Cow<'static, str>>) -> Result<T, Obstacle> {
    Err(Obstacle::Refused(why.into()))
}

/// How segments from one peer are to be translated; the fields are those of
/// `struct segment_side`.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SidePlan {
    pub(super) out: SegmentTuple,
    pub(super) out_device: u32,
    pub(super) seq_delta: u32,
    pub(super) ack_delta: u32,
    pub(super) window_left: u8,
    pub(super) window_right: u8,
    pub(super) flags: u8,
    pub(super) own_scale: u8,
    pub(super) clock: u32,
    /// The end of the window that the relay's socket has announced.
    pub(super) promised: u32,
    pub(super) cut: u32,
    /// The end of what the relay's socket has sent.
    pub(super) sent: u32,
    pub(super) high_seq: u32,
    pub(super) high_ack: u32,
    pub(super) edge: u32,
    /// The end of what the relay has written for this peer: nothing beyond can be acknowledged.
    pub(super) written: u32,
    /// The first byte that the relay has not yet given to the other socket.
    pub(super) next_byte: u32,
}

impl SidePlan {
    /// The most that this peer may have room for.
    pub(super) fn largest_window(&self) -> u32 {
        u32::from(u16::MAX) << self.window_left
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Plan {
    pub(super) sides: [SidePlan; 2],
}

/// From `net/tcp_states.h`.
const ESTABLISHED: u32 = 1;
const LISTEN: u32 = 10;

/// From `linux/if_arp.h`.
const ARPHRD_ETHER: u32 = 1;
const ARPHRD_LOOPBACK: u32 = 772;

/// No peer's segments count as larger than this when windows are judged, in bytes: a jumbo
/// frame's payload. Larger ones exist on lo only, where a sender cuts them to half a window.
const LARGEST_MSS_BYTES: u32 = 8960;

pub(super) fn is_ipv4(tuple: &SegmentTuple) -> bool {
    tuple.source[..12] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff]
}

fn reversed(tuple: &SegmentTuple) -> SegmentTuple {
    SegmentTuple {
        source: tuple.destination,
        destination: tuple.source,
        source_port: tuple.destination_port,
        destination_port: tuple.source_port,
    }
}

/// The device that a peer's segments come in on, as far as the socket knows.
pub(super) fn device(socket: &SegmentSocket) -> u32 {
    if socket.in_device != 0 {
        socket.in_device
    } else {
        socket.out_device
    }
}

/// Whether this is the pair's own socket. Where that is gone, by a reset or since it has heard of both
/// ends of stream (`tcp_done`), the listener that it came from is found in its place, whose numbers are
/// all 0, or a later connection.
pub(super) fn is_own(socket: &SegmentSocket, cookie: u64) -> bool {
    socket.flags & has::FOUND != 0 && socket.state != LISTEN && socket.cookie == cookie
}

/// What cannot change any more while the pair lives, but for programs that filter its packets; with
/// `bypass_firewall` these are no obstacle.
pub(super) fn examine(
    found: &SegmentInspection,
    cookies: &[u64; 2],
    bypass_firewall: bool,
) -> Result<(), Obstacle> {
    let passed_by = if bypass_firewall { has::FILTERED } else { 0 };
    for (side, socket) in Side::BOTH.into_iter().zip(&found.socket) {
        // There may still be bytes in a socket that is no longer found.
        if socket.flags & has::FOUND == 0 || socket.state == LISTEN {
            return Err(Obstacle::Ended);
        }
        if !is_own(socket, cookies[side.index()]) {
            return refused(format!(
                "{side:?} belongs to another network namespace than the thread"
            ));
        }
        for (bit, what) in [
            (has::SIGNED, "signs its segments (TCP-MD5 or TCP-AO)"),
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
                "carries a mark (SO_MARK), so its packets may be routed apart",
            ),
            (has::BOUND, "is bound to a device or VRF"),
            (
                has::RULED,
                "may be routed by its port or protocol (ip rule), which no segment of it would be",
            ),
            (
                has::COUNTS_ECN,
                "counts congestion marks with its peer (accurate ECN; net.ipv4.tcp_ecn below 3 \
                 leaves it off)",
            ),
            (
                has::FILTERED,
                "is filtered by a BPF program of its control group (systemd's IPAddressDeny= and \
                 IPAccounting= have some), which no segment of it would pass",
            ),
        ] {
            if socket.flags & bit & !passed_by != 0 {
                return refused(format!("{side:?} {what}"));
            }
        }
        if !matches!(socket.out_type, ARPHRD_ETHER | ARPHRD_LOOPBACK) {
            return refused(format!(
                "{side:?} is reached over a device of type {} without Ethernet headers",
                socket.out_type
            ));
        }
        if device(socket) != socket.out_device {
            return refused(format!(
                "what comes from {side:?} comes in on device {}, what goes there leaves by {}",
                socket.in_device, socket.out_device
            ));
        }
    }
    let [a, b] = &found.socket;
    if is_ipv4(&found.tuple[0]) != is_ipv4(&found.tuple[1]) {
        return refused("one connection is over IPv4, the other over IPv6");
    }
    if (a.flags ^ b.flags) & has::TIMESTAMPS != 0 {
        return refused("one connection has TCP timestamps, the other has not");
    }
    let headers = if is_ipv4(&found.tuple[0]) {
        HEADERS_V4_BYTES
    } else {
        HEADERS_V6_BYTES
    };
    for from in Side::BOTH {
        let sender = &found.socket[from.index()];
        let receiver = &found.socket[from.other().index()];
        let fits = mss_of_peer(found, from.other()).min(receiver.path_mtu.saturating_sub(headers));
        // The socket notes what it has announced without the room for timestamps
        // (`tcp_create_openreq_child`, `tcp_rcv_synsent_state_process`).
        let stamp_bytes = if sender.flags & has::TIMESTAMPS != 0 {
            TIMESTAMP_BYTES
        } else {
            0
        };
        let announced = sender.announced_mss + stamp_bytes;
        if announced > fits {
            return refused(format!(
                "{from:?}'s peer may send segments of {announced} bytes and {:?}'s takes {fits}; \
                 set TCP_MAXSEG before {from:?} is connected",
                from.other(),
            ));
        }
        // A window is announced in steps of the scale that the relay once chose.
        let step = 1u32 << sender.own_scale;
        let least = 2 * step.max(sender.announced_mss.min(LARGEST_MSS_BYTES));
        if receiver.largest_window < least {
            return refused(format!(
                "{:?}'s peer has a window of {} bytes, which {from:?}'s would be told in steps of \
                 {step}",
                from.other(),
                receiver.largest_window,
            ));
        }
    }
    Ok(())
}

/// What a peer has announced, as it came by. The socket notes no more than its own `TCP_MAXSEG`
/// (`tcp_parse_options`), so it may know too little.
fn mss_of_peer(found: &SegmentInspection, side: Side) -> u32 {
    let noted = found.socket[side.index()].peer_mss;
    handshake(found, side.index()).map_or(noted, |seen| noted.max(seen.mss.into()))
}

/// The end of the window that a socket has announced to its peer.
pub(super) fn promised(socket: &SegmentSocket) -> u32 {
    socket.rcv_wup.wrapping_add(socket.rcv_wnd)
}

/// How to translate from this moment on, with `held` bytes of each direction in the relay's hand.
pub(super) fn plan(found: &SegmentInspection, held: [usize; 2]) -> Plan {
    let delta = |from: usize| {
        let (source, destination) = (&found.socket[from], &found.socket[1 - from]);
        destination
            .write_seq
            .wrapping_add(held[from] as u32)
            .wrapping_sub(source.copied_seq)
    };
    let mut plan = Plan::default();
    for (from, side) in plan.sides.iter_mut().enumerate() {
        let (near, far) = (&found.socket[from], &found.socket[1 - from]);
        let mut flags = 0;
        for (set, bit) in [
            (far.out_type == ARPHRD_LOOPBACK, flag::LOCAL),
            (near.flags & far.flags & has::ECN == 0, flag::CLEAR_ECN),
            (near.flags & !far.flags & has::ECN != 0, flag::ECHO_ECN),
            (far.flags & has::SACK == 0, flag::STRIP_SACK),
            (far.flags & has::MICROSECONDS != 0, flag::MICROSECONDS),
        ] {
            if set {
                flags |= bit;
            }
        }
        *side = SidePlan {
            out: reversed(&found.tuple[1 - from]),
            out_device: far.out_device,
            seq_delta: delta(from),
            ack_delta: delta(1 - from).wrapping_neg(),
            window_left: near.peer_scale,
            window_right: far.own_scale,
            flags,
            own_scale: near.own_scale,
            clock: far.clock,
            promised: promised(near),
            cut: near.rcv_nxt,
            sent: near.snd_nxt,
            high_seq: near.rcv_nxt,
            high_ack: near.snd_una,
            edge: near.snd_una.wrapping_add(near.snd_wnd),
            written: near.write_seq,
            next_byte: near.copied_seq.wrapping_sub(held[from] as u32),
        };
    }
    plan
}

/// The handshake of this very connection, if it came by.
fn handshake(found: &SegmentInspection, side: usize) -> Option<&SegmentSeen> {
    let (socket, seen) = (&found.socket[side], &found.seen[side]);
    // The bytes follow the SYN's number; a FIN may follow them.
    let begins = seen.seq.wrapping_add(1);
    let is_this = seen.device == device(socket)
        && socket.rcv_nxt.wrapping_sub(begins) == socket.received_bytes;
    is_this.then_some(seen)
}

/// Whether a peer's segments can leave this host again, by the TTL that was `noted`, or else by that of the
/// handshake: translated, they spend a hop.
pub(super) fn can_go_on(found: &SegmentInspection, side: usize, noted: Option<u32>) -> bool {
    let seen = || handshake(found, side).map(|seen| seen.hops.into());
    noted.or_else(seen).is_none_or(|hops: u32| hops > 1)
}

/// A stream of the connection has come to its end.
pub(super) fn has_ended(socket: &SegmentSocket) -> bool {
    socket.state != ESTABLISHED
}

/// How far from the socket's own place a noted segment may lie, in bytes: more than a window, and
/// a small part of all numbers, so that another connection's do not match by chance.
const NEAR: u32 = 1 << 26;

/// Whether the program has seen the segments of this very connection, by its handshake or by
/// what `noted` tells as (device, seq, ack).
pub(super) fn was_seen(
    found: &SegmentInspection,
    side: usize,
    noted: Option<(u32, u32, u32)>,
) -> bool {
    let socket = &found.socket[side];
    handshake(found, side).is_some()
        || noted.is_some_and(|(device_seen, seq, ack)| {
            device_seen == device(socket)
                && seq.wrapping_sub(socket.rcv_nxt).wrapping_add(NEAR) < 2 * NEAR
                && socket.snd_nxt.wrapping_sub(ack) < NEAR
        })
}
