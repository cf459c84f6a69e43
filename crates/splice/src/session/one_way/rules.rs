//! What the caller of a one-way splice decides while it moves.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// What the caller of a one-way splice decides while it moves. The defaults are the rules of
/// [`Splicer::one_way`](crate::Splicer::one_way).
///
/// The splice asks from the thread that moves its bytes, and waits for the answer.
pub trait Rules: Send + Sync {
    /// Makes a descriptor for the splice of a socket that stays the caller's.
    ///
    /// # Errors
    /// `EMFILE` if the process has no descriptors left. Then there is no splice.
    fn duplicate(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        fd.try_clone_to_owned()
    }

    /// Closes a descriptor that [`duplicate`](Self::duplicate) has made.
    fn close(&self, duplicate: OwnedFd) {
        drop(duplicate);
    }

    /// A pair has taken the socket over, with a descriptor that [`duplicate`](Self::duplicate) has
    /// made. It closes the descriptor itself.
    fn hand_over(&self, duplicate: OwnedFd) -> OwnedFd {
        duplicate
    }

    /// Has the splice move bytes: calls `step` once. Only in this call the splice reads its source.
    fn turn(&self, step: &mut dyn FnMut()) {
        step();
    }

    /// How often the next turn may read the source at the most. With 0 the splice ends, with
    /// [`Reason::Looped`](crate::Reason::Looped).
    fn reads(&self, _source: BorrowedFd<'_>) -> u32 {
        u32::MAX
    }

    /// The largest datagram that may be sent to the destination, in bytes. A larger one ends the
    /// splice, with `EMSGSIZE`.
    fn largest_datagram(&self, _destination: BorrowedFd<'_>) -> usize {
        usize::MAX
    }

    /// The source has an error, and perhaps bytes that arrived before it. An error number ends the
    /// splice at once. Without one the splice moves the bytes first.
    fn error_of_source(&self, _source: BorrowedFd<'_>) -> Option<i32> {
        None
    }
}

/// The defaults.
pub(crate) struct Plain;

impl Rules for Plain {}
