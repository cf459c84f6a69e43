//! Types whose bytes mean the same to BPF programs and to this process.
#![allow(
    unsafe_code,
    reason = "the bytes of a `Plain` value; see the SAFETY comments"
)]

/// A type with the same layout on both sides: no padding, no pointers, and valid for every bit
/// pattern.
///
/// # Safety
/// The implementor is `repr(C)`, has no padding and is valid for every bit pattern.
pub unsafe trait Plain: Sized {}

// SAFETY: integers have no padding and no invalid value.
unsafe impl Plain for u32 {}
// SAFETY: as above.
unsafe impl Plain for u64 {}
// SAFETY: as above; it has the layout of its integer.
unsafe impl Plain for std::sync::atomic::AtomicU64 {}
// SAFETY: bytes have neither.
unsafe impl<const N: usize> Plain for [u8; N] {}

/// The bytes of a value, as the kernel reads them.
pub(crate) fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: `Plain` has no padding, so all `size_of` bytes are initialised, and they live as
    // long as the reference.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}
