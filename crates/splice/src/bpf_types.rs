//! The twins of the structures in `bpf/*.h`.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64};

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
    pub(crate) passed: AtomicU64,
    pub(crate) last_ns: AtomicU64,
    pub(crate) credit: AtomicI64,
    pub(crate) largest: AtomicU32,
    pub(crate) latched: AtomicU32,
    pub(crate) full: AtomicU32,
    pub(crate) behind: AtomicU32,
    pub(crate) limited: AtomicU32,
    pub(crate) missed: AtomicU32,
    pub(crate) fins: AtomicU32,
    pub(crate) looks: AtomicU32,
    pub(crate) consumed: AtomicU64,
    pub(crate) limit: AtomicU64,
    rest_of_line: [AtomicU64; 6],
}

/// `struct inspection` in `bpf/redirect.h`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Inspection {
    pub(crate) cookie: u64,
    pub(crate) found: u32,
    pub(crate) queued_skbs: u32,
}

const _: () = {
    assert!(size_of::<DirectionEntry>() == 128);
    assert!(std::mem::offset_of!(DirectionEntry, fins) == 56);
    assert!(std::mem::offset_of!(DirectionEntry, consumed) == 64);
    assert!(size_of::<Inspection>() == 16);
    // Shared memory is read with plain loads of the program's size.
    assert!(align_of::<AtomicU64>() == 8);
};

#[allow(unsafe_code, reason = "see each comment")]
mod plain {
    use super::{DirectionEntry, Inspection, Plain};

    // SAFETY: integers have no padding and no invalid value.
    unsafe impl Plain for u32 {}
    // SAFETY: as above.
    unsafe impl Plain for u64 {}
    // SAFETY: repr(C), 16 atomic integers' worth of bytes, filled up to its alignment.
    unsafe impl Plain for DirectionEntry {}
    // SAFETY: repr(C), integers only, 8 + 4 + 4 = 16 bytes.
    unsafe impl Plain for Inspection {}
}
