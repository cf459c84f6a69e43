//! The two streams of a flow: how far each has come, and which way it goes.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use splice_bpf::sequence::raise;
use splice_bpf::types::segment_mark as mark;

use super::Flow;

impl Flow {
    /// The right edge of the window that the socket has announced is `edge` or later.
    pub(crate) fn raise_announced_edge(&self, side: usize, edge: u32) {
        raise(&self.side(side).announced_edge, edge);
    }

    /// The program translates this side's stream.
    pub(crate) fn is_taken_over(&self, side: usize) -> bool {
        self.marks(side) & mark::TAKEN_OVER != 0
    }

    /// Has the program translate this side's stream from `takeover_seq` on, unless more of it has arrived.
    pub(crate) fn take_over(&self, side: usize, takeover_seq: u32) {
        raise(&self.change_over()[side].takeover_seq, takeover_seq);
        let side = self.side(side);
        let taken_over = |word: u64| {
            (word as u32 == takeover_seq).then_some(word | u64::from(mark::TAKEN_OVER) << u32::BITS)
        };
        // It fails if more has arrived.
        let _ = side
            .high_seq_and_marks
            .fetch_update(SeqCst, SeqCst, taken_over);
    }

    /// This side's stream ended at `end`, and its FIN was acknowledged.
    pub(crate) fn end(&self, side: usize, end: u32) {
        self.side(side).end_stream(end);
    }

    /// The sockets have delivered this side's stream up to `end`.
    pub(crate) fn note_acknowledged_by_socket(&self, side: usize, end: u32) {
        raise(&self.change_over()[side].acknowledged_by_socket, end);
    }

    /// Each peer has acknowledged the other's stream and its end.
    pub(crate) fn is_all_acknowledged(&self) -> bool {
        (0..2).all(|side| self.marks(side) & mark::FIN_ACKED != 0)
    }

    /// How many bytes of this side's stream were translated and acknowledged.
    pub(crate) fn moved_bytes(&self, side: usize) -> u64 {
        let next_byte = self.next_byte[side].load(Relaxed);
        if !self.is_taken_over(side) {
            return 0;
        }
        let (entry, socket) = (self.side(side), &self.change_over()[side]);
        let acked = entry.acked.load(Relaxed);
        let [acknowledged_by_socket, takeover_seq] =
            [&socket.acknowledged_by_socket, &socket.takeover_seq]
                .map(|end| end.load(Relaxed).wrapping_sub(next_byte));
        let by_sockets = acknowledged_by_socket.max(takeover_seq);
        let moved = (acked - u64::from(next_byte)).saturating_sub(by_sockets.into());
        moved.saturating_sub(entry.has_acknowledged_end().into())
    }

    /// Whether this side's stream is so far beyond the sockets that nothing of what these know of it counts any more.
    /// Their numbers even seem to lie ahead once two gigabytes have passed.
    pub(crate) fn is_distant(&self, side: usize) -> bool {
        self.marks(side) & mark::DISTANT != 0
    }
}
