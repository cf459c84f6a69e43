//! TCP sequence numbers, which wrap.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Whether `mark` is before `to`.
pub fn is_behind(mark: u32, to: u32) -> bool {
    to.wrapping_sub(mark).cast_signed() > 0
}

/// How many bytes there are from one number to a later one; 0 to one that is not later.
pub fn distance(from: u32, to: u32) -> u32 {
    to.wrapping_sub(from).cast_signed().max(0).cast_unsigned()
}

/// Whichever of two numbers is behind neither.
pub fn later(one: u32, other: u32) -> u32 {
    if is_behind(one, other) { other } else { one }
}

/// Moves a mark forward, never back. The BPF program raises the same words (`raise` in
/// `bpf/segment/overlap.h`).
pub fn raise(mark: &AtomicU32, to: u32) {
    // It fails if the mark is already there, which is fine.
    let _ = mark.fetch_update(Relaxed, Relaxed, |mark| is_behind(mark, to).then_some(to));
}
