//! Engines in the kernel, and how one takes a pair over in mid-stream.
//!
//! A pair always starts in user space, also where the engine was asked for by name: its directions
//! are pumped. An engine that moves the bytes in the kernel is asked for its
//! [`turn`](KernelEngine::turn) behind every pump, that is after every event, deadline and wake-up
//! of the pair:
//!
//! ```text
//!                  ┌───────────────── event, deadline, wake-up ◀─────────────┐
//!                  ▼                                                         │
//!   pump both directions, each up to its mark (DirectionView::hold_at)       │
//!                  ▼                                                         │
//!   engine.turn(): takes a direction that is at rest over and holds it there,│
//!                  gives one back by moving its mark                         │
//!                  │                                                         │
//!                  ├─ Holds(next) ──▶ watch the sockets as `next` says ──────┘
//!                  ├─ Declined(why) ─▶ user space goes on alone, `why` is shown
//!                  ├─ Refused(why) ──▶ the same, unless the engine was asked for by name
//!                  └─ Ends(reason), Filtered(why) ──▶ release(), both sockets are closed
//! ```
//!
//! The two directions are independent. What a direction may read is bounded by its mark: at the
//! mark it stands still, with nothing in flight; behind it lies what the kernel moves. An engine
//! that needs user space for a part (bytes that it left on the source, an end of stream to pass
//! on) moves the mark behind that part and asks for another pump with [`Next::PUMP`].
//!
//! While every byte passes in the kernel the engine asks for [`Watch::Ends`]: then the pair is
//! woken by an end of stream, an error or its deadline, never by a byte.

pub(crate) mod segment;
pub(crate) mod sockmap;
mod tcp_state;

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use crate::endpoint::Endpoint;
use crate::name::EngineName;
use crate::outcome::{Reason, Side};
use crate::reactor::Notifier;

/// What an engine may see and do of one direction of its pair.
pub(crate) trait DirectionView {
    /// What user space has read, in bytes.
    fn taken_bytes(&self) -> u64;

    /// What user space has written, in bytes.
    fn given_bytes(&self) -> u64;

    /// The source has told of its end of stream, which may not have been read yet.
    fn end_seen(&self) -> bool;

    /// Its end of stream is on its way or passed on: no byte follows.
    fn is_ending(&self) -> bool;

    /// The end of the stream was passed on.
    fn has_ended(&self) -> bool;

    /// User space holds none of its bytes.
    fn has_none_in_flight(&self) -> bool;

    /// A pump would move bytes, or find out that it cannot.
    fn can_move(&self) -> bool;

    /// Moves the mark; `u64::MAX` lifts it. See the module's documentation.
    fn hold_at(&mut self, mark_bytes: u64);

    /// Only by buffer from now on: splice(2) does not see what a BPF program has left on a
    /// socket (`tcp_splice_read` looks into the receive queue only).
    fn copy_only(&mut self);

    /// The source may have bytes or an end of stream, whatever epoll has told.
    fn read_again(&mut self);
}

/// What an engine may use of its pair during a turn. `directions[i]` reads from `ends[i]` and
/// writes to `ends[1 - i]`.
pub(crate) struct PairView<'a> {
    /// One endpoint twice in an echo, whose second direction has ended from the start.
    pub(crate) ends: [&'a Endpoint; 2],
    pub(crate) directions: [&'a mut dyn DirectionView; 2],
    /// The most that each of the four socket buffers may grow to, in bytes.
    pub(crate) buffer_bytes: usize,
    pub(crate) byte_limit: Option<u64>,
    /// Wakes the pair from any thread: it has a turn then.
    pub(crate) waker: &'a dyn Fn() -> Waker,
    pub(crate) now: Instant,
}

impl PairView<'_> {
    /// One endpoint is spliced to itself.
    pub(crate) fn is_echo(&self) -> bool {
        std::ptr::eq(self.ends[0], self.ends[1])
    }
}

