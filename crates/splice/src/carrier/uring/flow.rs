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
pub(super) enum Size {
    Message,
    Bulk,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Receive {
    Idle,
    Once {
        size: Size,
        most_bytes: u32,
        bundle: bool,
    },
    Multishot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Send {
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
pub(super) enum Behind {
    EndOfStream,
    Fault(Errno),
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
pub(super) struct Flow {
    pub(super) receive: Receive,
    /// What is received from.
    pub(super) source: RawFd,
    /// The receive is to end: its last completion is still to come.
    pub(super) cancelled: bool,
    pub(super) released: bool,
    pub(super) received: VecDeque<Piece>,
    pub(super) behind: Option<Behind>,
    pub(super) send: Send,
    /// In the hand of the direction. The kernel reads it while `send` is submitted.
    pub(super) sending: VecDeque<Piece>,
    pub(super) gather: Option<Box<Gather>>,
}

impl Flow {
    pub(super) const NEW: Self = Self {
        receive: Receive::Idle,
        source: -1,
        cancelled: false,
        released: false,
        received: VecDeque::new(),
        behind: None,
        send: Send::Idle,
        sending: VecDeque::new(),
        gather: None,
    };

    pub(super) fn is_quiet(&self) -> bool {
        self.receive == Receive::Idle && !self.is_sending()
    }

    pub(super) fn is_sending(&self) -> bool {
        matches!(self.send, Send::Submitted(_) | Send::Silent(_))
    }
}

/// A pair's place on the ring.
pub(super) struct Place {
    pub(super) key: Key,
    /// The first reads socket 0 of the pair and writes to socket 1.
    pub(super) flows: [Flow; 2],
    /// What has become possible on each socket.
    pub(super) events: [Readiness; 2],
    /// In `Ring::ready`.
    pub(super) queued: bool,
}

/// The places of all pairs; that of the lane `index` is `index / 2`.
#[derive(Default)]
pub(super) struct Places(pub(super) Slab<Place>);

impl Places {
    pub(super) fn flow(&mut self, index: usize) -> &mut Flow {
        &mut self.0[index / 2].flows[index % 2]
    }

    /// Tells of a socket. True when the place has to be looked at from now on.
    pub(super) fn tell(&mut self, index: usize, socket: usize, readiness: Readiness) -> bool {
        let place = &mut self.0[index / 2];
        place.events[socket] = place.events[socket].and(readiness);
        !std::mem::replace(&mut place.queued, true)
    }
}
