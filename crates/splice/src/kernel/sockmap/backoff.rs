//! For how long user space moves a direction's bytes before the gate is asked to open again.

#[cfg(test)]
mod tests;

use std::time::{Duration, Instant};

/// How soon to look again for what has no event: one tick of the loop's timer, in which the kernel's worker
/// sends some megabytes.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// The shortest backoff: some five times what an opening and a closing take.
const SHORTEST: Duration = Duration::from_millis(2);

/// The longest backoff. A direction that is faster than the kernel's worker loses no measurable throughput
/// even with 4 ms (docs/notes/sockmap-measurements.md). What sets the limit is the look that waits up to 1 ms
/// for a segment: it may take a fiftieth of the direction's time.
const LONGEST: Duration = Duration::from_millis(64);

/// A direction that was open for less than this was faster than the kernel's worker.
const SHORT_OPENING: Duration = Duration::from_millis(50);

/// The longest pause between two looks at a target that takes nothing.
const LONGEST_LOOK: Duration = Duration::from_millis(32);

#[derive(Debug)]
pub(super) struct Backoff {
    began_at: Option<Instant>,
    /// When the gate was last asked to open.
    opened_at: Option<Instant>,
    length: Duration,
    backlog_bytes: u32,
    look_after: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            began_at: None,
            opened_at: None,
            length: SHORTEST,
            backlog_bytes: 0,
            look_after: LOOK_AGAIN,
        }
    }
}

impl Backoff {
    /// When the backoff began: now, if it is the first one.
    pub(super) fn began_at(&mut self, now: Instant) -> Instant {
        *self.began_at.get_or_insert(now)
    }

    /// User space takes over from the kernel.
    pub(super) fn begin(&mut self, now: Instant) {
        self.began_at = Some(now);
        let was_open = self.opened_at.map(|at| now.duration_since(at));
        self.length = if was_open.is_some_and(|was_open| was_open < SHORT_OPENING) {
            (self.length * 2).min(LONGEST)
        } else {
            SHORTEST
        };
    }

    /// The gate is asked to open.
    pub(super) fn end(&mut self, now: Instant) {
        self.opened_at = Some(now);
    }

    /// The earliest moment for the gate to be asked again.
    pub(super) fn ends_at(&mut self, now: Instant) -> Instant {
        self.began_at(now) + self.length
    }

    /// How long to wait until the next look at the target's backlog, for which there is no event.
    pub(super) fn look_after(&mut self, backlog_bytes: u32) -> Duration {
        self.look_after = if backlog_bytes == self.backlog_bytes {
            (self.look_after * 2).min(LONGEST_LOOK)
        } else {
            LOOK_AGAIN
        };
        self.backlog_bytes = backlog_bytes;
        self.look_after
    }
}
