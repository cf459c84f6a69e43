//! Two endpoints being joined: the task that runs them on a loop.
//!
//! ```text
//! Direction 0: ends[A] ──▶ ends[B]        Direction 1: ends[B] ──▶ ends[A]
//! ```
//!
//! An echo has one endpoint for both ends, and the first direction only (`ends.rs`).
//!
//! User space moves the bytes, until an engine in the kernel takes over (`engine/kernel.rs` says
//! how):
//!
//! ```text
//!          an engine is tried           it has taken the pair
//! by hand ───────────────────▶ trying ───────────────────────▶ in the kernel
//!    ▲                            │                                  │
//!    └───it declines or refuses───┴──────────────────────────────────┘
//!
//!       byte limit                  the receivers have all, or 10 s are over
//! any ─────────────▶ parting ─────────────────────────────────────────────────▶ ended
//!  │                                                                              ▲
//!  └──both directions have ended, a fault, idle, closed, refused by name──────────┘
//! ```
//!
//! An engine in the kernel that was asked for by name is tried from the start. `kernel` and `taken`
//! tell the first three apart, `parting_until` is set while it parts, and `ends` is gone at the end.
//! There the pair tells the reason and closes both ends: in order where the streams came to their
//! ends, with a reset where they were cut.

mod chosen;
mod ending;
mod promotion;
mod ring;

use std::borrow::Cow;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use self::chosen::BY_NAME;
use self::promotion::Trial;
use crate::context::Context;
use crate::direction::{Carriage, Direction, Fault, Progress, Way};
use crate::endpoint::{Endpoint, Kind};
use crate::ends::Ends;
use crate::engine::kernel::{KernelEngine, Watch};
use crate::engine::sockmap::Sockmap;
use crate::engine::{EngineChoice, EngineName, aio};
use crate::error::{Error, Result};
use crate::handle::Status;
use crate::limits::Shares;
use crate::options::Options;
use crate::outcome::{Outcome, Reason, Side};
use crate::task::{Interest, Readiness, Step, Task};

/// What is called when a pair has ended.
pub(crate) type OnEnd = Box<dyn FnOnce(Outcome) + Send>;

/// Makes the task that joins `a` and `b`, for a program that places tasks on its loops itself.
///
/// With `registered` the two sockets are on the loop already, as sources 0 and 1 with
/// [`Interest::STREAM`], and this is what they were ready for since: a task that made the
/// connections ends with [`Step::Become`] and loses no event.
///
/// `on_end` is called on the loop's thread when the pair has ended and both sockets are closed.
///
/// # Errors
/// [`EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for by name and cannot take this pair,
/// with the reason. Both sockets are closed then, with a reset.
pub fn pair_task(
    a: Endpoint,
    b: Endpoint,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    Ok(Box::new(Pair::new(
        Ends::Apart([a, b]),
        options,
        registered,
        Arc::new(Status::new()),
        Some(Box::new(on_end)),
    )?))
}

/// Makes the task that splices `endpoint` to itself: what comes from its peer goes back to it.
///
/// An echo is a pair with one direction, whose source is its destination, and everything that holds
/// for a pair holds for it. Both ends are [`Side::A`]; [`Counters::a_to_b`](crate::Counters) counts
/// its bytes. Once the peer's end of stream has come and every byte before it is given back, the
/// socket is closed; with a byte limit, once that many bytes are.
///
/// `registered` and `on_end` are those of [`pair_task`], for one socket.
///
/// # Errors
/// [`EngineRefused`](crate::ErrorKind::EngineRefused) when an engine was asked for by name that
/// needs two sockets. The socket is closed then.
pub fn echo_task(
    endpoint: Endpoint,
    options: &Options,
    registered: Option<Readiness>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    Ok(Box::new(Pair::new(
        Ends::Echo(endpoint),
        options,
        registered.map(|readiness| [readiness, Readiness::NONE]),
        Arc::new(Status::new()),
        Some(Box::new(on_end)),
    )?))
}

