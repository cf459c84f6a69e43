//! The twins of the types that the BPF programs share with this process, as `make bpf` has found them in the BTF of
//! `bpf/types.bpf.c`. Do not edit: the headers in `bpf` define the types, and say what their fields mean.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

use crate::bpf_object::Plain;

/// `struct inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct Inspection {
    pub(crate) cookie: u64,
    pub(crate) found: u32,
    pub(crate) queued_skbs: u32,
    pub(crate) write_seq: u32,
    pub(crate) copied_seq: u32,
    pub(crate) rcv_nxt: u32,
    pub(crate) on_the_way_bytes: u32,
    pub(crate) send_limit_bytes: u32,
    pub(crate) state: u32,
}

const _: () = assert!(size_of::<Inspection>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for Inspection {}

/// `struct segment_tuple`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct SegmentTuple {
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    pub(crate) source_port: [u8; 2],
    pub(crate) destination_port: [u8; 2],
}

const _: () = assert!(size_of::<SegmentTuple>() == 36);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentTuple {}

/// `struct segment_place`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct SegmentPlace {
    pub(crate) flow: u32,
    pub(crate) side: u32,
    pub(crate) device: u32,
    pub(crate) serial: u32,
}

const _: () = assert!(size_of::<SegmentPlace>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentPlace {}

/// `struct segment_socket`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct SegmentSocket {
    pub(crate) cookie: u64,
    pub(crate) flags: u32,
    pub(crate) state: u32,
    pub(crate) write_seq: u32,
    pub(crate) snd_una: u32,
    pub(crate) snd_nxt: u32,
    pub(crate) snd_wnd: u32,
    pub(crate) copied_seq: u32,
    pub(crate) rcv_nxt: u32,
    pub(crate) rcv_wup: u32,
    pub(crate) rcv_wnd: u32,
    pub(crate) clock: u32,
    pub(crate) announced_mss: u32,
    pub(crate) peer_mss: u32,
    pub(crate) path_mtu: u32,
    pub(crate) in_device: u32,
    pub(crate) out_device: u32,
    pub(crate) out_type: u32,
    pub(crate) largest_window: u32,
    pub(crate) received_bytes: u32,
    pub(crate) peer_scale: u8,
    pub(crate) own_scale: u8,
    pub(crate) _reserved: u16,
}

const _: () = assert!(size_of::<SegmentSocket>() == 88);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSocket {}

/// `struct segment_seen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct SegmentSeen {
    pub(crate) device: u32,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) mss: u16,
    pub(crate) hops: u16,
}

const _: () = assert!(size_of::<SegmentSeen>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSeen {}

/// `struct segment_inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct SegmentInspection {
    pub(crate) ethernet: [u8; 14],
    pub(crate) _reserved: [u8; 2],
    pub(crate) tuple: [SegmentTuple; 2],
    pub(crate) socket: [SegmentSocket; 2],
    pub(crate) seen: [SegmentSeen; 2],
    pub(crate) forgotten: u32,
    pub(crate) tracked: [u32; 2],
    pub(crate) _reserved2: u32,
}

const _: () = assert!(size_of::<SegmentInspection>() == 312);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentInspection {}

/// `struct hooks_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct HooksCounts {
    pub(crate) ethernet: [u8; 14],
    pub(crate) device_known: u8,
    pub(crate) answered: u8,
    pub(crate) device: u32,
    pub(crate) skip: u32,
    pub(crate) functions: u64,
    pub(crate) count: [u16; 12],
}

const _: () = assert!(size_of::<HooksCounts>() == 56);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksCounts {}

/// `struct hooks_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct HooksEntry {
    pub(crate) function: [u8; 44],
    pub(crate) priority: i32,
    pub(crate) place: u8,
    pub(crate) kind: u8,
    pub(crate) _reserved: [u8; 2],
}

const _: () = assert!(size_of::<HooksEntry>() == 52);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksEntry {}

