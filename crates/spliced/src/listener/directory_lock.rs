//! The lock of the directory of a socket file: who has it may remove the file, or put another one in its place.

use std::path::Path;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::file_lock::{FileLock, LOCK_WITHIN, LockWait};

/// The lock for the file at `path`; `None` if this process cannot read the directory, or another one keeps the lock.
pub(super) fn lock_for(path: &Path, wait: &LockWait) -> Option<FileLock> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let handle = open(directory, flags, Mode::empty()).ok()?;
    let has_time = !wait.left().is_zero();
    match FileLock::of(handle, wait) {
        Ok(lock) => Some(lock),
        Err(errno) => {
            // Once for all those files together.
            if errno == Errno::WOULDBLOCK && has_time {
                tracing::warn!(
                    "another process keeps {} locked (flock), and this one goes on without that lock after {} s; end the \
                     other one, or choose a directory that other users cannot open",
                    directory.display(),
                    LOCK_WITHIN.as_secs()
                );
            }
            None
        }
    }
}
