//! A flow on its way back: why, where its connections stand that the sockets take up again, and whether these have
//! caught up.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::flow::{Flow, timestamp_ahead};
use super::sockets::addresses_of;
use crate::kernel::tcp_state::LISTEN;
use crate::outcome::Side;
use splice_bpf::sequence::{self, is_before};
use splice_bpf::types::{SegmentInspection, SegmentSocket};
use splice_bpf::types::{segment_mark as mark, segment_state as state};

/// Where a connection stands that its socket is to take up again, by what was translated; numbers as its peer
/// counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// What the peer has acknowledged.
    pub(super) acknowledged: u32,
    /// The next byte from it.
    pub(super) receive_next: u32,
    /// Where the window ends that the peer has announced, and the most bytes that it ever was.
    pub(super) window_end: u32,
    pub(super) largest_window: u32,
    /// The right edge that was announced to the peer. It may have sent all of that already, and a socket that has
    /// announced less discards whatever comes from beyond its window, acknowledgements as well.
    pub(super) announced_edge: u32,
    /// One that no timestamp which the peer has got has reached; 0: none is known.
    pub(super) timestamp: u32,
    pub(super) in_microseconds: bool,
}

impl Flow {
    /// Has the program hold back every segment, unless the flow has ended.
    pub(super) fn hold(&self) {
        for from in [state::OVERLAP, state::SPLICED] {
            let state = &self.entry().state;
            let _ = state.compare_exchange(from, state::HELD, SeqCst, Relaxed);
        }
    }

    /// Whether the translated segments of this side's peer get lost.
    pub(super) fn close(&self, side: usize, is_closed: bool) {
        if (self.marks(side) & mark::CLOSED != 0) == is_closed {
            return;
        }
        let side = self.side(side);
        if is_closed {
            side.add_mark(mark::CLOSED);
        } else {
            side.take_mark(mark::CLOSED);
        }
    }

    /// The translated segments of one of the peers get lost.
    pub(super) fn loses_segments(&self) -> bool {
        (0..2).any(|side| self.marks(side) & mark::CLOSED != 0)
    }

    pub(super) fn is_held(&self) -> bool {
        self.entry().state.load(Acquire) == state::HELD
    }

    /// Nothing of it is translated, now or any more.
    pub(super) fn goes_back(&self) -> bool {
        matches!(
            self.entry().state.load(Acquire),
            state::HELD | state::RETURNED
        )
    }

    /// Whose segments the program cannot translate, and why.
    pub(super) fn untranslatable(&self) -> Option<(Side, &'static str)> {
        let why = |side: Side| match self.marks(side.index()) {
            marks if marks & mark::FRAGMENTED != 0 => Some((side, "come in fragments")),
            marks if marks & mark::OPTIONED != 0 => Some((side, "have IP options")),
            marks if marks & mark::NARROW != 0 => {
                Some((side, "are too long for the path to the other peer"))
            }
            marks if marks & mark::STRAYED != 0 => {
                Some((side, "come by another device than before"))
            }
            _ => None,
        };
        Side::BOTH.into_iter().find_map(why)
    }

    /// The device that this side's segments come in by since they do not use their own.
    pub(super) fn strays_to(&self, side: usize) -> Option<u32> {
        let device = self.change_over()[side].seen_device.load(Relaxed);
        (self.marks(side) & mark::STRAYED != 0 && device != 0).then_some(device)
    }

    /// This side's stream has ended without the sockets, or by them, and the other peer has acknowledged that.
    pub(super) fn has_ended(&self, side: usize) -> bool {
        self.marks(side) & mark::FIN_ACKED != 0
    }

    /// Where this side's connection stands, by what both peers have acknowledged. What they have sent beyond that they
    /// will send again.
    pub(super) fn standing(&self, side: usize) -> Standing {
        let [near, far] = [self.side(side), self.side(1 - side)];
        // By the same mark as the other socket's `acknowledged`. What the program has not seen was acknowledged by the
        // sockets.
        let delta = near.seq_delta.load(Relaxed);
        let mut receive_next = far.high_ack.load(Relaxed).wrapping_sub(delta);
        if !self.is_distant(side) {
            let acknowledged = self.change_over()[side]
                .acknowledged_by_socket
                .load(Relaxed);
            receive_next = sequence::later(receive_next, acknowledged);
        }
        let mut announced_edge = near.announced_edge.load(Relaxed);
        if self.is_taken_over(side) {
            announced_edge =
                sequence::later(announced_edge, far.edge.load(Relaxed).wrapping_sub(delta));
        }
        Standing {
            acknowledged: near.high_ack.load(Relaxed),
            receive_next,
            window_end: near.edge.load(Relaxed),
            largest_window: near.largest_window.load(Relaxed),
            announced_edge,
            timestamp: timestamp_ahead(far),
            in_microseconds: far.ticks_in_microseconds(),
        }
    }

    /// The sockets have taken their connections up again, and send; each stands at the end of what it has `sent`.
    pub(super) fn return_to_sockets(&self, sent: [u32; 2]) {
        for (socket, sent) in self.change_over().iter().zip(sent) {
            socket.sent.store(sent, Relaxed);
        }
        self.wake();
        self.entry().state.store(state::RETURNED, SeqCst);
    }

    /// Resets both connections, whose sockets are gone, where their peers can have got. A peer that is not there answers
    /// (RFC 5961, 3.2), and is reset where it is.
    pub(super) fn reset_where_peers_are(&self) {
        for (side, tuple) in self.tuples().iter().enumerate() {
            let [seq, ack] = [self.got_by(side), self.side(side).high_seq()];
            // A peer that is reset already discards it. Should it fail, there is no way to the peer.
            let _ = self.datapath().reset(addresses_of(tuple), seq, ack);
        }
    }

    /// How far this side's peer can have got of the other stream.
    pub(super) fn got_by(&self, side: usize) -> u32 {
        let far = self.side(1 - side);
        far.high_seq().wrapping_add(far.seq_delta.load(Relaxed))
    }

    /// Both sockets know that their peers have all that these can have received without them, or have sent it before they
    /// went. A peer that is gone answers what it gets once more with a reset, which must not end the pair
    /// (`bpf/segment/returned.h`).
    pub(super) fn has_caught_up(&self, found: &SegmentInspection) -> bool {
        (0..2).all(|side| {
            let socket = &found.socket[side];
            let stands = match is_gone(socket) {
                true => self.change_over()[side].sent.load(Relaxed),
                false => socket.snd_una,
            };
            !is_before(stands, self.got_by(side))
        })
    }
}

/// There is no socket any more, nor another one of the same connection: not the one that listens on its address, which the
/// kernel finds otherwise.
pub(super) fn is_gone(socket: &SegmentSocket) -> bool {
    socket.cookie == 0 || socket.state == LISTEN
}
