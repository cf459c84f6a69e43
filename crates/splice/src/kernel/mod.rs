//! Engines in the kernel, and how one takes over a pair in mid-stream.
//!
//! Every pair starts in user space, even with an engine that was asked for by name: user space pumps both
//! directions. After every pump, that is after every event, deadline and wake-up of the pair, an engine in the
//! kernel gets its [`turn`](KernelEngine::turn):
//!
//! ```text
//!                  ┌───────────────── event, deadline, wake-up ◀─────────────┐
//!                  ▼                                                         │
//!   pump both directions, each up to its mark (DirectionView::hold_at)       │
//!                  ▼                                                         │
//!   engine.turn(): takes over a direction that is at rest and holds it there,│
//!                  gives one back by moving its mark                         │
//!                  │                                                         │
//!                  ├─ Holds(next) ──▶ watch the sockets as `next` says ──────┘
//!                  ├─ Refused(..) ───▶ user space goes on alone, and the reason is shown; some end a pair
//!                  │                   that has asked for the engine by name
//!                  ├─ Returned(..) ──▶ user space goes on alone, where the kernel has got to
//!                  └─ Ends(reason) ──▶ release(), both sockets are closed
//! ```
//!
//! The two directions are independent. A direction reads up to its mark. At the mark it stops, with nothing in
//! flight; the kernel moves what comes after. An engine that needs user space for a part (bytes that it left
//! on the source, or an end of stream) moves the mark beyond that part and asks for another pump with
//! [`Next::PUMP`].
//!
//! While every byte passes in the kernel, the engine asks for [`Watch::Ends`]. Then only an end of stream, an
//! error or the pair's deadline wakes the pair, never a byte.
//!
//! A path that begins with `bpf/` is one in `crates/splice-bpf`.

mod refusal;
pub(crate) mod segment;
pub(crate) mod sockmap;
mod tcp_state;

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::endpoint::Endpoint;
use crate::name::EngineName;
use crate::outcome::{Reason, Side};
use crate::reactor::Notifier;

pub(crate) use self::refusal::{Cause, Refusal};

/// One direction of a pair, as an engine sees it.
pub(crate) trait DirectionView {
    /// How many bytes user space has read.
    fn taken_bytes(&self) -> u64;

    /// How many bytes user space has written.
    fn given_bytes(&self) -> u64;

    /// The source has signalled its end of stream. User space may not have read it yet.
    fn end_seen(&self) -> bool;

    /// User space has read the end of the stream: no byte follows.
    fn is_ending(&self) -> bool;

    /// User space has passed on the end of the stream.
    fn has_ended(&self) -> bool;

    /// User space holds none of its bytes.
    fn has_none_in_flight(&self) -> bool;

    /// A pump would move bytes, or would find that it cannot.
    fn can_move(&self) -> bool;

    /// Moves the mark; `u64::MAX` lifts it. See the module's documentation.
    fn hold_at(&mut self, mark_bytes: u64);

    /// Moves bytes only through a buffer from now on: splice(2) does not see what a BPF program has left on
    /// a socket (`tcp_splice_read` reads only the receive queue).
    fn copy_only(&mut self);

    /// Reads from the source again, whatever epoll has reported.
    fn read_again(&mut self);
}

/// A pair, as an engine sees it during a turn. `directions[i]` reads from `ends[i]` and
/// writes to `ends[1 - i]`.
pub(crate) struct PairView<'a> {
    /// In an echo both are the same endpoint, and the second direction has ended from the start.
    pub(crate) ends: [&'a Endpoint; 2],
    pub(crate) directions: [&'a mut dyn DirectionView; 2],
    /// The largest size of each of the four socket buffers, in bytes.
    pub(crate) buffer_bytes: usize,
    pub(crate) byte_limit: Option<u64>,
    /// Makes a waker that gives the pair a turn, from any thread.
    pub(crate) waker: &'a dyn Fn() -> Waker,
    pub(crate) now: Instant,
}

impl PairView<'_> {
    /// An endpoint is spliced to itself.
    pub(crate) fn is_echo(&self) -> bool {
        std::ptr::eq(self.ends[0], self.ends[1])
    }
}

/// Which events of its two sockets wake a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watch {
    /// Only ends of stream and errors.
    Ends,
    /// The same, and room: the ring reads.
    EndsAndRoom,
    /// All: user space moves the bytes of at least one direction.
    Stream,
}

/// What wakes a pair that an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) watch: Watch,
    /// The engine gets a turn then, whatever happens.
    pub(crate) look_at: Option<Instant>,
    /// The engine has moved a mark: pump again.
    pub(crate) again: bool,
}

impl Next {
    /// The kernel moves the bytes, or no more will come.
    pub(crate) const ASLEEP: Self = Self::watching(Watch::Ends);
    pub(crate) const PUMP: Self = Self {
        again: true,
        ..Self::watching(Watch::Stream)
    };

