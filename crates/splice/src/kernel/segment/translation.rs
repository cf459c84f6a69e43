//! How the segments of one connection become those of another.

#[cfg(test)]
mod tests;

use super::eligibility::{ARPHRD_LOOPBACK, announced_edge};
use splice_bpf::types::{SegmentInspection, SegmentTuple};
use splice_bpf::types::{segment_flag as flag, segment_socket_flag as has};

/// How to translate the segments of both peers.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Translation {
    pub(super) sides: [SideTranslation; 2],
}

/// How to translate the segments of one peer. The fields are those of `struct segment_side`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SideTranslation {
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
    pub(super) announced_edge: u32,
    pub(super) acknowledged_by_socket: u32,
    /// The end of what the relay's socket has sent.
    pub(super) sent: u32,
    pub(super) high_seq: u32,
    pub(super) high_ack: u32,
    pub(super) edge: u32,
    pub(super) recent_timestamp: u32,
    pub(super) largest_window: u32,
    pub(super) first_ack: u32,
    /// The first byte that the relay has not yet written to the other socket.
    pub(super) next_byte: u32,
}

impl Translation {
    /// The translation from this moment on, with `in_flight_bytes` of each side's stream in user space.
    pub(super) fn between(found: &SegmentInspection, in_flight_bytes: [usize; 2]) -> Self {
        let seq_delta = |from: usize| {
            let (source, destination) = (&found.socket[from], &found.socket[1 - from]);
            destination
                .write_seq
                .wrapping_add(in_flight_bytes[from] as u32)
                .wrapping_sub(source.copied_seq)
        };
        let mut translation = Self::default();
        for (from, side) in translation.sides.iter_mut().enumerate() {
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
            *side = SideTranslation {
                out: reversed(&found.tuple[1 - from]),
                out_device: far.out_device,
                seq_delta: seq_delta(from),
                ack_delta: seq_delta(1 - from).wrapping_neg(),
                window_left: near.peer_scale,
                window_right: far.own_scale,
                flags,
                own_scale: near.own_scale,
                clock: far.clock,
                announced_edge: announced_edge(near),
                acknowledged_by_socket: near.rcv_nxt,
                sent: near.snd_nxt,
                high_seq: near.rcv_nxt,
                high_ack: near.snd_una,
                edge: near.snd_una.wrapping_add(near.snd_wnd),
                recent_timestamp: near.recent_timestamp,
                // The peer knows the windows that the relay's socket has announced, too.
                largest_window: near.largest_window.max(far.rcv_wnd),
                // The receiver knows its own stream from its first byte on, which the relay has got from it.
                first_ack: far
                    .rcv_nxt
                    .wrapping_sub(far.recent_bytes)
                    .wrapping_add(seq_delta(1 - from)),
                next_byte: near.copied_seq.wrapping_sub(in_flight_bytes[from] as u32),
            };
        }
        translation
    }
}

fn reversed(tuple: &SegmentTuple) -> SegmentTuple {
    SegmentTuple {
        source: tuple.destination,
        destination: tuple.source,
        source_port: tuple.destination_port,
        destination_port: tuple.source_port,
    }
}
