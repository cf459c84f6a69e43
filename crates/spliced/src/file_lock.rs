//! A lock of a file (flock(2)) for which nobody waits long: whoever can open the file can keep it.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long locks are waited for, all of a [`LockWait`] together.
pub(crate) const LOCK_WITHIN: Duration = Duration::from_secs(1);

/// How often one is tried meanwhile.
const LOCK_EVERY: Duration = Duration::from_millis(5);

/// After this time without a wait, the whole [`LOCK_WITHIN`] is there again: a start or a reload is over by then.
const AGAIN_AFTER: Duration = Duration::from_secs(10);

/// The time that is left to wait for locks: one who keeps the locks of many files delays no more than one who keeps a
/// single one.
#[derive(Debug, Default)]
pub(crate) struct LockWait {
    spent: Mutex<Spent>,
}

#[derive(Debug, Default)]
struct Spent {
    time: Duration,
    last: Option<Instant>,
}

impl LockWait {
    pub(crate) fn left(&self) -> Duration {
        let mut spent = self.spent();
        if spent.last.is_some_and(|last| last.elapsed() > AGAIN_AFTER) {
            *spent = Spent::default();
        }
        LOCK_WITHIN.saturating_sub(spent.time)
    }

    fn spend(&self, since: Instant) {
        let mut spent = self.spent();
        spent.time += since.elapsed();
        spent.last = Some(Instant::now());
    }

    fn spent(&self) -> MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lock of a file; drop frees it.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: OwnedFd,
}

impl FileLock {
    /// # Errors
    /// `WOULDBLOCK` if another process keeps it.
    pub(crate) fn of(file: OwnedFd, wait: &LockWait) -> Result<Self, Errno> {
        let begin = Instant::now();
        let until = begin + wait.left();
        let mut has_waited = false;
        let locked = loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                    has_waited = true;
                    thread::sleep(LOCK_EVERY);
                }
                Err(Errno::INTR) => {}
                locked => break locked,
            }
        };
        if has_waited {
            wait.spend(begin);
        }
        locked.map(|()| Self { _file: file })
    }
}
