//! A pair: the task that joins two endpoints on a loop.
//!
//! ```text
//! Direction 0: ends[A] ──▶ ends[B]        Direction 1: ends[B] ──▶ ends[A]
//! ```
//!
//! An echo has one endpoint for both ends, and only the first direction (`ends.rs`).
//!
//! User space moves the bytes until an engine in the kernel takes over (`kernel/mod.rs`):
//!
//! ```text
//!             an engine is tried          it has taken the pair
//! user space ────────────────▶ trying ───────────────────────▶ in the kernel
//!    ▲                            │                                  │
//!    └───it declines or refuses───┴──────────────────────────────────┘
//!
//!       byte limit                  the receivers have all, or 10 s are over
//! any ─────────────▶ parting ─────────────────────────────────────────────────▶ ended
//!  │                                                                              ▲
//!  └──both directions have ended, an error, a timeout, closed, refused by name────┘
//! ```
//!
//! A kernel engine that was chosen by name is tried from the start. `kernel` and `taken` tell the
//! first three states apart, `parting_until` is set while the pair parts, and `ends` is `None` at
//! the end. Then the pair reports the reason and closes both ends: in order if both streams have
//! reached EOF, otherwise with a reset.

mod aftermath;
mod choice;
mod ending;
pub(crate) mod ends;
mod half_close;
pub(crate) mod promotion;
mod ring;
mod turn;

use std::borrow::Cow;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use splice_base::error::Error;

pub(crate) use self::choice::BY_NAME;
use self::ends::Ends;
use self::half_close::HalfClose;
use self::promotion::{Promotion, Trigger};
use super::meter::Stream;
use super::status::Status;
use crate::endpoint::Endpoint;
use crate::flow::{CarrierChoice, Conduit, Direction, Progress, SocketError};
use crate::kernel::{DirectionView as _, KernelEngine, Watch};
use crate::limits::Shares;
use crate::name::{EngineChoice, EngineName};
use crate::options::Options;
use crate::outcome::{Outcome, Reason, Side};
use crate::reactor::{Context, Interest, Readiness, Step, Task};

/// Called when a pair has ended.
pub(crate) type OnEnd = Box<dyn FnOnce(Outcome) + Send>;

pub(crate) struct Pair {
    /// `None` once the pair has ended.
    ends: Option<Ends>,
    directions: [Direction; 2],
    registered: bool,
    choice: EngineChoice,
    shares: Shares,
    /// The kernel engine that has the pair or tries to take it.
    kernel: Option<Box<dyn KernelEngine>>,
    /// The loop watches the engine's notifier.
    is_notified: bool,
    /// The engine has taken the pair.
    taken: bool,
    /// Why no engine in the kernel has the pair, if one was tried or none may be.
    declined: Option<Box<Cow<'static, str>>>,
    watch: Watch,
    /// Whether epoll watches for room: a lane has found none there.
    room_watched: [bool; 2],
    pipe_after_bytes: u64,
    promotion: Option<Box<dyn Promotion>>,
    idle_timeout: Option<Duration>,
    byte_limit: Option<u64>,
    joined_at: Instant,
    moved_at: Instant,
    // What the pair's one deadline may stand for. While the pair parts, it stands for the next
    // look.
    idle_look_at: Option<Instant>,
    /// With a limit on that: how long the pair has been half-closed.
    half_close: Option<Box<HalfClose>>,
    kernel_look_at: Option<Instant>,
    status: Arc<Status>,
    on_end: Option<OnEnd>,
    /// The byte limit was reached. The receiver has until then to take what was written.
    parting_until: Option<Instant>,
}

/// How a pair may move into the kernel.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// The engine that it has from the start.
    pub(crate) kernel: Option<Box<dyn KernelEngine>>,
    /// The policy that decides on one later.
    pub(crate) promotion: Option<Box<dyn Promotion>>,
    /// Why the pair stays with `copy`, whatever it moves.
    pub(crate) stays: Option<&'static str>,
}

