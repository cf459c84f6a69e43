//! How a BPF program calls user space.

use std::fmt;
use std::os::fd::BorrowedFd;

/// A ring buffer through which a BPF program calls user space. Every loop that has a pair of the
/// engine watches it, and the loop that wakes up answers for all.
pub(crate) trait Notifier: Send + Sync + fmt::Debug {
    /// Readable when the program has called.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Reads the calls and wakes the pairs that they name.
    fn answer(&self);
}
