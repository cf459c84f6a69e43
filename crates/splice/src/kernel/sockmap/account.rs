//! How many bytes of a direction the program has redirected, and where they lie in both sequence spaces.
//! Sequence numbers wrap at 32 bits, and so does everything that is computed from them.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering;

use crate::kernel::tcp_state::ESTABLISHED;
use splice_bpf::types::{DirectionEntry, Inspection};

/// One reading of a direction's counters.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    /// All bytes that were redirected since the direction began.
    pub(super) redirected_bytes: u64,
    /// The source's sequence number of the next byte, less the redirected bytes.
    base_seq: u32,
    /// The target's sequence number of the next byte, less the redirected bytes.
    target_seq: u32,
}

/// What is in a source that user space has read from, and whether the gate can put it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// User space has read everything.
    Drained,
    /// More has come.
    HasBytes,
    /// The connection is half-closed: the kernel does not take it.
    NotEstablished,
    /// User space has read the end of the stream, which counts as one byte.
    AtEnd,
    /// Somebody else has read from it.
    Diverged,
}

impl Account {
    pub(super) fn read(entry: &DirectionEntry) -> Self {
        Self {
            redirected_bytes: entry.redirected.load(Ordering::Acquire),
            base_seq: entry.base_seq.load(Ordering::Relaxed),
            target_seq: entry.target_seq.load(Ordering::Relaxed),
        }
    }

    /// The source's sequence number behind everything that was redirected or read.
    fn source_seq(&self) -> u32 {
        self.base_seq.wrapping_add(self.redirected_bytes as u32)
    }

    /// How many bytes wait in the target's backlog.
    pub(super) fn backlog_bytes(&self, target: &Inspection) -> u32 {
        self.target_seq
            .wrapping_add(self.redirected_bytes as u32)
            .wrapping_sub(target.write_seq)
    }

    /// How many of the redirected bytes the target has taken.
    pub(super) fn pushed_bytes(&self, target: &Inspection) -> u64 {
        // Behind an end of stream the target is one ahead.
        let backlog = self.backlog_bytes(target).cast_signed().max(0);
        self.redirected_bytes
            .saturating_sub(backlog.unsigned_abs().into())
    }

    /// The program has redirected everything that came before the end of the stream, which counts as one
    /// byte.
    pub(super) fn has_all_before_end(&self, source: &Inspection) -> bool {
        source.rcv_nxt.wrapping_sub(1) == self.source_seq()
    }

    pub(super) fn source(&self, source: &Inspection) -> Source {
        match source.copied_seq.wrapping_sub(self.source_seq()) {
            0 if source.rcv_nxt != source.copied_seq => Source::HasBytes,
            0 if source.state != ESTABLISHED => Source::NotEstablished,
            0 => Source::Drained,
            1 => Source::AtEnd,
            _ => Source::Diverged,
        }
    }
}
