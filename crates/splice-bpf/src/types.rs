//! The twins of the structures in `bpf/*.h`.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// `struct direction` in `bpf/redirect.h`: what the fields mean stands there.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct DirectionEntry {
    pub redirected: AtomicU64,
    pub last_ns: AtomicU64,
    pub credit: AtomicI64,
    pub full: AtomicU32,
    pub over: AtomicU32,
    pub missed: AtomicU32,
    pub trimmed: AtomicU32,
    pub fins: AtomicU32,
    pub most: AtomicU32,
    spare: [AtomicU32; 4],
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
    rest_of_line: [AtomicU64; 2],
}

/// `struct inspection` in `bpf/redirect.h`.
#[derive(Clone, Copy, Debug, Default)]
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

/// `struct segment_tuple` in `bpf/segment.h`: a connection as a segment from its peer carries it.
/// Addresses and ports are in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct SegmentTuple {
    pub source: [u8; 16],
    pub destination: [u8; 16],
    pub source_port: [u8; 2],
    pub destination_port: [u8; 2],
}

/// `struct segment_place`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct SegmentPlace {
    pub flow: u32,
    pub side: u32,
    pub device: u32,
    pub serial: u32,
}

/// `struct segment_side`: what the fields mean stands there.
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
    pub clock: AtomicU32,
    pub cut: AtomicU32,
    pub stamp_floor: AtomicU32,
    pub reach: AtomicU64,
    pub stamp_delta: AtomicU64,
    pub acked: AtomicU64,
    pub edge: AtomicU32,
    pub high_ack: AtomicU32,
    pub seen_device: AtomicU32,
    pub seen_hops: AtomicU32,
    pub payload_bytes: AtomicU64,
    pub promised: AtomicU32,
    pub border: AtomicU32,
    pub sent: AtomicU32,
    pub room_end: AtomicU32,
}

/// `struct segment_flow`.
#[derive(Debug)]
#[repr(C)]
pub struct SegmentFlow {
    pub state: AtomicU32,
    pub serial: AtomicU32,
    pub deadline_ns: AtomicU64,
    pub moved_ns: AtomicU64,
    pub last_ns: AtomicU64,
    pub latest_stamp: [AtomicU32; 2],
    reserved: [AtomicU64; 3],
    pub side: [SegmentSide; 2],
}

/// `struct segment_gate`.
#[derive(Debug)]
#[repr(C)]
pub struct SegmentGate {
    pub awake: AtomicU32,
    pub behind: AtomicU32,
}

/// `enum segment_state`.
pub mod segment_state {
    pub const FREE: u32 = 0;
    pub const WATCH: u32 = 1;
    pub const OVERLAP: u32 = 2;
    pub const SPLICED: u32 = 3;
    pub const LINGER: u32 = 4;
}

/// `enum segment_mark`.
pub mod segment_mark {
    pub const NOTED: u32 = 1;
    pub const FIN: u32 = 2;
    pub const FIN_ACKED: u32 = 4;
    pub const RST: u32 = 8;
    pub const PAST: u32 = 16;
    pub const CONGESTED: u32 = 32;
}

/// `enum segment_flag`.
pub mod segment_flag {
    pub const LOCAL: u8 = 1;
    pub const CLEAR_ECN: u8 = 2;
    pub const STRIP_SACK: u8 = 4;
    pub const MICROSECONDS: u8 = 8;
    pub const ECHO_ECN: u8 = 16;
}

/// `enum segment_socket_flag`.
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

/// `struct segment_socket`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    reserved: u16,
}

/// `struct segment_seen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SegmentSeen {
    pub device: u32,
    pub seq: u32,
    pub ack: u32,
    pub mss: u16,
    pub hops: u16,
}

/// `struct segment_inspection`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SegmentInspection {
    pub ethernet: [u8; 14],
    pub reserved: [u8; 2],
    pub tuple: [SegmentTuple; 2],
    pub socket: [SegmentSocket; 2],
    pub seen: [SegmentSeen; 2],
    pub forgotten: u32,
    /// By the program `segment_tracked`; see the module of that name.
    pub tracked: [u32; 2],
    pub reserved2: u32,
}

/// `SEGMENT_TRACKED`: what connection tracking knows of a connection.
pub mod segment_tracked {
    pub const TRACKED: u32 = 1;
    pub const OPENED_HERE: u32 = 2;
}

/// How many entries a [`HooksList`] has room for (`HOOKS_LISTED`).
pub const HOOKS_LISTED: usize = 64;
/// The places of [`HooksCounts::count`] (`HOOKS_PLACES`).
pub const HOOKS_PLACES: usize = 12;
/// The length of [`HooksEntry::function`] (`HOOKS_NAME_BYTES`).
pub const HOOKS_NAME_BYTES: usize = 44;

