//! How long a direction goes by hand.

use std::time::{Duration, Instant};

/// How soon to look again at what has no event: one tick of the loop's timer, in which the worker
/// sends some megabytes.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// A spell by hand lasts this long at least: some five times what it takes to come to it and back.
const SHORTEST: Duration = Duration::from_millis(2);

/// It lasts this long at most. An attempt of a direction that outruns the kernel's worker costs it no
/// throughput that could be measured with 4 ms here (docs/notes/sockmap-measurements.md); what limits
/// it is the look that waits up to 1 ms for a segment, which may take a fiftieth of its time.
const LONGEST: Duration = Duration::from_millis(64);

/// An opening that was shorter than this has outrun the kernel's worker.
const SHORT_OPENING: Duration = Duration::from_millis(50);

/// The longest between two looks at a target that takes nothing.
const LOOK_SELDOM: Duration = Duration::from_millis(32);

#[derive(Debug)]
pub(super) struct Spell {
    began: Option<Instant>,
    /// When the opening before or behind it began.
    opened: Option<Instant>,
    lasts: Duration,
    pending: u32,
    look_after: Duration,
}

impl Default for Spell {
    fn default() -> Self {
        Self {
            began: None,
            opened: None,
            lasts: SHORTEST,
            pending: 0,
            look_after: LOOK_AGAIN,
        }
    }
}

impl Spell {
    /// Since when; from now on, if it is the first.
    pub(super) fn since(&mut self, now: Instant) -> Instant {
        *self.began.get_or_insert(now)
    }

    pub(super) fn begins(&mut self, now: Instant) {
        self.began = Some(now);
        let opening = self.opened.map(|opened| now - opened);
        self.lasts = if opening.is_some_and(|opening| opening < SHORT_OPENING) {
            (self.lasts * 2).min(LONGEST)
        } else {
            SHORTEST
        };
    }

    pub(super) fn ends(&mut self, now: Instant) {
        self.opened = Some(now);
    }

    /// Until when it lasts at least.
    pub(super) fn until(&mut self) -> Instant {
        self.began.unwrap_or_else(Instant::now) + self.lasts
    }

    /// When to look again whether the target has taken what is pending: there is no event for that.
    pub(super) fn look_after(&mut self, pending: u32) -> Duration {
        self.look_after = if pending == self.pending {
            (self.look_after * 2).min(LOOK_SELDOM)
        } else {
            LOOK_AGAIN
        };
        self.pending = pending;
        self.look_after
    }
}
