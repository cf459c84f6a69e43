//! The twins of the types that the BPF programs share with this process, as `make bpf` has found them in the BTF of
//! `bpf/types.bpf.c`. Do not edit: the headers in `bpf` define the types, and say what their fields mean.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

use crate::plain::Plain;

/// `struct inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Inspection {
    pub cookie: u64,
    pub found: u32,
    pub queued_skbs: u32,
    pub write_seq: u32,
    pub copied_seq: u32,
    pub rcv_nxt: u32,
    pub on_the_way_bytes: u32,
    pub send_limit_bytes: u32,
    pub state: u32,
}

const _: () = assert!(size_of::<Inspection>() == 40);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for Inspection {}

/// `struct segment_tuple`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentTuple {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: [u8; 2],
    pub destination_port: [u8; 2],
}

const _: () = assert!(size_of::<SegmentTuple>() == 36);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentTuple {}

/// `struct segment_place`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentPlace {
    pub flow: u32,
    pub side: u32,
    pub device: u32,
    pub serial: u32,
}

const _: () = assert!(size_of::<SegmentPlace>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentPlace {}

/// `struct segment_socket`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentSocket {
    pub cookie: u64,
    pub flags: u32,
    pub state: u32,
    pub write_seq: u32,
    pub snd_una: u32,
    pub snd_nxt: u32,
    pub snd_wnd: u32,
    pub copied_seq: u32,
    pub rcv_nxt: u32,
    pub rcv_wup: u32,
    pub rcv_wnd: u32,
    pub clock: u32,
    pub announced_mss: u32,
    pub peer_mss: u32,
    pub path_mtu: u32,
    pub in_device: u32,
    pub out_device: u32,
    pub out_type: u32,
    pub largest_window: u32,
    pub received_bytes: u32,
    pub peer_scale: u8,
    pub own_scale: u8,
    pub _reserved: u16,
}

const _: () = assert!(size_of::<SegmentSocket>() == 88);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSocket {}

/// `struct segment_seen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentSeen {
    pub device: u32,
    pub seq: u32,
    pub ack: u32,
    pub mss: u16,
    pub hops: u16,
}

const _: () = assert!(size_of::<SegmentSeen>() == 16);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSeen {}

/// `struct segment_inspection`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentInspection {
    pub ethernet: [u8; 14],
    pub _reserved: [u8; 2],
    pub tuple: [SegmentTuple; 2],
    pub socket: [SegmentSocket; 2],
    pub seen: [SegmentSeen; 2],
    pub forgotten: u32,
    pub tracked: [u32; 2],
    pub _reserved2: u32,
}

const _: () = assert!(size_of::<SegmentInspection>() == 312);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentInspection {}

/// `struct hooks_counts`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HooksCounts {
    pub ethernet: [u8; 14],
    pub device_known: u8,
    pub answered: u8,
    pub device: u32,
    pub skip: u32,
    pub functions: u64,
    pub count: [u16; 12],
}

const _: () = assert!(size_of::<HooksCounts>() == 56);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksCounts {}

/// `struct hooks_entry`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HooksEntry {
    pub function: [u8; 44],
    pub priority: i32,
    pub place: u8,
    pub kind: u8,
    pub _reserved: [u8; 2],
}

const _: () = assert!(size_of::<HooksEntry>() == 52);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksEntry {}

/// `struct hooks_list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct HooksList {
    pub counts: HooksCounts,
    pub entry: [HooksEntry; 64],
}

const _: () = assert!(size_of::<HooksList>() == 3384);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for HooksList {}

/// `struct clock_reading`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct ClockReading {
    pub ethernet: [u8; 14],
    pub _reserved: [u8; 2],
    pub now_ns: u64,
}

const _: () = assert!(size_of::<ClockReading>() == 24);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for ClockReading {}

/// `struct direction_entry`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct DirectionEntry {
    pub redirected: AtomicU64,
    pub last_ns: AtomicU64,
    pub credit: AtomicI64,
    pub full: AtomicU32,
    pub over: AtomicU32,
    pub missed: AtomicU32,
    pub _reserved: [AtomicU32; 7],
    pub limit: AtomicU64,
    pub base_seq: AtomicU32,
    pub target_seq: AtomicU32,
    pub opened: AtomicU32,
    pub closed: AtomicU32,
    pub refused: AtomicU32,
    pub beyond: AtomicU32,
    pub let_in: AtomicU64,
    pub asked: AtomicU32,
    pub error: AtomicU32,
    pub _reserved_line: [AtomicU64; 2],
}

const _: () = assert!(size_of::<DirectionEntry>() == 128);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for DirectionEntry {}

/// `struct segment_side`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentSide {
    pub out: [AtomicU32; 9],
    pub out_device: AtomicU32,
    pub seq_delta: AtomicU32,
    pub ack_delta: AtomicU32,
    pub window_left: AtomicU8,
    pub window_right: AtomicU8,
    pub flags: AtomicU8,
    pub own_scale: AtomicU8,
    pub timestamp_floor: AtomicU32,
    pub reach: AtomicU64,
    pub timestamp_delta: AtomicU64,
    pub acked: AtomicU64,
    pub payload_bytes: AtomicU64,
    pub edge: AtomicU32,
    pub high_ack: AtomicU32,
    pub promised: AtomicU32,
    pub latest_timestamp: AtomicU32,
}