pub(crate) struct Pair {
    /// `None` once the pair has ended.
    ends: Option<Ends>,
    directions: [Direction; 2],
    registered: bool,
    choice: EngineChoice,
    shares: Shares,
    /// An engine that has the pair or is about to take it.
    kernel: Option<Box<dyn KernelEngine>>,
    /// The loop answers its bell.
    heard: bool,
    /// The kernel has moved bytes.
    taken: bool,
    /// Why no engine in the kernel has the pair, where one was tried.
    declined: Option<Box<Cow<'static, str>>>,
    /// What of the packet filters has ended it.
    filtered: Option<Box<Cow<'static, str>>>,
    bypasses_firewall: bool,
    watch: Watch,
    /// What goes by the ring has once found no room there.
    room_watched: [bool; 2],
    promote_after_bytes: u64,
    trial: Trial,
    idle_timeout: Option<Duration>,
    byte_limit: Option<u64>,
    joined_at: Instant,
    moved_at: Instant,
    // What the pair's one deadline may stand for; while the pair parts, it stands for the next look.
    idle_look_at: Option<Instant>,
    promote_at: Option<Instant>,
    kernel_look_at: Option<Instant>,
    /// [`Options::promote_after`], until it is clear that `sockmap` does not take the pair.
    sockmap_after: Option<Duration>,
    status: Arc<Status>,
    on_end: Option<OnEnd>,
    /// The byte limit was reached; the receiver is given until then to take what was written.
    parting_until: Option<Instant>,
}

impl Pair {
    pub(crate) fn new(
        ends: Ends,
        options: &Options,
        registered: Option<[Readiness; 2]>,
        status: Arc<Status>,
        on_end: Option<OnEnd>,
    ) -> Result<Self> {
        let kernel = match Self::kernel_engine(&ends, options.engine) {
            Ok(kernel) => kernel,
            Err(refusal) => {
                ends.each().iter().for_each(Endpoint::cut);
                return Err(refusal);
            }
        };
        let carriage = match options.engine {
            EngineChoice::Auto => Carriage::Adaptive,
            EngineChoice::Only(EngineName::Pipe) => Carriage::Pipe,
            EngineChoice::Only(EngineName::Aio) => Carriage::Aio,
            EngineChoice::Only(EngineName::Uring) => Carriage::Ring,
            // The others begin with it.
            EngineChoice::Only(_) => Carriage::Copy,
        };
        let mut directions = ends.directions(carriage);
        for (side, readiness) in Side::BOTH.into_iter().zip(registered.into_iter().flatten()) {
            directions[side.index()].source_became(readiness);
            directions[ends.across(side).index()].destination_became(readiness);
        }
        let is_echo = ends.is_echo();
        let is_tcp = |end: &Endpoint| matches!(end.kind(), Kind::Tcp4 | Kind::Tcp6);
        let to_segment = options.engine == EngineChoice::Auto
            && options.segment_after.is_some()
            && !is_echo
            && ends.each().iter().all(is_tcp);
        let now = Instant::now();
        let pair = Self {
            ends: Some(ends),
            directions,
            registered: registered.is_some(),
            choice: options.engine,
            shares: options.limits.shares(),
            kernel,
            heard: false,
            taken: false,
            declined: None,
            filtered: None,
            bypasses_firewall: options.bypass_firewall,
            watch: Watch::Stream,
            room_watched: [false; 2],
            promote_after_bytes: options.promote_after_bytes,
            // Tried already, as far as a pair is concerned that must not go there.
            trial: if to_segment { Trial::Open } else { Trial::Over },
            idle_timeout: options.limits.idle_timeout,
            byte_limit: options.limits.byte_limit,
            joined_at: now,
            moved_at: now,
            idle_look_at: options
                .limits
                .idle_timeout
                .and_then(|idle| now.checked_add(idle)),
            promote_at: match options.engine {
                _ if is_echo => None,
                EngineChoice::Auto if to_segment => options
                    .segment_after
                    .and_then(|after| now.checked_add(after)),
                EngineChoice::Auto => options
                    .promote_after
                    .and_then(|after| now.checked_add(after)),
                EngineChoice::Only(_) => None,
            },
            sockmap_after: match options.engine {
                EngineChoice::Auto if !is_echo => options.promote_after,
                _ => None,
            },
            kernel_look_at: None,
            status,
            on_end,
            parting_until: None,
        };
        pair.status.set_engine(pair.engine());
        Ok(pair)
    }