/// `struct hooks_list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct HooksList {
    pub(crate) counts: HooksCounts,
    pub(crate) entry: [HooksEntry; 64],
}

const _: () = assert!(size_of::<HooksList>() == 3384);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksList {}

/// `struct clock_reading`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct ClockReading {
    pub(crate) ethernet: [u8; 14],
    pub(crate) _reserved: [u8; 2],
    pub(crate) now_ns: u64,
}

const _: () = assert!(size_of::<ClockReading>() == 24);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for ClockReading {}

/// `struct direction_entry`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct DirectionEntry {
    pub(crate) redirected: AtomicU64,
    pub(crate) last_ns: AtomicU64,
    pub(crate) credit: AtomicI64,
    pub(crate) full: AtomicU32,
    pub(crate) over: AtomicU32,
    pub(crate) missed: AtomicU32,
    pub(crate) _reserved: [AtomicU32; 7],
    pub(crate) limit: AtomicU64,
    pub(crate) base_seq: AtomicU32,
    pub(crate) target_seq: AtomicU32,
    pub(crate) opened: AtomicU32,
    pub(crate) closed: AtomicU32,
    pub(crate) refused: AtomicU32,
    pub(crate) beyond: AtomicU32,
    pub(crate) let_in: AtomicU64,
    pub(crate) asked: AtomicU32,
    pub(crate) error: AtomicU32,
    pub(crate) _reserved_line: [AtomicU64; 2],
}

const _: () = assert!(size_of::<DirectionEntry>() == 128);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for DirectionEntry {}

/// `struct segment_side`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SegmentSide {
    pub(crate) out: [AtomicU32; 9],
    pub(crate) out_device: AtomicU32,
    pub(crate) seq_delta: AtomicU32,
    pub(crate) ack_delta: AtomicU32,
    pub(crate) window_left: AtomicU8,
    pub(crate) window_right: AtomicU8,
    pub(crate) flags: AtomicU8,
    pub(crate) own_scale: AtomicU8,
    pub(crate) timestamp_floor: AtomicU32,
    pub(crate) reach: AtomicU64,
    pub(crate) timestamp_delta: AtomicU64,
    pub(crate) acked: AtomicU64,
    pub(crate) payload_bytes: AtomicU64,
    pub(crate) edge: AtomicU32,
    pub(crate) high_ack: AtomicU32,
    pub(crate) promised: AtomicU32,
    pub(crate) latest_timestamp: AtomicU32,
}

const _: () = assert!(size_of::<SegmentSide>() == 104);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSide {}

/// `struct segment_flow`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SegmentFlow {
    pub(crate) state: AtomicU32,
    pub(crate) serial: AtomicU32,
    pub(crate) deadline_ns: AtomicU64,
    pub(crate) moved_ns: AtomicU64,
    pub(crate) last_ns: AtomicU64,
    pub(crate) _reserved: [AtomicU64; 2],
    pub(crate) side: [SegmentSide; 2],
}

const _: () = assert!(size_of::<SegmentFlow>() == 256);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentFlow {}

/// `struct segment_change_over_side`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SegmentChangeOverSide {
    pub(crate) clock: AtomicU32,
    pub(crate) cut: AtomicU32,
    pub(crate) border: AtomicU32,
    pub(crate) sent: AtomicU32,
    pub(crate) room_end: AtomicU32,
    pub(crate) seen_device: AtomicU32,
    pub(crate) seen_hops: AtomicU32,
    pub(crate) _reserved: AtomicU32,
}

const _: () = assert!(size_of::<SegmentChangeOverSide>() == 32);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentChangeOverSide {}

/// `struct segment_change_over`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SegmentChangeOver {
    pub(crate) side: [SegmentChangeOverSide; 2],
}

const _: () = assert!(size_of::<SegmentChangeOver>() == 64);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentChangeOver {}

/// `struct segment_gate`.
#[derive(Debug, Default)]
#[repr(C)]
pub(crate) struct SegmentGate {
    pub(crate) awake: AtomicU32,
    pub(crate) behind: AtomicU32,
}

