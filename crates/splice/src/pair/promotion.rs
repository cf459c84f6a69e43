//! A pair's way into the kernel and back: the turns of a kernel engine, and when `auto` tries one.
//!
//! How it comes to be tried with `segment`, once it is old or large enough ([`Trial`]):
//!
//! ```text
//! the program is still being loaded: a little later
//!  ┌─┐
//!  │ ▼   others of its loop are before it
//! Open ──────────────────────────────────▶ Booked ─┐ others still are: later
//!  │                                         │  ▲──┘
//!  └───────────────────┬─────────────────────┘
//!                      ▼
//!                    Over: the engine tries to take it, or cannot be used
//! ```

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use super::{Pair, errno_of};
use crate::context::Context;
use crate::direction::Direction;
use crate::endpoint::{Endpoint, Kind, redirected_receive_bytes};
use crate::engine::kernel::{Grip, Next, Turn, Watch};
use crate::engine::segment::Segment;
use crate::engine::sockmap::Sockmap;
use crate::engine::{EngineChoice, EngineName};
use crate::outcome::{Reason, Side};
use crate::task::{Interest, Step};

/// How long a pair goes on before it asks again for a program that is still being loaded: as long as
/// that takes on a machine that is not busy.
const LOAD_LOOK: Duration = Duration::from_millis(50);

/// Where a pair stands with `segment`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    Open,
    /// It is tried then.
    Booked(Instant),
    /// Also from the start, where `auto` is not to try it.
    Over,
}

impl Pair {
    pub(super) fn in_kernel_bytes(&self) -> [u64; 2] {
        self.kernel
            .as_ref()
            .map_or([0, 0], |kernel| kernel.gauge().moved_bytes())
    }

    pub(super) fn kernel_turn(&mut self, cx: &mut Context<'_>, turn_over: bool) -> Step {
        let (Some(kernel), Some(ends)) = (&mut self.kernel, &self.ends) else {
            return Step::Wait;
        };
        if !self.heard {
            self.heard = true;
            if let Some(bell) = kernel.bell()
                && let Err(error) = cx.hear(bell)
            {
                let (side, errno) = (Side::A, errno_of(&error));
                return self.end(cx, Reason::Failed { side, errno });
            }
        }
        let name = kernel.name();
        let turn = kernel.turn(&mut Grip {
            ends: ends.sides(),
            directions: &mut self.directions,
            buffer_bytes: self.shares.buffer_bytes,
            byte_limit: self.byte_limit,
            waker: &|| cx.waker(),
            now: cx.now(),
        });
        let next = match turn {
            Turn::Holds(next) => {
                if kernel.has_taken() && !self.taken {
                    self.taken = true;
                    self.status.meter.set_gauge(kernel.gauge());
                    self.status.set_engine(self.engine());
                    if name == EngineName::Segment {
                        self.sockmap_after = None;
                    }
                }
                next
            }
            Turn::Refused(why) if self.choice != EngineChoice::Auto => {
                self.kernel = None;
                self.declined = Some(Box::new(why));
                return self.end(cx, Reason::Refused);
            }
            Turn::Declined(why) | Turn::Refused(why) => {
                if name == EngineName::Sockmap {
                    self.sockmap_after = None;
                }
                self.promote_at = self.sockmap_at(cx.now());
                self.kernel = None;
                self.heard = false;
                self.declined = Some(Box::new(why));
                self.status.set_engine(self.engine());
                Next {
                    again: self.directions.iter().any(Direction::can_move),
                    ..Next::watching(Watch::Stream)
                }
            }
            Turn::Ends(reason) => return self.end(cx, reason),
            Turn::Filtered(why) => {
                self.filtered = Some(Box::new(why));
                return self.end(cx, Reason::Filtered);
            }
        };
        if next.watch != self.watch
            && let Some(reason) = self.rewatch(cx, next.watch)
        {
            return self.end(cx, reason);
        }
        self.kernel_look_at = next.look_at;
        self.set_deadline(cx);
        if next.again || turn_over {
            Step::Again
        } else {
            Step::Wait
        }
    }

