//! Where the connections of a flow stand that its sockets take up again, and whether these have caught up.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::flow::{Flow, timestamp_ahead};
use splice_bpf::sequence::{self, is_behind};
use splice_bpf::types::segment_state as state;

/// Where a connection stands that its socket is to take up again; numbers as its peer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// The next byte to the peer.
    pub(super) send_next: u32,
    /// The next one from it.
    pub(super) receive_next: u32,
    /// What the peer has room for, and the most that it ever had, in bytes.
    pub(super) window: u32,
    pub(super) largest_window: u32,
    /// What the peer was told that there is room for, in bytes. It may have sent all of that already, and a socket that
    /// has announced less discards whatever comes from behind its window, acknowledgements as well.
    pub(super) room: u32,
    /// One that no timestamp which the peer has got has reached; 0: none is known.
    pub(super) timestamp: u32,
    pub(super) in_microseconds: bool,
}

impl Flow {
    /// Where this side's connection stands, by what both peers have acknowledged. What they have sent beyond that they
    /// will send again.
    pub(super) fn standing(&self, side: usize) -> Standing {
        let [near, far] = [self.side(side), self.side(1 - side)];
        let high_ack = near.high_ack.load(Relaxed);
        // What the program has not heard was acknowledged by the sockets.
        let receive_next = sequence::later(
            near.acked.load(Relaxed) as u32,
            self.change_over()[side].cut.load(Relaxed),
        );
        let promised = sequence::later(
            near.promised.load(Relaxed),
            far.edge
                .load(Relaxed)
                .wrapping_sub(near.seq_delta.load(Relaxed)),
        );
        Standing {
            // The socket has to send its end of stream once more.
            send_next: high_ack.wrapping_sub(self.has_ended(1 - side).into()),
            receive_next,
            window: near.edge.load(Relaxed).wrapping_sub(high_ack),
            largest_window: near.largest_window.load(Relaxed),
            room: promised
                .wrapping_sub(receive_next)
                .cast_signed()
                .max(0)
                .cast_unsigned(),
            timestamp: timestamp_ahead(far),
            in_microseconds: far.ticks_in_microseconds(),
        }
    }

    /// The sockets have taken their connections up again, and send.
    pub(super) fn return_to_sockets(&self) {
        for (side, socket) in self.change_over().iter().enumerate() {
            socket.sent.store(self.standing(side).send_next, Relaxed);
        }
        self.wake();
        self.entry().state.store(state::RETURNED, SeqCst);
    }

    /// Both sockets have sent all that their peers can have got past them.
    pub(super) fn has_caught_up(&self) -> bool {
        (0..2).all(|side| {
            let far = self.side(1 - side);
            let got = far.high_seq().wrapping_add(far.seq_delta.load(Relaxed));
            !is_behind(self.change_over()[side].sent.load(Relaxed), got)
        })
    }
}
