//! How long no byte of a pair has moved.

use std::time::{Duration, Instant};

use super::Running;

/// The limit on that. It does not move with every byte: the pair looks when it may be reached.
#[derive(Debug)]
pub(super) struct Idle {
    timeout: Duration,
    look_at: Instant,
}

impl Idle {
    /// `None` if the limit is further away than time goes.
    pub(super) fn new(timeout: Duration, now: Instant) -> Option<Self> {
        let look_at = now.checked_add(timeout)?;
        Some(Self { timeout, look_at })
    }

    pub(super) fn look_at(&self) -> Instant {
        self.look_at
    }
}

impl Running {
    pub(super) fn is_idle_for_too_long(&mut self, now: Instant) -> bool {
        if self.idle.as_ref().is_none_or(|idle| idle.look_at > now) {
            return false;
        }
        let moved_at = self.last_moved_at(now);
        self.idle.as_mut().is_some_and(|idle| {
            idle.look_at = moved_at + idle.timeout;
            idle.look_at <= now
        })
    }
}