    /// The engine that a pair has from the start where it was asked for by name; one that has to look
    /// at its loop first comes later.
    fn kernel_engine(ends: &Ends, choice: EngineChoice) -> Result<Option<Box<dyn KernelEngine>>> {
        if let (Ends::Echo(_), EngineChoice::Only(engine)) = (ends, choice) {
            engine.can_echo()?;
        }
        Ok(match choice {
            EngineChoice::Only(EngineName::Sockmap) => Some(Box::new(Sockmap::new(ends.sides())?)),
            _ => None,
        })
    }

    /// Moves what can be moved now, both ways.
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
            self.directions[0].way_taken(),
            self.directions[1].way_taken(),
        );
        let mut turn_over = false;
        let mut reason = None;
        for from in Side::BOTH {
            let to = ends.across(from);
            // A duplicate that somebody holds keeps the close from saying it.
            let closing =
                self.directions[from.other().index()].has_ended() && !sides[to.index()].is_shared();
            let direction = &mut self.directions[from.index()];
            let before = direction.given_bytes();
            // What the kernel moves is not out before its engine says so.
            let limit = self
                .byte_limit
                .filter(|_| !direction.is_held())
                .map(|limit| limit.saturating_sub(in_kernel[from.index()]));
            let progress = direction.pump(&mut Way {
                source: sides[from.index()],
                destination: sides[to.index()],
                carriers: cx.carriers(),
                shares: self.shares,
                pipe_after_bytes: self.promote_after_bytes,
                byte_limit: limit,
                receive_bytes,
                closing,
            });
            let after = direction.given_bytes();
            if after != before {
                self.status.meter.set(from.index(), after);
                self.moved_at = cx.now();
            }
            match progress {
                Ok(Progress::Waits) => {}
                Ok(Progress::TurnOver) => turn_over = true,
                Err(Fault {
                    at_destination,
                    errno,
                }) => {
                    let side = if at_destination { to } else { from };
                    let reset_by = self.kernel.as_ref().and_then(|kernel| kernel.reset_by());
                    reason =
                        Some(reset_by.map_or_else(|| Reason::fault(side, errno), Reason::Reset));
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
                self.directions[0].way_taken(),
                self.directions[1].way_taken(),
            )
        {
            self.status.set_engine(self.engine());
        }
        if reason.is_none() && self.directions.iter().all(Direction::has_ended) {
            reason = Some(Reason::EndOfStream);
        }
        let reason = reason.or_else(|| self.watch_room(cx));
        if reason.is_none()
            && self.trial != Trial::Over
            && self.given_bytes() >= self.promote_after_bytes
        {
            self.try_segment(cx);
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

    fn set_deadline(&mut self, cx: &mut Context<'_>) {
        let wanted = [self.idle_look_at, self.promote_at, self.kernel_look_at];
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
        if self.choice == EngineChoice::Only(EngineName::Aio) && cx.carriers().aio.is_none() {
            match aio::Context::new() {
                Ok(context) => cx.carriers().aio = Some(context),
                Err(error) => {
                    self.declined = Some(Box::new(error.to_string().into()));
                    return self.end(cx, Reason::Refused);
                }
            }
        }
        if self.choice == EngineChoice::Only(EngineName::Segment) {
            self.try_segment(cx);
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
        // A direction that neither reads nor writes now does not meet the error by itself.
        if readiness.has_error()
            && let Some(end) = self.each_end().get(side.index())
            && let Some(errno) = end.take_error()
        {
            return self.end(cx, Reason::fault(side, errno));
        }
        step
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.pump(cx)
    }

    /// The idle deadline is not moved with every byte; it is looked at when it comes.
    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        let now = cx.now();
        if self.parting_until.is_some() {
            return self.part(cx);
        }
        if let (Some(timeout), Some(look_at)) = (self.idle_timeout, self.idle_look_at)
            && look_at <= now
        {
            let in_kernel = self.kernel.as_ref().and_then(|kernel| kernel.moved_at(now));
            let moved_at = in_kernel.map_or(self.moved_at, |at| at.max(self.moved_at));
            if now.saturating_duration_since(moved_at) >= timeout {
                return self.end(cx, Reason::Idle);
            }
            self.idle_look_at = moved_at.checked_add(timeout);
        }
        let mut step = Step::Wait;
        if self.promote_at.is_some_and(|at| at <= now) {
            self.promote_at = None;
            step = self.promote(cx);
        } else if self.kernel_look_at.is_some_and(|at| at <= now) {
            self.kernel_look_at = None;
            step = self.pump(cx);
        }
        // A pair that has begun to part has a deadline of its own.
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
