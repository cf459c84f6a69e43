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
//! A kernel engine that was chosen by name is tried from the start. [`State`] is all of these but
//! the last: then [`Pair`] has nothing. At the end the pair reports the reason and closes both ends:
//! in order if both streams have reached EOF, otherwise with a reset. What the peer of a UNIX or VSOCK socket has sent before that
//! failed is passed on first (`last_words.rs`).

mod aftermath;
mod carriers;
mod choice;
mod ending;
pub(crate) mod ends;
mod half_close;
mod idle;
mod last_words;
pub(crate) mod promotion;
mod state;
mod turn;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

pub(crate) use self::choice::BY_NAME;
use self::ends::Ends;
use self::half_close::HalfClose;
use self::idle::Idle;
use self::last_words::{Call, Failure, LastWords};
use self::promotion::{Promotion, Trigger};
use self::state::State;
use super::meter::Stream;
use super::status::Status;
use crate::direction::{
    CarrierChoice, CarriersUsed, Conduit, Direction, Progress, SocketError, TURN_READS,
};
use crate::kernel::{DirectionView as _, KernelEngine, Watch};
use crate::limits::Shares;
use crate::name::EngineChoice;
use crate::options::Options;
use crate::outcome::{Outcome, Reason, Side};
use crate::reactor::{Context, Readiness, Step, Task};

/// Called when a pair has ended.
pub(crate) type OnEnd = Box<dyn FnOnce(Outcome) + Send>;

/// The task of a pair: `None` once it has ended.
pub(crate) struct Pair(Option<Running>);

/// A pair that has not ended.
struct Running {
    ends: Ends,
    directions: [Direction; 2],
    choice: EngineChoice,
    shares: Shares,
    state: State,
    /// What epoll watches each end for; `None` before it is registered.
    watched: [Option<Watch>; 2],
    pipe_after_bytes: u64,
    byte_limit: Option<u64>,
    /// With a limit on that: how long no byte has moved.
    idle: Option<Idle>,
    /// With a limit on that: how long the pair has been half-closed.
    half_close: Option<Box<HalfClose>>,
    /// Once the socket of a side has failed that still has some.
    last_words: Option<Box<LastWords>>,
    status: Arc<Status>,
    on_end: Option<OnEnd>,
}

/// There may be many idle ones.
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Pair>() <= 408);

/// How a pair's bytes are moved, and how it may move into the kernel.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// How user space moves its bytes.
    pub(crate) carrier: CarrierChoice,
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
        let mut directions = ends.directions(plan.carrier);
        for (side, readiness) in Side::BOTH.into_iter().zip(registered.into_iter().flatten()) {
            directions[side.index()].source_became(readiness);
            directions[ends.across(side).index()].destination_became(readiness);
        }
        let now = Instant::now();
        let half_close = options.limits.half_close_timeout;
        let half_close = half_close.filter(|_| !ends.is_echo()).map(HalfClose::new);
        let running = Running {
            ends,
            directions,
            choice: options.engine,
            shares: options.limits.shares(),
            state: State::new(plan),
            watched: registered.map_or([None; 2], |_| [Some(Watch::Stream); 2]),
            pipe_after_bytes: options.promote_after_bytes,
            byte_limit: options.limits.byte_limit,
            idle: options
                .limits
                .idle_timeout
                .and_then(|after| Idle::new(after, now)),
            half_close: half_close.map(Box::new),
            last_words: None,
            status,
            on_end,
        };
        running.status.set_engine(running.engine());
        Self(Some(running))
    }

    /// Does what a running pair does, and ends it if there is a reason to.
    fn step(
        &mut self,
        cx: &mut Context<'_>,
        act: impl FnOnce(&mut Running, &mut Context<'_>) -> Result<Step, Reason>,
    ) -> Step {
        match &mut self.0 {
            None => Step::Done,
            Some(running) => match act(running, cx) {
                Ok(step) => step,
                Err(reason) => self.end(cx, reason),
            },
        }
    }

    fn end(&mut self, cx: &mut Context<'_>, reason: Reason) -> Step {
        let remains = self.0.take().and_then(|mut running| {
            running.leave(cx);
            running.finish(reason)
        });
        remains.map_or(Step::Done, Step::Become)
    }
}

