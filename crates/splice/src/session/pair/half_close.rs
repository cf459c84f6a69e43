//! How long a pair has been half-closed: one of its streams has ended, and no byte moves in the other
//! direction.
//!
//! ```text
//!             user space passes an EOF on,
//!             or the engine in the kernel has              no byte for the timeout
//! both flow ─────────────────────────────▶ half-closed ──────────────────────────▶ over
//! ```
//!
//! An engine in the kernel wakes nobody when it has passed an EOF on. So while it has the pair, the pair looks
//! once per timeout. That is soon enough: a stream that ends after a look cannot be over before the next.

use std::time::{Duration, Instant};

use super::Running;
use super::state::State;
use crate::direction::Direction;
use crate::kernel::DirectionView as _;
use crate::reactor::Context;

#[derive(Debug)]
pub(super) struct HalfClose {
    timeout: Duration,
    /// When user space has passed an EOF on.
    ended_at: Option<Instant>,
    look_at: Option<Instant>,
}

impl HalfClose {
    pub(super) fn new(timeout: Duration) -> Self {
        Self {
            timeout,
            ended_at: None,
            look_at: None,
        }
    }
}

impl Running {
    /// Starts the clock if one direction has just ended.
    pub(super) fn note_ended_stream(&mut self, cx: &mut Context<'_>) {
        let Some(half_close) = &mut self.half_close else {
            return;
        };
        if half_close.ended_at.is_none() && self.directions.iter().any(Direction::has_ended) {
            half_close.ended_at = Some(cx.now());
            half_close.look_at = cx.now().checked_add(half_close.timeout);
            self.set_deadline(cx);
        }
    }

    /// When to look whether the pair has been half-closed for too long.
    pub(super) fn half_close_look_at(&mut self, now: Instant) -> Option<Instant> {
        let half_close = self.half_close.as_mut()?;
        if self.state.engine().is_some() && half_close.look_at.is_none() {
            half_close.look_at = now.checked_add(half_close.timeout);
        }
        half_close.look_at
    }

    pub(super) fn is_half_closed_for_too_long(&mut self, now: Instant) -> bool {
        let look_at = self.half_close.as_ref().and_then(|one| one.look_at);
        if look_at.is_none_or(|at| at > now) {
            return false;
        }
        let last_moved_at = self.last_moved_at(now);
        let Some(half_close) = &mut self.half_close else {
            return false;
        };
        let ended = match &self.state {
            State::InKernel(engaged) => engaged.engine.counters().ended_streams(),
            _ => [false; 2],
        };
        let since = match half_close.ended_at {
            Some(ended_at) => ended_at.max(last_moved_at),
            None if ended.contains(&true) => last_moved_at,
            None => {
                // The next deadline is set to a full timeout from now, if the kernel still has the pair.
                half_close.look_at = None;
                return false;
            }
        };
        half_close.look_at = since.checked_add(half_close.timeout);
        now.saturating_duration_since(since) >= half_close.timeout
    }
}