    pub(crate) const fn watching(watch: Watch) -> Self {
        Self {
            watch,
            look_at: None,
            again: false,
        }
    }

    pub(crate) fn until(self, look_at: Instant) -> Self {
        Self {
            look_at: Some(look_at),
            ..self
        }
    }

    /// Adds what the pair's other direction needs.
    pub(crate) fn join(&mut self, other: Self) {
        self.watch = self.watch.max(other.watch);
        self.look_at = [self.look_at, other.look_at].into_iter().flatten().min();
        self.again |= other.again;
    }
}

/// What the kernel has done for a pair that an engine gives back, by the direction.
#[derive(Debug)]
pub(crate) struct Returned {
    /// What was delivered to the direction's target.
    pub(crate) moved_bytes: [u64; 2],
    /// The stream has ended, and its end was passed on.
    pub(crate) has_ended: [bool; 2],
    /// The stream's sender has ended it, after so many bytes that are still to be read; the socket will not tell.
    pub(crate) ends_after_bytes: [Option<u64>; 2],
    pub(crate) refusal: Refusal,
    /// What remains in the kernel for a while.
    pub(crate) left: Box<dyn Aftermath>,
}

/// The result of an engine's turn.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The engine has taken the pair, or still tries to.
    Holds(Next),
    /// The engine does not take the pair. It has left nothing behind: no direction has a mark.
    Refused(Refusal),
    /// The engine gives back a pair that it has taken, for good. No direction has a mark.
    Returned(Returned),
    /// The pair is over.
    Ends(Reason),
}

/// What holds for all pairs of an engine in the kernel.
#[derive(Debug)]
pub(crate) struct Profile {
    pub(crate) name: EngineName,
    /// Why `auto` has picked it for a pair that it has taken, for the log.
    pub(crate) why_picked: &'static str,
    /// Which bytes of a pair it leaves to user space, for the log.
    pub(crate) left_to_user_space: &'static str,
    /// It keeps receive buffers empty, so they can be smaller
    /// ([`redirected_receive_bytes`](crate::endpoint::redirected_receive_bytes)).
    pub(crate) redirects: bool,
}

/// An engine that moves one pair's bytes in the kernel.
pub(crate) trait KernelEngine: Send + fmt::Debug {
    /// What holds for all of its pairs.
    fn profile(&self) -> &'static Profile;

    /// Whether the kernel has moved bytes, or is going to move the next ones.
    fn has_taken(&self) -> bool;

    /// Takes the next step; see the module's documentation. The first turn comes when the pair starts or is
    /// promoted.
    fn turn(&mut self, pair: &mut PairView<'_>) -> Turn;

    /// Counters of what the kernel has moved, for any thread. Every call gives the same object.
    fn counters(&self) -> Arc<dyn KernelCounters>;

    /// What the engine's program wakes user space by, if it does.
    fn notifier(&self) -> Option<Arc<dyn Notifier>>;

    /// Which peer has reset its connection, as far as the program knows. The sockets may learn first of the
    /// other peer's answer.
    fn reset_by(&self) -> Option<Side> {
        None
    }

    /// Removes everything of the pair from the kernel, when the pair ends. Returns exactly how many bytes the
    /// kernel has delivered to each direction's target. Both sockets are closed right after this.
    fn release(&mut self, ends: [&Endpoint; 2], directions: [&dyn DirectionView; 2]) -> [u64; 2];

    /// Called once both sockets are closed: returns what remains in the kernel for a while, if anything does.
    fn closed(&mut self, _reason: Reason) -> Option<Box<dyn Aftermath>> {
        None
    }

    /// How many bytes the kernel has carried, retransmissions included.
    #[cfg(test)]
    fn carried_bytes(&self) -> u64 {
        0
    }
}

/// What remains of a pair in the kernel once both of its sockets are closed, or its engine has given it back.
pub(crate) trait Aftermath: Send + fmt::Debug {
    /// Returns when to look again, or `None` once nothing remains.
    fn look(&mut self, now: Instant) -> Option<Instant>;
}

/// What the kernel has done in each direction.
pub(crate) trait KernelCounters: Send + Sync + fmt::Debug {
    /// How many bytes it has moved.
    fn moved_bytes(&self) -> [u64; 2];

    /// When it last moved a byte, if it did.
    fn moved_at(&self, now: Instant) -> Option<Instant>;

    /// When it first moved a byte that the second end has sent, if it did.
    fn first_moved_at(&self, now: Instant) -> Option<Instant>;

    /// Why segments of the pair get lost now, if they do.
    fn why_lost(&self) -> Option<String> {
        None
    }

    /// Which streams have ended without the sockets, and their ends were acknowledged. User space's directions do not
    /// see that. The acknowledgement counts for [`moved_at`](Self::moved_at).
    fn ended_streams(&self) -> [bool; 2] {
        [false; 2]
    }
}
