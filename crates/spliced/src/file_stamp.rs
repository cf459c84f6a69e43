//! What changes with a file, so that it is read again only then.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that was changed within this time may be changed again without another time stamp: file systems
/// count in jiffies, and some in seconds.
const COARSEST_STAMP: Duration = Duration::from_secs(2);

/// What changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a later change is sure to have another stamp.
    pub(crate) fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let changed = u64::try_from(self.changed.0).map(Duration::from_secs);
        match (now, changed) {
            (Ok(now), Ok(changed)) => now > changed + COARSEST_STAMP,
            _ => false,
        }
    }
}
