//! Two endpoints being joined: the task that runs them on a loop.
//!
//! ```text
//! Direction 0: ends[A] ──▶ ends[B]        Direction 1: ends[B] ──▶ ends[A]
//! ```
//!
//! The pair lives until both directions have ended, a socket fails, a limit is reached, or it is
//! closed. Then it tells the reason and closes both ends: in order where the streams came to
//! their ends, with a reset where they were cut.

use std::borrow::Cow;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::direction::{Carriage, Direction, Fault, Progress, Way};
use crate::endpoint::Endpoint;
use crate::engine::segment::{Load, Progress as Change, Segment, flow::Flow, flow::LINGER};
use crate::engine::{Chosen, EngineChoice, EngineName};
use crate::error::Result;
use crate::event_loop::Context;
use crate::handle::Status;
use crate::limits::{Limits, Shares};
use crate::outcome::{Outcome, Reason, Side};
use crate::task::{Interest, Readiness, Step, Task};

/// How a pair is to be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Which engine.
    pub engine: EngineChoice,
    /// What the pair may cost and how long it may last.
    pub limits: Limits,
    /// With [`EngineChoice::Auto`]: a direction leaves `copy` once it has moved this many bytes.
    pub promote_after_bytes: u64,
}

/// When a pair has earned the cost of a faster engine, in bytes: "Choosing an engine" in
/// ARCHITECTURE.md.
const PROMOTE_AFTER_BYTES: u64 = 64 << 10;

impl Default for Options {
    /// Engine `auto`, the default [`Limits`], promotion after 64 KiB.
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            limits: Limits::default(),
            promote_after_bytes: PROMOTE_AFTER_BYTES,
        }
    }
}

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
/// [`ErrorKind::EngineRefused`] when an engine was asked for by name and cannot take this pair,
/// with the reason. Both sockets are closed then.
pub fn pair_task(
    a: Endpoint,
    b: Endpoint,
    options: &Options,
    registered: Option<[Readiness; 2]>,
    on_end: impl FnOnce(Outcome) + Send + 'static,
) -> Result<Box<dyn Task>> {
    Ok(Box::new(Pair::new(
        a,
        b,
        options,
        registered,
        Arc::new(Status::new()),
        Some(Box::new(on_end)),
    )?))
}

pub(crate) struct Pair {
    /// `None` once the pair has ended.
    ends: Option<[Endpoint; 2]>,
    directions: [Direction; 2],
    registered: bool,
    choice: EngineChoice,
    shares: Shares,
    idle_timeout: Option<Duration>,
    byte_limit: Option<u64>,
    joined_at: Instant,
    moved_at: Instant,
    promotion: Promotion,
    promote_after_bytes: u64,
    /// When the engine wants to be looked at again.
    look_at: Option<Instant>,
    status: Arc<Status>,
    on_end: Option<OnEnd>,
}

/// How a pair stands with the engine `segment`.
#[derive(Debug)]
enum Promotion {
    /// Not tried yet.
    Ahead,
    /// On its way, or there.
    Taken(Box<Segment>),
    /// Not for this pair.
    Refused(Cow<'static, str>),
}

impl Pair {
    pub(crate) fn new(
        a: Endpoint,
        b: Endpoint,
        options: &Options,
        registered: Option<[Readiness; 2]>,
        status: Arc<Status>,
        on_end: Option<OnEnd>,
    ) -> Result<Self> {
        let carriage = match options.engine {
            EngineChoice::Auto => Carriage::Adaptive {
                after_bytes: options.promote_after_bytes,
            },
            EngineChoice::Only(EngineName::Copy | EngineName::Segment) => Carriage::Copy,
            EngineChoice::Only(EngineName::Pipe) => Carriage::Pipe,
        };
        let mut directions = [Direction::new(carriage), Direction::new(carriage)];
        for (index, readiness) in registered.into_iter().flatten().enumerate() {
            directions[index].source_became(readiness);
            directions[1 - index].destination_became(readiness);
        }
        let now = Instant::now();
        let pair = Self {
            ends: Some([a, b]),
            directions,
            registered: registered.is_some(),
            choice: options.engine,
            shares: options.limits.shares(),
            idle_timeout: options.limits.idle_timeout,
            byte_limit: options.limits.byte_limit,
            joined_at: now,
            moved_at: now,
            promotion: Promotion::Ahead,
            promote_after_bytes: options.promote_after_bytes,
            look_at: None,
            status,
            on_end,
        };
        pair.status.set_engine(pair.engine());
        Ok(pair)
    }