const _: () = assert!(size_of::<SegmentGate>() == 8);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentGate {}

/// `enum segment_state`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod segment_state {
    pub(crate) const FREE: u32 = 0;
    pub(crate) const WATCH: u32 = 1;
    pub(crate) const OVERLAP: u32 = 2;
    pub(crate) const SPLICED: u32 = 3;
    pub(crate) const TIME_WAIT: u32 = 4;
}

/// `enum segment_mark`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod segment_mark {
    pub(crate) const NOTED: u32 = 1;
    pub(crate) const FIN: u32 = 2;
    pub(crate) const FIN_ACKED: u32 = 4;
    pub(crate) const RST: u32 = 8;
    pub(crate) const PAST: u32 = 16;
    pub(crate) const CONGESTED: u32 = 32;
}

/// `enum segment_flag`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod segment_flag {
    pub(crate) const LOCAL: u8 = 1;
    pub(crate) const CLEAR_ECN: u8 = 2;
    pub(crate) const STRIP_SACK: u8 = 4;
    pub(crate) const MICROSECONDS: u8 = 8;
    pub(crate) const ECHO_ECN: u8 = 16;
}

/// `enum segment_socket_flag`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod segment_socket_flag {
    pub(crate) const FOUND: u32 = 1;
    pub(crate) const TIMESTAMPS: u32 = 2;
    pub(crate) const SACK: u32 = 4;
    pub(crate) const ECN: u32 = 8;
    pub(crate) const MICROSECONDS: u32 = 16;
    pub(crate) const SIGNED: u32 = 32;
    pub(crate) const LAYERED: u32 = 64;
    pub(crate) const MARKED: u32 = 128;
    pub(crate) const BOUND: u32 = 256;
    pub(crate) const COUNTS_ECN: u32 = 512;
    pub(crate) const WRAPPED: u32 = 1024;
    pub(crate) const RULED: u32 = 2048;
    pub(crate) const FILTERED: u32 = 4096;
}

/// `enum segment_tracked`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod segment_tracked {
    pub(crate) const TRACKED: u32 = 1;
    pub(crate) const TRACKED_OPENED_HERE: u32 = 2;
}

/// `enum hooks_place`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod hooks_place {
    pub(crate) const IPV4: u32 = 0;
    pub(crate) const IPV6: u32 = 5;
    pub(crate) const INGRESS: u32 = 10;
    pub(crate) const EGRESS: u32 = 11;
    pub(crate) const PLACES: u32 = 12;
}

/// `enum hooks_limit`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod hooks_limit {
    pub(crate) const LISTED: u32 = 64;
    pub(crate) const NAME_BYTES: u32 = 44;
    pub(crate) const KIND_UNTOLD: u32 = 255;
}

/// `enum segment_reason`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub(crate) mod segment_reason {
    pub(crate) const TRANSLATED: u32 = 0;
    pub(crate) const OWN_COPIES: u32 = 1;
    pub(crate) const BY_SOCKET: u32 = 2;
    pub(crate) const OTHER_DEVICE: u32 = 3;
    pub(crate) const EXPIRED: u32 = 4;
    pub(crate) const REUSED: u32 = 5;
    pub(crate) const HOPS_EXCEEDED: u32 = 6;
    pub(crate) const MALFORMED: u32 = 7;
    pub(crate) const UNWRITABLE: u32 = 8;
    pub(crate) const RST_REFUSED: u32 = 9;
    pub(crate) const SILENCED: u32 = 10;
    pub(crate) const GONE: u32 = 11;
    pub(crate) const NO_ROOM: u32 = 12;
    pub(crate) const REASONS: u32 = 13;
    pub(crate) const NAMES: [&str; 13] = [
        "translated",
        "own_copies",
        "by_socket",
        "other_device",
        "expired",
        "reused",
        "hops_exceeded",
        "malformed",
        "unwritable",
        "rst_refused",
        "silenced",
        "gone",
        "no_room",
    ];
}
