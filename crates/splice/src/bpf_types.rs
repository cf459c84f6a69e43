//! The twins of the structures in `bpf/*.h`.

use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64};

/// A type whose bytes are the same on both sides: no padding, no pointer, every bit pattern
/// valid.
///
/// # Safety
/// The implementor is `repr(C)`, has no padding and is valid for every bit pattern.
#[allow(unsafe_code, reason = "the promise that bpf_object.rs builds on")]
pub(crate) unsafe trait Plain: Sized {}

/// `struct direction` in `bpf/redirect.h`: what the fields mean stands there.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct DirectionEntry {
    pub(crate) redirected: AtomicU64,
    pub(crate) last_ns: AtomicU64,
    pub(crate) credit: AtomicI64,
    pub(crate) full: AtomicU32,
    pub(crate) over: AtomicU32,
    pub(crate) missed: AtomicU32,
    pub(crate) trimmed: AtomicU32,
    pub(crate) fins: AtomicU32,
    pub(crate) most: AtomicU32,
    spare: [AtomicU32; 4],
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
    rest_of_line: [AtomicU64; 2],
}

/// `struct inspection` in `bpf/redirect.h`.
#[derive(Clone, Copy, Debug, Default)]
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

/// `struct segment_tuple` in `bpf/segment.h`: a connection as a segment from its peer carries it.
/// Addresses and ports are in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub(crate) struct SegmentTuple {
    pub(crate) source: [u8; 16],
    pub(crate) destination: [u8; 16],
    pub(crate) source_port: [u8; 2],
    pub(crate) destination_port: [u8; 2],
}

/// `struct segment_place`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct SegmentPlace {
    pub(crate) flow: u32,
    pub(crate) side: u32,
    pub(crate) device: u32,
    pub(crate) serial: u32,
}

/// `struct segment_side`: what the fields mean stands there.
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
    pub(crate) clock: AtomicU32,
    pub(crate) cut: AtomicU32,
    pub(crate) stamp_floor: AtomicU32,
    pub(crate) reach: AtomicU64,
    pub(crate) stamp_delta: AtomicU64,
    pub(crate) acked: AtomicU64,
    pub(crate) edge: AtomicU32,
    pub(crate) high_ack: AtomicU32,
    pub(crate) seen_device: AtomicU32,
    pub(crate) seen_hops: AtomicU32,
    pub(crate) payload_bytes: AtomicU64,
    pub(crate) promised: AtomicU32,
    pub(crate) border: AtomicU32,
    pub(crate) sent: AtomicU32,
    pub(crate) room_end: AtomicU32,
}

/// `struct segment_flow`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SegmentFlow {
    pub(crate) state: AtomicU32,
    pub(crate) serial: AtomicU32,
    pub(crate) deadline_ns: AtomicU64,
    pub(crate) moved_ns: AtomicU64,
    pub(crate) last_ns: AtomicU64,
    pub(crate) latest_stamp: [AtomicU32; 2],
    reserved: [AtomicU64; 3],
    pub(crate) side: [SegmentSide; 2],
}

/// `struct segment_gate`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct SegmentGate {
    pub(crate) awake: AtomicU32,
    pub(crate) behind: AtomicU32,
}

/// `enum segment_state`.
pub(crate) mod segment_state {
    pub(crate) const FREE: u32 = 0;
    pub(crate) const WATCH: u32 = 1;
    pub(crate) const OVERLAP: u32 = 2;
    pub(crate) const SPLICED: u32 = 3;
    pub(crate) const LINGER: u32 = 4;
}

/// `enum segment_mark`.
pub(crate) mod segment_mark {
    pub(crate) const NOTED: u32 = 1;
    pub(crate) const FIN: u32 = 2;
    pub(crate) const FIN_ACKED: u32 = 4;
    pub(crate) const RST: u32 = 8;
    pub(crate) const PAST: u32 = 16;
    #[cfg(test)]
    pub(crate) const CONGESTED: u32 = 32;
}

/// `enum segment_flag`.
pub(crate) mod segment_flag {
    pub(crate) const LOCAL: u8 = 1;
    pub(crate) const CLEAR_ECN: u8 = 2;
    pub(crate) const STRIP_SACK: u8 = 4;
    pub(crate) const MICROSECONDS: u8 = 8;
    pub(crate) const ECHO_ECN: u8 = 16;
}

/// `enum segment_socket_flag`.
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

/// `struct segment_socket`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    reserved: u16,
}

/// `struct segment_seen`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub(crate) struct SegmentSeen {
    pub(crate) device: u32,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) mss: u16,
    pub(crate) hops: u16,
}

/// `struct segment_inspection`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct SegmentInspection {
    pub(crate) ethernet: [u8; 14],
    pub(crate) reserved: [u8; 2],
    pub(crate) tuple: [SegmentTuple; 2],
    pub(crate) socket: [SegmentSocket; 2],
    pub(crate) seen: [SegmentSeen; 2],
    pub(crate) forgotten: u32,
    /// By the program `segment_tracked`; see the module of that name.
    pub(crate) tracked: [u32; 2],
    pub(crate) reserved2: u32,
}

/// `SEGMENT_TRACKED`: what connection tracking knows of a connection.
pub(crate) mod segment_tracked {
    pub(crate) const TRACKED: u32 = 1;
    pub(crate) const OPENED_HERE: u32 = 2;
}

/// How many entries a [`HooksList`] has room for (`HOOKS_LISTED`).
pub(crate) const HOOKS_LISTED: usize = 64;
/// The places of [`HooksCounts::count`] (`HOOKS_PLACES`).
pub(crate) const HOOKS_PLACES: usize = 12;
/// The length of [`HooksEntry::function`] (`HOOKS_NAME_BYTES`).
pub(crate) const HOOKS_NAME_BYTES: usize = 44;

/// `struct hooks_entry` in `bpf/hooks.h`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HooksEntry {
    pub(crate) function: [u8; HOOKS_NAME_BYTES],
    pub(crate) priority: i32,
    pub(crate) place: u8,
    pub(crate) kind: u8,
    pub(crate) reserved: [u8; 2],
}

/// `struct hooks_counts`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct HooksCounts {
    pub(crate) ethernet: [u8; 14],
    pub(crate) device_known: u8,
    pub(crate) answered: u8,
    pub(crate) device: u32,
    pub(crate) skip: u32,
    pub(crate) functions: u64,
    pub(crate) count: [u16; HOOKS_PLACES],
}

/// `struct hooks_list`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HooksList {
    pub(crate) counts: HooksCounts,
    pub(crate) entry: [HooksEntry; HOOKS_LISTED],
}

const _: () = {
    assert!(size_of::<HooksEntry>() == 52);
    assert!(size_of::<HooksCounts>() == 56);
    assert!(size_of::<HooksList>() == 56 + 64 * 52);
};

/// `struct clock_reading` in `bpf/clock.bpf.c`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ClockReading {
    ethernet: [u8; 14],
    reserved: [u8; 2],
    pub(crate) now_ns: u64,
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
        ClockReading, DirectionEntry, HooksCounts, HooksList, Inspection, Plain, SegmentFlow,
        SegmentGate, SegmentInspection, SegmentPlace, SegmentTuple,
    };

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
