//! What each direction has on the ring.
//!
//! ```text
//! receive   Idle ──▶ Once ──────▶ Idle          send   Idle ──▶ Submitted, Silent ──▶ Done ──▶ Idle
//!             └────▶ Multishot ─────┘                                        ├─────▶ Short ──▶ Idle
//!              (cancelled) ─────────┘                                        └─────▶ Failed
//! ```

use std::collections::VecDeque;
use std::os::fd::RawFd;

use rustix::io::Errno;
use slab::Slab;

use super::buffers::Piece;
use crate::reactor::{Key, Readiness};

/// Which of the two groups of buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BufferKind {
    Message,
    Bulk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveState {
    Idle,
    Once {
        size: BufferKind,
        most_bytes: u32,
        bundle: bool,
    },
    Multishot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendState {
    Idle,
    /// Of so many bytes. It is over when it has been submitted, since it does not wait.
    Submitted(usize),
    /// The same, and silent if it sends all of its bytes.
    Silent(usize),
    /// So many bytes were sent; there was room for more.
    Done(usize),
    /// So many bytes were sent, and then there was no room.
    Short(usize),
    Failed(Errno),
}

/// What stands behind the bytes that have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    EndOfStream,
    Error(Errno),
}

/// What `sendmsg(2)` is told: several pieces at once.
pub(super) struct Gather {
    pub(super) header: libc::msghdr,
    pub(super) parts: Vec<libc::iovec>,
}

impl Gather {
    pub(super) fn of(pieces: &VecDeque<Piece>) -> Box<Self> {
        let parts = pieces
            .iter()
            .map(|piece| libc::iovec {
                iov_base: piece.address().cast(),
                iov_len: piece.len(),
            })
            .collect();
        // SAFETY: it is made of integers and pointers, for which zero is a value: no name, no
        // control data.
        let header = unsafe { std::mem::zeroed() };
        let mut gather = Box::new(Self { header, parts });
        gather.header.msg_iov = gather.parts.as_mut_ptr();
        gather.header.msg_iovlen = gather.parts.len();
        gather
    }
}

/// One direction's requests.
pub(super) struct LaneState {
    pub(super) receive: ReceiveState,
    /// What is received from.
    pub(super) source: RawFd,
    /// The receive is to end: its last completion is still to come.
    pub(super) cancelled: bool,
    pub(super) released: bool,
    pub(super) received: VecDeque<Piece>,
    pub(super) stream_end: Option<StreamEnd>,
    pub(super) send: SendState,
    /// In the hand of the direction. The kernel reads it while `send` is submitted.
    pub(super) sending: VecDeque<Piece>,
    pub(super) gather: Option<Box<Gather>>,
}

impl LaneState {
    pub(super) const NEW: Self = Self {
        receive: ReceiveState::Idle,
        source: -1,
        cancelled: false,
        released: false,
        received: VecDeque::new(),
        stream_end: None,
        send: SendState::Idle,
        sending: VecDeque::new(),
        gather: None,
    };

    pub(super) fn is_quiet(&self) -> bool {
        self.receive == ReceiveState::Idle && !self.is_sending()
    }

    pub(super) fn is_sending(&self) -> bool {
        matches!(self.send, SendState::Submitted(_) | SendState::Silent(_))
    }
}

/// A pair's place on the ring.
pub(super) struct LanePair {
    pub(super) key: Key,
    /// The first reads socket 0 of the pair and writes to socket 1.
    pub(super) states: [LaneState; 2],
    /// What has become possible on each socket.
    pub(super) events: [Readiness; 2],
    /// In `Ring::ready`.
    pub(super) queued: bool,
}

/// The places of all pairs; that of the lane `index` is `index / 2`.
#[derive(Default)]
pub(super) struct Lanes(pub(super) Slab<LanePair>);

impl Lanes {
    pub(super) fn state(&mut self, index: usize) -> &mut LaneState {
        &mut self.0[index / 2].states[index % 2]
    }

    /// Tells of a socket. True when the place has to be looked at from now on.
    pub(super) fn tell(&mut self, index: usize, socket: usize, readiness: Readiness) -> bool {
        let pair = &mut self.0[index / 2];
        pair.events[socket] = pair.events[socket].and(readiness);
        !std::mem::replace(&mut pair.queued, true)
    }
}
