//! Duplicates of a caller's descriptors, known to the process so that a forked child can close
//! them.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::{Errno, fcntl_dupfd_cloexec};
use splice_base::error::{Result, ResultExt as _};

/// Where duplicates begin, if the limit of descriptors allows it: programs that call select(2) have
/// only descriptors below `FD_SETSIZE`, which is 1024.
const FIRST_FD: RawFd = 1024;

/// The duplicates of this process.
static ALL: Mutex<BTreeSet<RawFd>> = Mutex::new(BTreeSet::new());

fn all() -> MutexGuard<'static, BTreeSet<RawFd>> {
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A duplicate, closed when it is dropped.
#[derive(Debug)]
pub(crate) struct Duplicate(Option<OwnedFd>);

impl Duplicate {
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System), `EMFILE` if the process has no descriptors
    /// left.
    pub(super) fn of(fd: BorrowedFd<'_>) -> Result<Self> {
        let mut all = all();
        let duplicate = match fcntl_dupfd_cloexec(fd, FIRST_FD) {
            // `EINVAL`: the limit is below it; `EMFILE`: all above it are in use.
            Err(Errno::INVAL | Errno::MFILE) => fcntl_dupfd_cloexec(fd, 0),
            other => other,
        }
        .context("cannot duplicate the socket's descriptor")?;
        all.insert(duplicate.as_raw_fd());
        Ok(Self(Some(duplicate)))
    }
}

impl Duplicate {
    /// Gives the descriptor away: whoever has it closes it.
    pub(crate) fn into_owned(mut self) -> Option<OwnedFd> {
        let fd = self.0.take()?;
        all().remove(&fd.as_raw_fd());
        Some(fd)
    }
}

impl AsFd for Duplicate {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0
            .as_ref()
            .map(OwnedFd::as_fd)
            .unwrap_or_else(|| unreachable!("only `drop` takes it"))
    }
}

impl Drop for Duplicate {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            // Closed under the lock: a fork sees it either open and listed, or neither.
            let mut all = all();
            all.remove(&fd.as_raw_fd());
            drop(fd);
        }
    }
}

/// The duplicates, locked against changes while the process forks.
#[derive(Debug)]
pub struct Duplicates(MutexGuard<'static, BTreeSet<RawFd>>);

impl Duplicates {
    /// Locks them before a fork.
    pub fn lock() -> Self {
        Self(all())
    }

    /// In the child: gives up all of them, for the caller to close. The parent's splices stay the
    /// parent's.
    pub fn give_up(mut self) -> Vec<RawFd> {
        std::mem::take(&mut *self.0).into_iter().collect()
    }
}
