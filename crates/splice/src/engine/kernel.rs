//! How an engine in the kernel takes a pair over in mid-stream.
//!
//! A pair always starts in user space, also where the engine was asked for by name: its directions
//! are pumped. An engine that moves the bytes in the kernel is asked for its [`turn`](KernelEngine::turn) behind every pump, that
//! is after every event, deadline and wake-up of the pair:
//!
//! ```text
//!                  ┌───────────────── event, deadline, wake-up ◀─────────────┐
//!                  ▼                                                         │
//!   pump both directions, each up to its mark (Direction::hold_at)           │
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
//! mark it stands still, with nothing in hand; behind it lies what the kernel moves. An engine
//! that needs user space for a part (bytes that it left on the source, an end of stream to pass
//! on) moves the mark behind that part and asks for another pump with [`Next::again`].
//!
//! While every byte passes in the kernel the engine asks for [`Watch::Ends`]: then the pair is
//! woken by an end of stream, an error or its deadline, never by a byte.

use std::borrow::Cow;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use super::EngineName;
use crate::direction::Direction;
use crate::endpoint::Endpoint;
use crate::mailbox::Waker;
use crate::outcome::{Reason, Side};
use crate::task::Task;

/// What an engine may use of its pair during a turn. `directions[i]` reads from `ends[i]` and
/// writes to `ends[1 - i]`.
pub(crate) struct Grip<'a> {
    /// One endpoint twice in an echo, whose second direction has ended from the start.
    pub(crate) ends: [&'a Endpoint; 2],
    pub(crate) directions: &'a mut [Direction; 2],
    /// The most that each of the four socket buffers may grow to, in bytes.
    pub(crate) buffer_bytes: usize,
    pub(crate) byte_limit: Option<u64>,
    /// Wakes the pair from any thread: it has a turn then.
    pub(crate) waker: &'a dyn Fn() -> Waker,
    pub(crate) now: Instant,
}

impl Grip<'_> {
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

    /// See the module's words. The first turn comes when the pair starts or is promoted.
    fn turn(&mut self, grip: &mut Grip<'_>) -> Turn;

    /// What the kernel has moved, readable from any thread. One object, from the start on.
    fn gauge(&self) -> Arc<dyn Gauge>;

    /// What its program calls user space with, if it does.
    fn bell(&self) -> Option<Arc<dyn Bell>>;

    /// When the kernel last moved a byte, if it did.
    fn moved_at(&self, now: Instant) -> Option<Instant>;

    /// Which peer has reset its connection, as far as the program knows: a socket may hear of the
    /// other peer's answer first.
    fn reset_by(&self) -> Option<Side> {
        None
    }

    /// The pair ends: returns exactly what the kernel has given to each direction's target, and
    /// takes back everything that it has in the kernel. Both sockets are closed right after it.
    fn release(&mut self, ends: [&Endpoint; 2], directions: &[Direction; 2]) -> [u64; 2];

    /// Both sockets are closed. What has to stay on the loop for a while, if anything.
    fn closed(&mut self, _reason: Reason) -> Option<Box<dyn Task>> {
        None
    }

    /// What the kernel has carried, repetitions included, in bytes.
    #[cfg(test)]
    fn carried_bytes(&self) -> u64 {
        0
    }
}

/// What a BPF program calls user space with: a ring. Every loop that has a pair of the engine
/// watches it; the one that is woken answers for all.
pub(crate) trait Bell: Send + Sync + fmt::Debug {
    /// Readable when somebody has called.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Takes the calls and wakes the pairs that are meant.
    fn answer(&self);
}

/// Reads what the kernel has moved in each direction, in bytes.
pub(crate) trait Gauge: Send + Sync + fmt::Debug {
    fn moved_bytes(&self) -> [u64; 2];
}
