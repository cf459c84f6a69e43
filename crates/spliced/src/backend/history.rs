//! When something has happened to a server.

use std::time::{Instant, SystemTime};

/// What an operator wants to know of a server that is not up.
pub(super) struct History {
    pub(super) made: Instant,
    pub(super) down_since: Instant,
    pub(super) why_down: String,
    pub(super) why_out: String,
    pub(super) last_error: Option<(Instant, String)>,
}

impl History {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            made: now,
            down_since: now,
            why_down: String::new(),
            why_out: String::new(),
            last_error: None,
        }
    }

    pub(super) fn failed(&mut self, why: &str) {
        self.last_error = Some((Instant::now(), why.into()));
    }
}

/// The time of day at `then`, as it is shown; `now` is by both clocks.
pub(super) fn wall_clock(then: Instant, now: (Instant, SystemTime)) -> String {
    let ago = now.0.saturating_duration_since(then);
    let at = now.1.checked_sub(ago);
    humantime::format_rfc3339_millis(at.unwrap_or(SystemTime::UNIX_EPOCH)).to_string()
}
