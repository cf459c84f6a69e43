//! Whether a direction that goes by hand moves bulk.

use std::time::{Duration, Instant};

/// This many bytes by hand within this time are bulk: a tenth of a Gb/s.
const BULK_BYTES: u64 = 256 << 10;
const BULK_WITHIN: Duration = Duration::from_millis(20);

/// How long a direction goes by hand at first.
pub(super) const FIRST_CALM: Duration = Duration::from_millis(20);

/// How long a direction goes by hand behind a spell of bulk: longer than the silence of a sender
/// that has lost the end of a burst (`TCP_RTO_MIN`, 200 ms, and one repetition).
pub(super) const CALM: Duration = Duration::from_millis(700);

#[derive(Debug, Default)]
pub(super) struct Calm {
    /// When a portion began, and how much had been taken by then.
    portion: Option<(Instant, u64)>,
    /// Since when there was no bulk.
    since: Option<Instant>,
}

impl Calm {
    /// When there will have been no bulk for so long, as it looks now.
    pub(super) fn until(&mut self, now: Instant, taken_bytes: u64, calm: Duration) -> Instant {
        let (began, before) = *self.portion.get_or_insert((now, taken_bytes));
        if taken_bytes - before >= BULK_BYTES {
            if now - began < BULK_WITHIN {
                self.since = None;
            }
            self.portion = Some((now, taken_bytes));
        }
        *self.since.get_or_insert(now) + calm
    }
}
