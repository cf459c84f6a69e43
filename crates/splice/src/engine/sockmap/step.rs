//! What a lane asks of the pair behind its turn.

use std::time::{Duration, Instant};

use crate::engine::kernel::{Grip, Watch};

/// How soon to look again at what has no event: one tick of the loop's timer, in which the worker
/// sends some megabytes.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// What a lane asks of the pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) watch: Watch,
    pub(super) again: bool,
    pub(super) look_at: Option<Instant>,
}

impl Step {
    /// Nothing: the kernel moves the bytes, or the direction is over.
    pub(super) const ASLEEP: Self = Self::watching(Watch::Ends);
    pub(super) const PUMP: Self = Self {
        again: true,
        ..Self::watching(Watch::Stream)
    };

    pub(super) const fn watching(watch: Watch) -> Self {
        Self {
            watch,
            again: false,
            look_at: None,
        }
    }

    pub(super) fn until(self, look_at: Instant) -> Self {
        Self {
            look_at: Some(look_at),
            ..self
        }
    }

    /// There is no event for "the worker has sent it".
    pub(super) fn look_again(grip: &Grip<'_>) -> Self {
        Self::ASLEEP.until(grip.now + LOOK_AGAIN)
    }

    pub(super) fn join(&mut self, other: Self) {
        self.watch = self.watch.max(other.watch);
        self.again |= other.again;
        self.look_at = [self.look_at, other.look_at].into_iter().flatten().min();
    }
}
