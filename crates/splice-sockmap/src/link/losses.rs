//! Datagrams of a source that reach nobody.

use std::os::fd::BorrowedFd;

use splice_base::error::{Error, Result};
use splice_base::socket_option::memory;

use crate::socket_kind::SocketKind;

/// What the kernel has dropped of the messages of a source since it was linked. It counts them with the socket that has
/// received them (`sock_drop`), and so does the program's own answer to an empty one.
#[derive(Debug)]
pub(crate) struct Losses {
    /// What it had dropped before. `None` for a stream, of which it also counts what comes again.
    before: Option<u32>,
}

impl Losses {
    /// Those of a source from now on.
    pub(crate) fn begin(source: BorrowedFd<'_>, kind: SocketKind) -> Result<Self> {
        if kind.is_stream() {
            return Ok(Self::unknown());
        }
        let before = dropped(source)?;
        let before = Some(before);
        Ok(Self { before })
    }

    /// Those of a stream, which has none that are known.
    pub(crate) fn unknown() -> Self {
        Self { before: None }
    }

    pub(super) fn are_known(&self) -> bool {
        self.before.is_some()
    }

    /// How many there are, if so many empty ones were dropped on purpose.
    pub(super) fn so_far(&self, source: BorrowedFd<'_>, empty: u64) -> Result<Option<u64>> {
        let Some(before) = self.before else {
            return Ok(None);
        };
        // The kernel's count has 32 bits.
        let since = u64::from(dropped(source)?.wrapping_sub(before));
        Ok(Some(since.saturating_sub(empty)))
    }
}

fn dropped(source: BorrowedFd<'_>) -> Result<u32> {
    memory(source)
        .map(|memory| memory.dropped_packets as u32)
        .map_err(|errno| Error::system("cannot tell what a socket has dropped", errno))
}
