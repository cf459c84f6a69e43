//! The splices' own descriptors, known to the process so that a forked child can close them.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Where duplicates begin, if the limit of descriptors allows it: programs that call select(2) have
/// only descriptors below `FD_SETSIZE`, which is 1024.
const FIRST_FD: RawFd = 1024;

/// The duplicates of this process.
static ALL: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

fn all() -> MutexGuard<'static, BTreeSet<RawFd>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// # Errors
/// `EMFILE` if the process has no descriptors left.
pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut all = all();
    let duplicate = match fcntl_dupfd_cloexec(fd, FIRST_FD) {
        // `EINVAL`: the limit is below it; `EMFILE`: all above it are in use.
        Err(Errno::INVAL | Errno::MFILE) => fcntl_dupfd_cloexec(fd, 0),
        other => other,
    }?;
    all.insert(duplicate.as_raw_fd());
    Ok(duplicate)
}

/// Gives a duplicate away: whoever has it closes it.
pub(crate) fn give_away(duplicate: OwnedFd) -> OwnedFd {
    all().remove(&duplicate.as_raw_fd());
    duplicate
}

pub(crate) fn close(duplicate: OwnedFd) {
    // Closed under the lock: a fork sees it either open and listed, or neither.
    let mut all = all();
    all.remove(&duplicate.as_raw_fd());
    drop(duplicate);
}

/// The duplicates, locked against changes while the process forks.
#[derive(Debug)]
pub(crate) struct Duplicates(MutexGuard<'static, BTreeSet<RawFd>>);

impl Duplicates {
    /// Locks them before a fork.
    pub(crate) fn lock() -> Self {
        Self(all())
    }

    /// In the child: gives up all of them, for the caller to close. The parent's splices stay the
    /// parent's.
    pub(crate) fn give_up(mut self) -> BTreeSet<RawFd> {
        std::mem::take(&mut *self.0)
    }
}
