//! TCP sequence numbers, which wrap.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Whether one number is before another (`before` of the kernel; RFC 9293, 3.4).
pub fn is_before(one: u32, other: u32) -> bool {
    other.wrapping_sub(one).cast_signed() > 0
}

/// How many bytes there are from one number to a later one; 0 to one that is not later.
pub fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from).cast_signed().max(0).cast_unsigned()
}

/// The later one of two numbers.
pub fn later(one: u32, other: u32) -> u32 {
    if is_before(one, other) { other } else { one }
}

/// Moves a mark forward, never back. The BPF program raises the same words (`raise` in
/// `bpf/lib/atomics.h`).
pub fn raise(mark: &AtomicU32, to: u32) {
    // It fails if the mark is already there, which is fine.
    let _ = mark.fetch_update(Relaxed, Relaxed, |mark| is_before(mark, to).then_some(to));
}