impl Task for Pair {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        cx.carriers().enter();
        self.step(cx, Running::start)
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        self.step(cx, |running, cx| running.ready(cx, source, readiness))
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.step(cx, Running::pump)
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.step(cx, Running::deadline_passed)
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.step(cx, |running, _| {
            Err(match running.state {
                State::Parting { .. } => Reason::ByteLimit,
                _ => Reason::Shutdown,
            })
        });
    }
}

/// A pair that is dropped before its loop places it still reports to its handle.
impl Drop for Pair {
    fn drop(&mut self) {
        if let Some(running) = self.0.take() {
            drop(running.finish(Reason::Shutdown));
        }
    }
}

impl Running {
    fn start(&mut self, cx: &mut Context<'_>) -> Result<Step, Reason> {
        self.set_deadline(cx);
        let watch = self.prepare_carriers(cx)?;
        self.watch_both(cx, watch)?;
        if matches!(self.choice, EngineChoice::Only(name) if name.is_in_kernel()) {
            self.ask(cx, Trigger::Start);
            if self.state.engine().is_none() {
                return Err(Reason::Refused);
            }
        }
        self.pump(cx)
    }

    fn ready(
        &mut self,
        cx: &mut Context<'_>,
        source: u8,
        readiness: Readiness,
    ) -> Result<Step, Reason> {
        let side = self.ends.side(source);
        self.directions[side.index()].source_became(readiness);
        self.directions[self.ends.across(side).index()].destination_became(readiness);
        let step = self.pump(cx)?;
        // A direction that neither reads nor writes now does not see the error by itself.
        if readiness.has_error()
            && let Some(errno) = self.ends.sides()[side.index()].take_error()
        {
            let call = Call::TakeError;
            self.hear_out(cx, Failure { side, errno, call })?;
            return Ok(Step::Again);
        }
        Ok(step)
    }

    /// Moves what can move now, in both directions.
    fn pump(&mut self, cx: &mut Context<'_>) -> Result<Step, Reason> {
        if self.state.is_parting() {
            return self.part(cx);
        }
        let used_before = self.carriers_used();
        let pumped = self.pump_both(cx);
        if used_before != self.carriers_used() {
            self.status.set_engine(self.engine());
        }
        let is_turn_over = match pumped {
            Err(Reason::ByteLimit) => return self.part(cx),
            pumped => pumped?,
        };
        let is_turn_over = is_turn_over | self.drop_answers(cx)?;
        if self.directions.iter().all(Direction::has_ended) {
            let step = self.end_of_streams(cx)?;
            return Ok(if is_turn_over { Step::Again } else { step });
        }
        self.note_ended_stream(cx);
        self.watch_room(cx)?;
        if let Some(promotion) = self.state.promotion()
            && promotion.wants(self.given_bytes())
        {
            self.ask(cx, Trigger::Moved);
        }
        let again = self.kernel_turn(cx)?;
        Ok(match again || is_turn_over {
            true => Step::Again,
            false => Step::Wait,
        })
    }