/// `struct hooks_entry` in `bpf/hooks.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HooksEntry {
    pub function: [u8; HOOKS_NAME_BYTES],
    pub priority: i32,
    pub place: u8,
    pub kind: u8,
    pub reserved: [u8; 2],
}

/// `struct hooks_counts`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct HooksCounts {
    pub ethernet: [u8; 14],
    pub device_known: u8,
    pub answered: u8,
    pub device: u32,
    pub skip: u32,
    pub functions: u64,
    pub count: [u16; HOOKS_PLACES],
}

/// `struct hooks_list`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct HooksList {
    pub counts: HooksCounts,
    pub entry: [HooksEntry; HOOKS_LISTED],
}

const _: () = {
    assert!(size_of::<HooksEntry>() == 52);
    assert!(size_of::<HooksCounts>() == 56);
    assert!(size_of::<HooksList>() == 56 + 64 * 52);
};

/// `struct clock_reading` in `bpf/clock.bpf.c`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ClockReading {
    ethernet: [u8; 14],
    reserved: [u8; 2],
    pub now_ns: u64,
}

const _: () = {
    assert!(size_of::<ClockReading>() == 24);
    assert!(size_of::<DirectionEntry>() == 128);
    assert!(std::mem::offset_of!(DirectionEntry, most) == 44);
    assert!(std::mem::offset_of!(DirectionEntry, limit) == 64);
    assert!(std::mem::offset_of!(DirectionEntry, let_in) == 96);
    assert!(std::mem::offset_of!(DirectionEntry, asked) == 104);
    assert!(std::mem::offset_of!(DirectionEntry, closed) == 84);
    assert!(size_of::<Inspection>() == 40);
    assert!(size_of::<SegmentTuple>() == 36);
    assert!(size_of::<SegmentSide>() == 128);
    assert!(std::mem::offset_of!(SegmentSide, window_left) == 48);
    assert!(std::mem::offset_of!(SegmentSide, window_right) == 49);
    assert!(std::mem::offset_of!(SegmentSide, flags) == 50);
    assert!(std::mem::offset_of!(SegmentSide, own_scale) == 51);
    assert!(std::mem::offset_of!(SegmentSide, stamp_delta) == 72);
    assert!(std::mem::offset_of!(SegmentSide, payload_bytes) == 104);
    assert!(size_of::<SegmentFlow>() == 320);
    assert!(size_of::<SegmentSocket>() == 88);
    assert!(size_of::<SegmentInspection>() == 16 + 2 * 36 + 2 * 88 + 2 * 16 + 16);
    // Shared memory is read with plain loads of the program's size.
    assert!(align_of::<AtomicU64>() == 8);
};

#[allow(unsafe_code, reason = "see each comment")]
mod plain {
    use super::{
        ClockReading, DirectionEntry, HooksCounts, HooksList, Inspection, SegmentFlow, SegmentGate,
        SegmentInspection, SegmentPlace, SegmentTuple,
    };
    use crate::plain::Plain;

    // SAFETY: integers have no padding and no invalid value.
    unsafe impl Plain for u32 {}
    // SAFETY: as above.
    unsafe impl Plain for u64 {}
    // SAFETY: repr(C), 16 atomic integers' worth of bytes, filled up to its alignment by fields of its own.
    unsafe impl Plain for DirectionEntry {}
    // SAFETY: repr(C), 14 + 2 + 8 bytes of integers, the last of them aligned.
    unsafe impl Plain for ClockReading {}
    // SAFETY: repr(C), integers only, 8 + 8 * 4 = 40 bytes.
    unsafe impl Plain for Inspection {}
    // SAFETY: repr(C), arrays of bytes only.
    unsafe impl Plain for SegmentTuple {}
    // SAFETY: repr(C), four u32.
    unsafe impl Plain for SegmentPlace {}
    // SAFETY: repr(C), atomic integers only; the sizes asserted above leave no room for padding.
    unsafe impl Plain for SegmentFlow {}
    // SAFETY: repr(C), two atomic integers.
    unsafe impl Plain for SegmentGate {}
    // SAFETY: repr(C), integers only, and reserved fields where padding would be.
    unsafe impl Plain for SegmentInspection {}
    // SAFETY: repr(C), integers only: 16 + 2 * 4 + 8 + 12 * 2 = 56 bytes.
    unsafe impl Plain for HooksCounts {}
    // SAFETY: repr(C), integers only: the counts, and entries of 44 + 4 + 4 = 52 bytes.
    unsafe impl Plain for HooksList {}
}
