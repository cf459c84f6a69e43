//! What calls user space from the kernel.

use std::fmt;
use std::os::fd::BorrowedFd;

/// What a BPF program calls user space with: a ring buffer. Every loop that has a pair of the engine
/// watches it; the one that is woken answers for all.
pub(crate) trait Notifier: Send + Sync + fmt::Debug {
    /// Readable when somebody has called.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes the calls and wakes the pairs that are meant.
    fn answer(&self);
}