const _: () = assert!(size_of::<SegmentSide>() == 104);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentSide {}

/// `struct segment_flow`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentFlow {
    pub state: AtomicU32,
    pub serial: AtomicU32,
    pub deadline_ns: AtomicU64,
    pub moved_ns: AtomicU64,
    pub last_ns: AtomicU64,
    pub _reserved: [AtomicU64; 2],
    pub side: [SegmentSide; 2],
}

const _: () = assert!(size_of::<SegmentFlow>() == 256);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentFlow {}

/// `struct segment_change_over_side`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentChangeOverSide {
    pub clock: AtomicU32,
    pub cut: AtomicU32,
    pub border: AtomicU32,
    pub sent: AtomicU32,
    pub room_end: AtomicU32,
    pub seen_device: AtomicU32,
    pub seen_hops: AtomicU32,
    pub _reserved: AtomicU32,
}

const _: () = assert!(size_of::<SegmentChangeOverSide>() == 32);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentChangeOverSide {}

/// `struct segment_change_over`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentChangeOver {
    pub side: [SegmentChangeOverSide; 2],
}

const _: () = assert!(size_of::<SegmentChangeOver>() == 64);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentChangeOver {}

/// `struct segment_gate`.
#[derive(Debug, Default)]
#[repr(C)]
pub struct SegmentGate {
    pub awake: AtomicU32,
    pub behind: AtomicU32,
}

const _: () = assert!(size_of::<SegmentGate>() == 8);
#[allow(unsafe_code, reason = "see the comment")]
// SAFETY: `repr(C)`, integers only, and no padding: its BTF was asked.
unsafe impl Plain for SegmentGate {}

/// `enum segment_state`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_state {
    pub const FREE: u32 = 0;
    pub const WATCH: u32 = 1;
    pub const OVERLAP: u32 = 2;
    pub const SPLICED: u32 = 3;
    pub const TIME_WAIT: u32 = 4;
}

/// `enum segment_mark`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_mark {
    pub const NOTED: u32 = 1;
    pub const FIN: u32 = 2;
    pub const FIN_ACKED: u32 = 4;
    pub const RST: u32 = 8;
    pub const PAST: u32 = 16;
    pub const CONGESTED: u32 = 32;
}

/// `enum segment_flag`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_flag {
    pub const LOCAL: u8 = 1;
    pub const CLEAR_ECN: u8 = 2;
    pub const STRIP_SACK: u8 = 4;
    pub const MICROSECONDS: u8 = 8;
    pub const ECHO_ECN: u8 = 16;
}

/// `enum segment_socket_flag`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_socket_flag {
    pub const FOUND: u32 = 1;
    pub const TIMESTAMPS: u32 = 2;
    pub const SACK: u32 = 4;
    pub const ECN: u32 = 8;
    pub const MICROSECONDS: u32 = 16;
    pub const SIGNED: u32 = 32;
    pub const LAYERED: u32 = 64;
    pub const MARKED: u32 = 128;
    pub const BOUND: u32 = 256;
    pub const COUNTS_ECN: u32 = 512;
    pub const WRAPPED: u32 = 1024;
    pub const RULED: u32 = 2048;
    pub const FILTERED: u32 = 4096;
}

/// `enum segment_tracked`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_tracked {
    pub const TRACKED: u32 = 1;
    pub const TRACKED_OPENED_HERE: u32 = 2;
}

/// `enum hooks_place`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod hooks_place {
    pub const IPV4: u32 = 0;
    pub const IPV6: u32 = 5;
    pub const INGRESS: u32 = 10;
    pub const EGRESS: u32 = 11;
    pub const PLACES: u32 = 12;
}

/// `enum hooks_limit`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod hooks_limit {
    pub const LISTED: u32 = 64;
    pub const NAME_BYTES: u32 = 44;
    pub const KIND_UNTOLD: u32 = 255;
}

/// `enum segment_reason`.
#[allow(dead_code, reason = "some are the programs' alone")]
pub mod segment_reason {
    pub const TRANSLATED: u32 = 0;
    pub const OWN_COPIES: u32 = 1;
    pub const BY_SOCKET: u32 = 2;
    pub const OTHER_DEVICE: u32 = 3;
    pub const EXPIRED: u32 = 4;
    pub const REUSED: u32 = 5;
    pub const HOPS_EXCEEDED: u32 = 6;
    pub const MALFORMED: u32 = 7;
    pub const UNWRITABLE: u32 = 8;
    pub const RST_REFUSED: u32 = 9;
    pub const SILENCED: u32 = 10;
    pub const GONE: u32 = 11;
    pub const NO_ROOM: u32 = 12;
    pub const REASONS: u32 = 13;
    pub const NAMES: [&str; 13] = [
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
