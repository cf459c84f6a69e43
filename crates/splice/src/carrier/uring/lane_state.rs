//! The state of a lane: its receive and its send.
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

/// Which of the two buffer groups.
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
    /// A send of so many bytes. It is complete once it is submitted, since it does not wait.
    Submitted(usize),
    /// The same; it has no completion if it sends all of its bytes.
    Silent(usize),
    /// So many bytes were sent, and there was room for more.
    Done(usize),
    /// So many bytes were sent, and then there was no room.
    Short(usize),
    Failed(Errno),
}

/// How the stream ends after the bytes that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StreamEnd {
    EndOfStream,
    Error(Errno),
}

/// The arguments of a `sendmsg(2)` of several pieces.
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
        // SAFETY: all fields are integers and pointers, for which zero is valid: no name, no
        // control data.
        let header = unsafe { std::mem::zeroed() };
        let mut gather = Box::new(Self { header, parts });
        gather.header.msg_iov = gather.parts.as_mut_ptr();
        gather.header.msg_iovlen = gather.parts.len();
        gather
    }
}

/// The requests of one lane.
pub(super) struct LaneState {
    pub(super) receive: ReceiveState,
    /// The socket to receive from.
    pub(super) source: RawFd,
    /// The receive is being cancelled; its last completion is still to come.
    pub(super) cancelled: bool,
    pub(super) released: bool,
    pub(super) received: VecDeque<Piece>,
    /// How many bytes the multishot receive has brought since the lane was last looked at.
    pub(super) multishot_bytes: usize,
    pub(super) stream_end: Option<StreamEnd>,
    pub(super) send: SendState,
    /// In flight. The kernel reads it while `send` is submitted.
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
        multishot_bytes: 0,
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

/// The two lanes of a pair.
pub(super) struct LanePair {
    pub(super) key: Key,
    /// The first lane reads socket 0 of the pair and writes to socket 1.
    pub(super) states: [LaneState; 2],
    /// The new readiness of each socket.
    pub(super) events: [Readiness; 2],
    /// The pair is in `Ring::ready`.
    pub(super) queued: bool,
}

/// The lanes of all pairs. The lane `index` belongs to the pair `index / 2`.
#[derive(Default)]
pub(super) struct Lanes(pub(super) Slab<LanePair>);

impl Lanes {
    pub(super) fn state(&mut self, index: usize) -> &mut LaneState {
        &mut self.0[index / 2].states[index % 2]
    }

    /// Adds to a socket's readiness. True if the pair has to be queued.
    pub(super) fn tell(&mut self, index: usize, socket: usize, readiness: Readiness) -> bool {
        let pair = &mut self.0[index / 2];
        pair.events[socket] = pair.events[socket].and(readiness);
        !std::mem::replace(&mut pair.queued, true)
    }
}