    /// Moves what can be moved now, both ways.
    fn pump(&mut self, cx: &mut Context<'_>) -> Step {
        if let Promotion::Taken(segment) = &self.promotion
            && segment.is_spliced()
        {
            return match segment.end() {
                Some(reason) => self.end(cx, reason),
                None => Step::Wait,
            };
        }
        let Some([a, b]) = &mut self.ends else {
            return Step::Done;
        };
        let engine_before = (
            self.directions[0].way_taken(),
            self.directions[1].way_taken(),
        );
        let mut turn_over = false;
        let mut reason = None;
        for from in Side::BOTH {
            let (source, destination) = match from {
                Side::A => (&mut *a, &mut *b),
                Side::B => (&mut *b, &mut *a),
            };
            let closing = self.directions[from.other().index()].has_ended();
            let direction = &mut self.directions[from.index()];
            let before = direction.given_bytes();
            let progress = direction.pump(&mut Way {
                source,
                destination,
                carriers: cx.carriers(),
                shares: self.shares,
                byte_limit: self.byte_limit,
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
                    let side = if at_destination { from.other() } else { from };
                    reason = Some(Reason::fault(side, errno));
                    break;
                }
            }
            if self.byte_limit == Some(after) {
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
        if reason.is_none() {
            reason = self.promote(cx);
        }
        match reason {
            Some(reason) => self.end(cx, reason),
            None if turn_over => Step::Again,
            None => Step::Wait,
        }
    }

    /// Brings the pair nearer to the engine `segment`, if that is where it belongs. The reason
    /// to end, should there be one.
    fn promote(&mut self, cx: &mut Context<'_>) -> Option<Reason> {
        let ends = self.ends.as_ref()?;
        let loads = [0, 1].map(|index: usize| Load {
            held: self.directions[index].held(),
            given_bytes: self.directions[index].given_bytes(),
            ended: self.directions[index].has_ended(),
        });
        let wanted = match self.choice {
            EngineChoice::Only(name) => name == EngineName::Segment,
            EngineChoice::Auto => loads
                .iter()
                .any(|load| load.given_bytes >= self.promote_after_bytes),
        };
        if matches!(self.promotion, Promotion::Ahead) && wanted {
            let begun = if self.byte_limit.is_some() {
                Err("a byte limit is set".into())
            } else if loads.iter().any(|load| load.ended) {
                Err("the pair is half closed".into())
            } else {
                cx.carriers()
                    .segments
                    .ground()
                    .map_err(Cow::from)
                    .and_then(|ground| Segment::begin(&ground, ends))
            };
            self.look_at = Some(cx.now());
            self.promotion = match begun {
                Ok(segment) => Promotion::Taken(Box::new(segment)),
                Err(why) => Promotion::Refused(why),
            };
        }
        if let Promotion::Taken(segment) = &mut self.promotion {
            let empty = segment.has_begun() && loads.iter().all(|load| load.held == 0);
            if empty || self.look_at.is_none_or(|at| at <= cx.now()) {
                match segment.look(ends, loads) {
                    Change::Later(pause) => self.look_at = Some(cx.now() + pause),
                    Change::Refused(why) => self.promotion = Promotion::Refused(why),
                    Change::Spliced => self.look_at = None,
                }
                self.set_deadline(cx);
                self.status.set_engine(self.engine());
            }
        }
        match (&self.promotion, self.choice) {
            (Promotion::Refused(_), EngineChoice::Only(EngineName::Segment)) => {
                Some(Reason::Refused)
            }
            (Promotion::Taken(segment), _) => segment.end(),
            _ => None,
        }
    }

    fn engine(&self) -> Chosen {
        match (&self.promotion, self.choice) {
            (Promotion::Taken(segment), EngineChoice::Auto) if segment.has_begun() => {
                return Chosen::new(EngineName::Segment, "the program can translate its segments");
            }
            (Promotion::Refused(why), EngineChoice::Only(name)) => {
                let why = why.clone();
                return Chosen { name, why };
            }
            _ => {}
        }
        let piped = self
            .directions
            .iter()
            .any(|direction| direction.way_taken().piped);
        let missed = self
            .directions
            .iter()
            .find_map(|direction| direction.way_taken().no_pipe);
        let by_name = matches!(self.choice, EngineChoice::Only(_));
        let name = match self.choice {
            EngineChoice::Only(name) => name,
            EngineChoice::Auto if piped => EngineName::Pipe,
            EngineChoice::Auto => EngineName::Copy,
        };
        match missed {
            Some(errno) => Chosen {
                name,
                why: format!("some bytes were copied, since no pipe could be had: {errno}").into(),
            },
            None if by_name => Chosen::new(name, "asked for by name"),
            None if piped => Chosen::new(name, "a direction moved bulk"),
            None => Chosen::new(name, "no direction moved bulk"),
        }
    }

    fn end(&mut self, cx: &mut Context<'_>, reason: Reason) -> Step {
        // Closing the last descriptor of a socket takes it out of epoll by itself.
        let shared = self.ends.iter().flatten().filter(|end| end.is_shared());
        shared.for_each(|end| cx.deregister(end));
        for direction in &mut self.directions {
            direction.release(cx.carriers());
        }
        match self.finish(reason) {
            Some(flow) => Step::Become(Box::new(Linger { _flow: flow })),
            None => Step::Done,
        }
    }

    /// Closes both ends and tells why. Only the first reason counts.
    fn finish(&mut self, reason: Reason) -> Option<Flow> {
        let ends = self.ends.take()?;
        let Chosen { name, why } = self.engine();
        self.read_moved();
        let mut segment = match std::mem::replace(&mut self.promotion, Promotion::Ahead) {
            Promotion::Taken(segment) if segment.has_begun() => Some(segment),
            _ => None,
        };
        let mut lingers = None;
        if segment.as_ref().is_some_and(|segment| segment.end() == Some(reason)) {
            lingers = segment.take().map(|segment| segment.into_flow());
        } else if segment.is_some() && !reason.cuts() {
            // Both streams came to their ends through the sockets, which end them in order.
            ends.iter().for_each(Endpoint::end_on_close);
            segment = None;
        } else if reason.cuts() {
            ends.iter().for_each(Endpoint::reset_on_close);
        }
        drop(ends);
        if let Some(segment) = segment {
            segment.reset_both();
        }
        let outcome = Outcome {
            reason,
            moved: self.status.meter.read(),
            engine: name,
            why_engine: why,
            duration: self.joined_at.elapsed(),
        };
        if let Some(on_end) = self.on_end.take() {
            on_end(outcome.clone());
        }
        self.status.finish(outcome);
        lingers
    }

    /// Brings the counters up to what the program has moved.
    fn read_moved(&mut self) {
        if let Promotion::Taken(segment) = &self.promotion
            && segment.has_begun()
        {
            self.status.meter.set_forwarded(segment.translated_bytes());
            for direction in 0..2 {
                let given = self.directions[direction].given_bytes();
                let moved = segment.moved_bytes(direction).max(given);
                self.status.meter.set(direction, moved);
            }
        }
    }

    fn set_deadline(&self, cx: &mut Context<'_>) {
        let idle = self
            .idle_timeout
            .and_then(|timeout| self.moved_at.checked_add(timeout));
        cx.set_deadline(match (idle, self.look_at) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        });
    }
}

impl Task for Pair {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.set_deadline(cx);
        if !self.registered
            && let Some(ends) = &self.ends
        {
            for (source, end) in ends.iter().enumerate() {
                if let Err(error) = cx.register(end.as_fd(), source as u8, Interest::STREAM) {
                    let errno = error
                        .os_error()
                        .and_then(std::io::Error::raw_os_error)
                        .unwrap_or(0);
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
        self.pump(cx)
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        let side = Side::BOTH[usize::from(source)];
        self.directions[side.index()].source_became(readiness);
        self.directions[side.other().index()].destination_became(readiness);
        let step = self.pump(cx);
        // A direction that neither reads nor writes now does not meet the error by itself.
        if readiness.has_error()
            && let Some(ends) = &self.ends
            && let Some(errno) = ends[side.index()].take_error()
        {
            return self.end(cx, Reason::fault(side, errno));
        }
        step
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.pump(cx)
    }

    /// The deadline is not moved with every byte; it is looked at when it comes.
    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.read_moved();
        if let Promotion::Taken(segment) = &self.promotion
            && segment.has_begun()
            && let Some(moved_at) = cx.now().checked_sub(segment.idle_for())
        {
            self.moved_at = self.moved_at.max(moved_at);
        }
        if self
            .idle_timeout
            .is_some_and(|timeout| cx.now().saturating_duration_since(self.moved_at) >= timeout)
        {
            return self.end(cx, Reason::Idle);
        }
        let step = self.pump(cx);
        if self.ends.is_some() {
            self.set_deadline(cx);
        }
        step
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.end(cx, Reason::Shutdown);
    }
}

/// A pair that was on its way to a loop which ended has to tell its handle, too.
impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.finish(Reason::Shutdown));
    }
}

/// What remains of a pair whose segments were translated: late ones still are.
struct Linger {
    _flow: Flow,
}

impl Task for Linger {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        cx.set_deadline(Some(cx.now() + LINGER));
        Step::Wait
    }

    fn ready(&mut self, _cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        Step::Wait
    }

    fn deadline_passed(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Done
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}
