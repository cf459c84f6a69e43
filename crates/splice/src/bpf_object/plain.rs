//! Types whose bytes are the same on both sides.

/// A type whose bytes are the same on both sides: no padding, no pointer, every bit pattern
/// valid.
///
/// # Safety
/// The implementor is `repr(C)`, has no padding and is valid for every bit pattern.
#[allow(unsafe_code, reason = "the promise that this module builds on")]
pub(crate) unsafe trait Plain: Sized {}

// SAFETY: integers have no padding and no invalid value.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
