//! What the sockets of a pair still hold of its streams when it goes back.

use rustix::io::Errno;

use super::change_over::Stream;
use super::flow::Flow;
use super::sockets;
use crate::endpoint::Endpoint;
use crate::kernel::tcp_state;
use crate::outcome::Side;
use splice_base::repair::{self, Repair};
use splice_bpf::sequence::{distance, is_before};
use splice_bpf::types::SegmentInspection;

/// How a stream goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From where its receiver is: nothing of it is left here that the receiver has not got.
    TakenOver,
    /// From where the sockets are, which hold what comes next.
    BySockets,
}

impl Way {
    /// That of side `from`'s stream in Overlap. `None` while it cannot go on: the sockets or user space have bytes that
    /// were translated as well.
    pub(super) fn of(
        flow: &Flow,
        found: &SegmentInspection,
        stream: Stream,
        from: usize,
    ) -> Option<Self> {
        let (near, far) = (&found.socket[from], &found.socket[1 - from]);
        let acknowledged = flow.standing(1 - from).acknowledged;
        let has_all = || flow.is_distant(from) || !is_before(acknowledged, far.write_seq);
        if flow.is_taken_over(from) && has_all() {
            let is_empty = stream.in_flight_bytes == 0 && near.copied_seq == near.rcv_nxt;
            return is_empty.then_some(Self::TakenOver);
        }
        Some(Self::BySockets)
    }
}

/// Where a socket takes its connection up, and what it holds there.
#[derive(Debug)]
pub(super) struct Leftover {
    /// The first byte that the peer has not acknowledged, and what was sent from there on.
    pub(super) send_next: u32,
    pub(super) sent: Vec<u8>,
    /// What follows.
    pub(super) unsent: Vec<u8>,
    /// The next byte from the peer, and what was received before it and is not read.
    pub(super) receive_next: u32,
    pub(super) unread: Vec<u8>,
    /// The peer has ended its stream, and the socket has acknowledged that.
    pub(super) has_end: bool,
}

impl Leftover {
    /// The end of what was sent.
    pub(super) fn sent_to(&self) -> u32 {
        self.send_next.wrapping_add(self.sent.len() as u32)
    }
}

/// What both sockets hold, which are in repair mode and may leave it. `ways` and `has_ended`: by the side that a stream
/// comes from.
///
/// # Errors
/// A socket does not give it.
pub(super) fn of(
    flow: &Flow,
    ends: [&Endpoint; 2],
    found: &SegmentInspection,
    ways: [Way; 2],
    has_ended: [bool; 2],
) -> Result<[Leftover; 2], (Side, Errno)> {
    let of = |side: Side| {
        let (from, to) = (side.index(), side.other().index());
        let (end, socket, standing) = (ends[from], &found.socket[from], flow.standing(from));
        let [mut sent, mut unsent, mut unread] = [const { Vec::new() }; 3];
        // An end of stream has to be sent once more.
        let ended = u32::from(has_ended[to]);
        let mut send_next = standing.acknowledged.wrapping_sub(ended);
        if ways[to] == Way::BySockets {
            let written = socket.write_seq.wrapping_sub(socket.snd_una);
            sent = repair::unacknowledged(end, written as usize)?;
            // What was acknowledged since the kernel was asked is gone; the end of it all is where it was.
            let written_to = socket.write_seq.wrapping_sub(ended);
            send_next = written_to.wrapping_sub(sent.len() as u32);
            let under_way = distance(send_next, socket.snd_nxt) as usize;
            unsent = sent.split_off(under_way.min(sent.len()));
        }
        let mut receive_next = standing.receive_next;
        let mut has_end = has_ended[from];
        if ways[from] == Way::BySockets {
            receive_next = socket.rcv_nxt;
            // With an end of stream that was not read, one more.
            let arrived = socket.rcv_nxt.wrapping_sub(socket.copied_seq);
            // The program holds back what the socket would say of it.
            sockets::leave_repair(end, Repair::Off);
            unread = repair::read_received(end, arrived as usize)?;
            has_end |= tcp_state::is_ended_by_peer(socket.state);
        }
        Ok(Leftover {
            send_next,
            sent,
            unsent,
            receive_next,
            unread,
            has_end,
        })
    };
    let of = |side| of(side).map_err(|errno| (side, errno));
    Ok([of(Side::A)?, of(Side::B)?])
}