    /// True if a direction's turn is over.
    fn pump_both(&mut self, cx: &mut Context<'_>) -> Result<bool, Reason> {
        let in_kernel = self.in_kernel_bytes();
        let receive_bytes = self.receive_bytes();
        let keeps_messages = self.ends.keep_messages();
        let sides = self.ends.sides();
        let mut is_turn_over = false;
        let mut failures: [Option<Failure>; 2] = [None; 2];
        for from in Side::BOTH {
            let to = self.ends.across(from);
            // A duplicate of the descriptor keeps the close from sending EOF. Last words end with a reset.
            let closing = self.last_words.is_some()
                || failures.iter().any(Option::is_some)
                || self.directions[from.other().index()].has_ended()
                    && !sides[to.index()].is_shared();
            let direction = &mut self.directions[from.index()];
            let before = direction.given_bytes();
            let messages = self.status.meter.messages(from.index());
            let messages_before = messages.load(Ordering::Relaxed);
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
                largest_datagram: usize::MAX,
                messages: keeps_messages.then_some(messages),
                receive_bytes,
                turn_reads: TURN_READS,
                closing,
            });
            let after = direction.given_bytes();
            // An empty message is one, too.
            if after != before || messages.load(Ordering::Relaxed) != messages_before {
                self.status.meter.set(from.index(), after);
                self.status.meter.moved(cx.now());
                if from == Side::B && before == 0 {
                    self.status.meter.moved_first(cx.now());
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
                Ok(progress) => is_turn_over |= progress == Progress::TurnOver,
                Err(SocketError {
                    at_destination,
                    errno,
                }) => {
                    let (side, call) = match at_destination {
                        true => (to, Call::Write),
                        false => (from, Call::Read),
                    };
                    failures[from.index()] = Some(Failure { side, errno, call });
                    if sides[side.index()].kind().is_tcp() {
                        break;
                    }
                }
            }
            if limit == Some(after) {
                return Err(Reason::ByteLimit);
            }
        }
        for failure in failures.into_iter().flatten() {
            self.hear_out(cx, failure)?;
            is_turn_over = true;
        }
        Ok(is_turn_over)
    }

    fn given_bytes(&self) -> u64 {
        self.directions.iter().map(Direction::given_bytes).sum()
    }

    fn carriers_used(&self) -> [CarriersUsed; 2] {
        self.directions.each_ref().map(Direction::carriers_used)
    }

    /// When a byte last moved, by user space or in the kernel. An engine moves those of one direction
    /// while it still waits for the other one.
    fn last_moved_at(&self, now: Instant) -> Instant {
        let engine = self.state.engine();
        let in_kernel = engine.and_then(|engine| engine.counters().moved_at(now));
        let moved_at = self.status.meter.moved_at();
        in_kernel.map_or(moved_at, |at| at.max(moved_at))
    }

    fn ask_at(&self) -> Option<Instant> {
        self.state.promotion()?.ask_at()
    }

    /// The pair's one deadline stands for the first of several. While it parts, it stands for the
    /// next look.
    fn set_deadline(&mut self, cx: &mut Context<'_>) {
        let wanted = [
            self.idle.as_ref().map(Idle::look_at),
            self.half_close_look_at(cx.now()),
            self.last_words_look_at(),
            self.ask_at(),
            self.state.engaged().and_then(|engaged| engaged.look_at),
        ];
        cx.set_deadline(wanted.into_iter().flatten().min());
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Result<Step, Reason> {
        let now = cx.now();
        if self.state.is_parting() {
            return self.part(cx);
        }
        if self.is_idle_for_too_long(now) {
            return Err(Reason::Idle);
        }
        if self.is_half_closed_for_too_long(now) {
            return Err(Reason::HalfClosed);
        }
        let is_to_look = self.look_at_last_words(now)?;
        let mut step = Step::Wait;
        let look_at = self.state.engaged().map(|engaged| &mut engaged.look_at);
        let is_engines_turn = look_at.is_some_and(|at| at.take_if(|at| *at <= now).is_some());
        let is_to_ask = self.ask_at().is_some_and(|at| at <= now);
        if is_to_ask {
            self.ask(cx, Trigger::Deadline);
        }
        if is_to_ask || is_engines_turn || is_to_look {
            step = self.pump(cx)?;
        }
        // A parting pair has a deadline of its own.
        if !self.state.is_parting() {
            self.set_deadline(cx);
        }
        Ok(step)
    }
}