/// What a pair's two sockets are watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Watch {
    /// Ends of stream and errors only.
    Ends,
    /// Everything: user space moves bytes of one direction at least.
    Stream,
}

/// How it goes on with a pair that an engine holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Next {
    pub(crate) watch: Watch,
    /// The engine wants a turn then, whatever happens.
    pub(crate) look_at: Option<Instant>,
    /// A mark was moved: pump again.
    pub(crate) again: bool,
}

impl Next {
    /// Nothing: the kernel moves the bytes, or there are none to come.
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

    /// What two directions of one pair need.
    pub(crate) fn join(&mut self, other: Self) {
        self.watch = self.watch.max(other.watch);
        self.look_at = [self.look_at, other.look_at].into_iter().flatten().min();
        self.again |= other.again;
    }
}

/// What an engine's turn came to.
#[derive(Debug)]
pub(crate) enum Turn {
    /// It has the pair, or is about to take it.
    Holds(Next),
    /// It cannot take the pair as it stands now and has left nothing of itself behind: every mark
    /// is lifted.
    Declined(Cow<'static, str>),
    /// The same, because the pair is not of a kind that it takes: where the engine was asked for
    /// by name, the pair ends.
    Refused(Cow<'static, str>),
    /// The pair is over.
    Ends(Reason),
    /// The pair is over, because the packet filters of this host would stop it.
    Filtered(Cow<'static, str>),
}

/// An engine that moves one pair's bytes in the kernel.
pub(crate) trait KernelEngine: Send + fmt::Debug {
    fn name(&self) -> EngineName;

    /// Whether the kernel has moved bytes or will move the next ones.
    fn has_taken(&self) -> bool;

    /// Which bytes of a pair this engine leaves to user space, in words.
    fn left_to_user_space(&self) -> &'static str;

    /// See the module's documentation. The first turn comes when the pair starts or is promoted.
    fn turn(&mut self, pair: &mut PairView<'_>) -> Turn;

    /// Why `auto` has picked it for a pair that it has taken, in words.
    fn why_picked(&self) -> &'static str;

    /// What the kernel has moved, readable from any thread. One object, from the start on.
    fn counters(&self) -> Arc<dyn KernelCounters>;

    /// What its program calls user space with, if it does.
    fn notifier(&self) -> Option<Arc<dyn Notifier>>;

    /// When the kernel last moved a byte, if it did.
    fn moved_at(&self, now: Instant) -> Option<Instant>;

    /// Which peer has reset its connection, as far as the program knows: a socket may hear of the
    /// other peer's answer first.
    fn reset_by(&self) -> Option<Side> {
        None
    }

    /// It keeps receive buffers empty, which are smaller for that
    /// ([`redirected_receive_bytes`](crate::endpoint::redirected_receive_bytes)).
    fn redirects(&self) -> bool {
        false
    }

    /// The pair ends: returns exactly what the kernel has given to each direction's target, and
    /// takes back everything that it has in the kernel. Both sockets are closed right after it.
    fn release(&mut self, ends: [&Endpoint; 2], directions: [&dyn DirectionView; 2]) -> [u64; 2];

    /// Both sockets are closed. What has to be looked after for a while, if anything.
    fn closed(&mut self, _reason: Reason) -> Option<Box<dyn Aftermath>> {
        None
    }

    /// What the kernel has carried, retransmissions included, in bytes.
    #[cfg(test)]
    fn carried_bytes(&self) -> u64 {
        0
    }
}

/// What remains of a pair in the kernel once both of its sockets are closed.
pub(crate) trait Aftermath: Send {
    /// When it wants to be looked at again; `None` once nothing is left.
    fn look(&mut self, now: Instant) -> Option<Instant>;
}

/// Reads what the kernel has moved in each direction, in bytes.
pub(crate) trait KernelCounters: Send + Sync + fmt::Debug {
    fn moved_bytes(&self) -> [u64; 2];
}