impl Pair {
    pub(crate) fn new(
        ends: Ends,
        options: &Options,
        plan: Plan,
        registered: Option<[Readiness; 2]>,
        status: Arc<Status>,
        on_end: Option<OnEnd>,
    ) -> Self {
        let carrier_choice = match options.engine {
            EngineChoice::Auto if plan.stays.is_some() => CarrierChoice::Copy,
            EngineChoice::Auto => CarrierChoice::Adaptive,
            EngineChoice::Only(EngineName::Pipe) => CarrierChoice::Pipe,
            EngineChoice::Only(EngineName::Aio) => CarrierChoice::Aio,
            EngineChoice::Only(EngineName::Uring) => CarrierChoice::Ring,
            // The kernel engines begin with it.
            EngineChoice::Only(_) => CarrierChoice::Copy,
        };
        let mut directions = ends.directions(carrier_choice);
        for (side, readiness) in Side::BOTH.into_iter().zip(registered.into_iter().flatten()) {
            directions[side.index()].source_became(readiness);
            directions[ends.across(side).index()].destination_became(readiness);
        }
        let now = Instant::now();
        let idle_timeout = options.limits.idle_timeout;
        let half_close = options.limits.half_close_timeout;
        let half_close = half_close.filter(|_| !ends.is_echo()).map(HalfClose::new);
        let pair = Self {
            ends: Some(ends),
            directions,
            registered: registered.is_some(),
            choice: options.engine,
            shares: options.limits.shares(),
            kernel: plan.kernel,
            is_notified: false,
            taken: false,
            declined: plan.stays.map(|why| Box::new(why.into())),
            watch: Watch::Stream,
            room_watched: [false; 2],
            pipe_after_bytes: options.promote_after_bytes,
            promotion: plan.promotion,
            idle_timeout,
            byte_limit: options.limits.byte_limit,
            joined_at: now,
            moved_at: now,
            idle_look_at: idle_timeout.and_then(|idle| now.checked_add(idle)),
            half_close: half_close.map(Box::new),
            kernel_look_at: None,
            status,
            on_end,
            parting_until: None,
        };
        pair.status.set_engine(pair.engine());
        pair
    }

    /// Moves what can move now, in both directions.
    fn pump(&mut self, cx: &mut Context<'_>) -> Step {
        if self.parting_until.is_some() {
            return self.part(cx);
        }
        let in_kernel = self.in_kernel_bytes();
        let receive_bytes = self.receive_bytes();
        let Some(ends) = &self.ends else {
            return Step::Done;
        };
        let sides = ends.sides();
        let engine_before = (
            self.directions[0].carriers_used(),
            self.directions[1].carriers_used(),
        );
        let mut turn_over = false;
        let mut reason = None;
        for from in Side::BOTH {
            let to = ends.across(from);
            // A duplicate of the descriptor keeps the close from sending EOF.
            let closing =
                self.directions[from.other().index()].has_ended() && !sides[to.index()].is_shared();
            let direction = &mut self.directions[from.index()];
            let before = direction.given_bytes();
            // The bytes that the kernel moves are not delivered before its engine says so.
            let limit = self
                .byte_limit
                .filter(|_| !direction.is_held())
                .map(|limit| limit.saturating_sub(in_kernel[from.index()]));
            let progress = direction.pump(&mut Conduit {
                source: sides[from.index()],
                destination: sides[to.index()],
                carriers: cx.carriers(),
                shares: self.shares,
                pipe_after_bytes: self.pipe_after_bytes,
                byte_limit: limit,
                receive_bytes,
                closing,
            });
            let after = direction.given_bytes();
            if after != before {
                self.status.meter.set(from.index(), after);
                self.moved_at = cx.now();
                self.status.meter.moved(self.moved_at);
                if from == Side::B && before == 0 {
                    self.status.meter.moved_first(self.moved_at);
                }
            }
            let stream = match (
                direction.has_ended(),
                direction.end_seen() || direction.is_ending(),
            ) {
                (true, _) => Stream::Ended,
                (false, true) => Stream::Draining,
                (false, false) => Stream::Open,
            };
            self.status.meter.set_stream(from.index(), stream);
            match progress {
                Ok(Progress::Waits) => {}
                Ok(Progress::TurnOver) => turn_over = true,
                Err(SocketError {
                    at_destination,
                    errno,
                }) => {
                    let side = if at_destination { to } else { from };
                    let reset_by = self.kernel.as_ref().and_then(|kernel| kernel.reset_by());
                    reason =
                        Some(reset_by.map_or_else(|| Reason::of_errno(side, errno), Reason::Reset));
                    break;
                }
            }
            if limit == Some(after) {
                reason = Some(Reason::ByteLimit);
                break;
            }
        }
        if engine_before
            != (
                self.directions[0].carriers_used(),
                self.directions[1].carriers_used(),
            )
        {
            self.status.set_engine(self.engine());
        }
        if reason.is_none() && self.directions.iter().all(Direction::has_ended) {
            reason = Some(Reason::EndOfStream);
        }
        if reason.is_none() {
            self.note_ended_stream(cx);
        }
        let reason = reason.or_else(|| self.watch_room(cx));
        if reason.is_none()
            && let Some(promotion) = &self.promotion
            && promotion.wants(self.given_bytes())
        {
            self.ask(cx, Trigger::Moved);
        }
        match reason {
            Some(Reason::ByteLimit) => self.part(cx),
            Some(reason) => self.end(cx, reason),
            None if self.kernel.is_some() => self.kernel_turn(cx, turn_over),
            None if turn_over => Step::Again,
            None => Step::Wait,
        }
    }