    pub(super) fn rewatch(&mut self, cx: &mut Context<'_>, watch: Watch) -> Option<Reason> {
        let interest = match watch {
            Watch::Stream => Interest::STREAM,
            Watch::Ends => Interest::ENDS,
        };
        for (source, end) in self.each_end().iter().enumerate() {
            if let Err(error) = cx.rewatch(end.as_fd(), source as u8, interest) {
                let (side, errno) = (Side::BOTH[source], errno_of(&error));
                return Some(Reason::Failed { side, errno });
            }
        }
        self.watch = watch;
        None
    }

    /// What a receive buffer of this pair is fixed at.
    pub(super) fn receive_bytes(&self) -> usize {
        let held_by = self.kernel.as_ref().map(|kernel| kernel.name());
        if self.sockmap_after.is_some() || held_by == Some(EngineName::Sockmap) {
            redirected_receive_bytes(self.shares.buffer_bytes)
        } else {
            self.shares.buffer_bytes
        }
    }

    /// The time for promotion has come: a pair that moves bulk is well served by `pipe`, any
    /// other goes to the kernel.
    pub(super) fn promote(&mut self, cx: &mut Context<'_>) -> Step {
        if self.trial != Trial::Over {
            self.try_segment(cx);
            if self.trial == Trial::Over && self.kernel.is_none() {
                self.promote_at = self.sockmap_at(cx.now());
            }
            return self.pump(cx);
        }
        if self.kernel.is_some() || self.status.meter.read().total() >= self.promote_after_bytes {
            self.sockmap_after = None;
            return Step::Wait;
        }
        let Some(ends) = &self.ends else {
            return Step::Done;
        };
        match Sockmap::new(ends.sides()) {
            Ok(sockmap) => {
                self.kernel = Some(Box::new(sockmap));
                self.pump(cx)
            }
            Err(error) => {
                self.sockmap_after = None;
                self.declined = Some(Box::new(error.to_string().into()));
                self.status.set_engine(self.engine());
                Step::Wait
            }
        }
    }

    /// When a pair that does not go to `segment` is looked at once more.
    fn sockmap_at(&self, now: Instant) -> Option<Instant> {
        let after = self.sockmap_after?;
        self.joined_at.checked_add(after).map(|at| at.max(now))
    }

    /// Has the engine try to take the pair, if its program is loaded and it is the pair's turn: one
    /// that asked for it by name waits for nothing.
    pub(super) fn try_segment(&mut self, cx: &mut Context<'_>) {
        let now = cx.now();
        if matches!(self.trial, Trial::Booked(at) if at > now) {
            return;
        }
        let unfit = |end: &Endpoint| !matches!(end.kind(), Kind::Tcp4 | Kind::Tcp6);
        if self.each_end().iter().any(unfit) {
            self.trial = Trial::Over;
            self.declined = Some(Box::new("segment: an end is not a TCP connection".into()));
            return;
        }
        let segments = &mut cx.carriers().segments;
        let may_wait = self.choice == EngineChoice::Auto;
        let found = if may_wait {
            segments.ground_at_hand()
        } else {
            Some(segments.ground())
        };
        let Some(found) = found else {
            return self.wait_for_trial(cx, now + LOAD_LOOK);
        };
        if may_wait
            && found.is_ok()
            && let Err(at) = segments.admit(now, self.trial != Trial::Open)
        {
            self.trial = Trial::Booked(at);
            return self.wait_for_trial(cx, at);
        }
        self.trial = Trial::Over;
        match found {
            Ok(ground) => {
                self.kernel = Some(Box::new(Segment::new(
                    ground,
                    !may_wait,
                    self.bypasses_firewall,
                )))
            }
            Err(obstacle) => self.declined = Some(Box::new(obstacle.reason.into())),
        }
    }

    fn wait_for_trial(&mut self, cx: &mut Context<'_>, until: Instant) {
        self.promote_at = Some(until);
        self.set_deadline(cx);
    }
}
