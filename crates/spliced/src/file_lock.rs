//! A lock of a file (flock(2)) for which nobody waits long: whoever can open the file can keep it.

use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// How long it is waited for.
pub(crate) const LOCK_WITHIN: Duration = Duration::from_secs(1);

/// How often it is tried meanwhile.
const LOCK_EVERY: Duration = Duration::from_millis(5);

/// The lock of a file; drop frees it.
#[derive(Debug)]
pub(crate) struct FileLock {
    _file: OwnedFd,
}

impl FileLock {
    /// # Errors
    /// `WOULDBLOCK` if another process keeps it.
    pub(crate) fn of(file: OwnedFd) -> Result<Self, Errno> {
        let until = Instant::now() + LOCK_WITHIN;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(LOCK_EVERY),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
}