    fn given_bytes(&self) -> u64 {
        self.directions.iter().map(Direction::given_bytes).sum()
    }

    fn each_end(&self) -> &[Endpoint] {
        self.ends.as_ref().map_or(&[], Ends::each)
    }

    /// When a byte last moved, by user space or in the kernel.
    fn last_moved_at(&self, now: Instant) -> Instant {
        let in_kernel = self
            .kernel
            .as_ref()
            .and_then(|kernel| kernel.counters().moved_at(now));
        in_kernel.map_or(self.moved_at, |at| at.max(self.moved_at))
    }

    fn set_deadline(&mut self, cx: &mut Context<'_>) {
        let promotion = self.promotion.as_ref();
        let ask_at = promotion.and_then(|promotion| promotion.ask_at());
        let half_close_look_at = self.half_close_look_at(cx.now());
        let wanted = [
            self.idle_look_at,
            half_close_look_at,
            ask_at,
            self.kernel_look_at,
        ];
        cx.set_deadline(wanted.into_iter().flatten().min());
    }
}

fn errno_of(error: &Error) -> i32 {
    let errno = error.os_error().and_then(std::io::Error::raw_os_error);
    errno.unwrap_or(0)
}

impl Task for Pair {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        cx.carriers().enter();
        self.set_deadline(cx);
        let interest = if self.choice == EngineChoice::Only(EngineName::Uring) {
            self.watch = Watch::Ends;
            Interest::ENDS
        } else {
            Interest::STREAM
        };
        if self.watch == Watch::Ends
            && let Some(reason) = self.enter_ring(cx)
        {
            return self.end(cx, reason);
        }
        if !self.registered {
            for (source, end) in self.each_end().iter().enumerate() {
                if let Err(error) = cx.register(end.as_fd(), source as u8, interest) {
                    let errno = errno_of(&error);
                    return self.end(
                        cx,
                        Reason::Failed {
                            side: Side::BOTH[source],
                            errno,
                        },
                    );
                }
            }
        }
        if self.choice == EngineChoice::Only(EngineName::Aio)
            && let Err(obstacle) = cx.carriers().prepare_aio()
        {
            let refusal = EngineName::Aio.unavailable(obstacle);
            self.declined = Some(Box::new(refusal.to_string().into()));
            return self.end(cx, Reason::Refused);
        }
        if matches!(self.choice, EngineChoice::Only(name) if name.is_in_kernel()) {
            self.ask(cx, Trigger::Start);
            if self.kernel.is_none() {
                return self.end(cx, Reason::Refused);
            }
        }
        self.pump(cx)
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        let Some(ends) = &self.ends else {
            return Step::Done;
        };
        let side = ends.side(source);
        self.directions[side.index()].source_became(readiness);
        self.directions[ends.across(side).index()].destination_became(readiness);
        let step = self.pump(cx);
        // A direction that neither reads nor writes now does not see the error by itself.
        if readiness.has_error()
            && let Some(end) = self.each_end().get(side.index())
            && let Some(errno) = end.take_error()
        {
            return self.end(cx, Reason::of_errno(side, errno));
        }
        step
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.pump(cx)
    }

    /// The idle deadline does not move with every byte; it is checked when it passes.
    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        let now = cx.now();
        if self.parting_until.is_some() {
            return self.part(cx);
        }
        if let (Some(timeout), Some(look_at)) = (self.idle_timeout, self.idle_look_at)
            && look_at <= now
        {
            let moved_at = self.last_moved_at(now);
            if now.saturating_duration_since(moved_at) >= timeout {
                return self.end(cx, Reason::Idle);
            }
            self.idle_look_at = moved_at.checked_add(timeout);
        }
        if self.is_half_closed_for_too_long(now) {
            return self.end(cx, Reason::HalfClosed);
        }
        let mut step = Step::Wait;
        let promotion = self.promotion.as_ref();
        let ask_at = promotion.and_then(|promotion| promotion.ask_at());
        if ask_at.is_some_and(|at| at <= now) {
            self.ask(cx, Trigger::Deadline);
            step = self.pump(cx);
        } else if self.kernel_look_at.is_some_and(|at| at <= now) {
            self.kernel_look_at = None;
            step = self.pump(cx);
        }
        // A parting pair has a deadline of its own.
        if matches!(step, Step::Wait | Step::Again) && self.parting_until.is_none() {
            self.set_deadline(cx);
        }
        step
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        let reason = match self.parting_until {
            Some(_) => Reason::ByteLimit,
            None => Reason::Shutdown,
        };
        self.end(cx, reason);
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}
