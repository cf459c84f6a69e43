//! Two endpoints being joined: the task that runs them on a loop.
//!
//! ```text
//! Direction 0: ends[A] ──▶ ends[B]        Direction 1: ends[B] ──▶ ends[A]
//! ```
//!
//! The pair lives until both directions have ended, a socket fails, a limit is reached, or it is
//! closed. Then it tells the reason and closes both ends: in order where the streams came to
//! their ends, with a reset where they were cut.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::direction::{Carriage, Direction, Fault, Progress, Way};
use crate::endpoint::Endpoint;
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
    status: Arc<Status>,
    on_end: Option<OnEnd>,
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
            EngineChoice::Only(EngineName::Copy) => Carriage::Copy,
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
            status,
            on_end,
        };
        pair.status.set_engine(pair.engine());
        Ok(pair)
    }

    /// Moves what can be moved now, both ways.
    fn pump(&mut self, cx: &mut Context<'_>) -> Step {
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
        match reason {
            Some(reason) => self.end(cx, reason),
            None if turn_over => Step::Again,
            None => Step::Wait,
        }
    }

    fn engine(&self) -> Chosen {
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
        self.finish(reason);
        Step::Done
    }

    /// Closes both ends and tells why. Only the first reason counts.
    fn finish(&mut self, reason: Reason) {
        let Some(ends) = self.ends.take() else { return };
        if reason.cuts() {
            ends.iter().for_each(Endpoint::reset_on_close);
        }
        drop(ends);
        let Chosen { name, why } = self.engine();
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
    }

    fn set_idle_deadline(&self, cx: &mut Context<'_>) {
        if let Some(timeout) = self.idle_timeout {
            cx.set_deadline(self.moved_at.checked_add(timeout));
        }
    }
}

impl Task for Pair {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.set_idle_deadline(cx);
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
        let Some(timeout) = self.idle_timeout else {
            return Step::Wait;
        };
        if cx.now().saturating_duration_since(self.moved_at) >= timeout {
            return self.end(cx, Reason::Idle);
        }
        self.set_idle_deadline(cx);
        Step::Wait
    }

    fn close(&mut self, cx: &mut Context<'_>) {
        self.end(cx, Reason::Shutdown);
    }
}

/// A pair that was on its way to a loop which ended has to tell its handle, too.
impl Drop for Pair {
    fn drop(&mut self) {
        self.finish(Reason::Shutdown);
    }
}

impl fmt::Debug for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}
