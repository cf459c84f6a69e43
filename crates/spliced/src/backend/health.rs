//! Whether a server can be used, from what its checks and its connections say. Pure: the caller has the
//! clock.
//!
//! ```text
//!             `fall` checks fail in a row
//! checks:  Passing ───────────────────────▶ Failing
//!             ▲   `rise` checks pass in a row  │
//!             └────────────────────────────────┘
//!
//!             take_out()            its time is over
//! traffic: In ──────────▶ Out ──────────────────────────▶ In
//!                          └──it was refused, and a connection is made or `rise` checks pass──▶ In
//! ```
//!
//! A server is up if its checks pass and its traffic has not taken it out. The pieces of evidence differ in
//! strength, so each has a count of its own, and none clears a stronger one:
//!
//! | evidence | counts as | clears |
//! |---|---|---|
//! | a check fails | failed check | |
//! | a check passes | passed check | failed checks, failed connections: it has made one |
//! | a connection is not made | failed connection | |
//! | a connection is made | | failed connections |
//! | a connection is reset before the server's first byte | early reset | |
//! | the server has sent something | | early resets, if the connection began after them |

use std::time::{Duration, Instant};

use crate::plan::HealthPlan;

/// How long traffic takes a server out for the first time: as `fail_timeout` of nginx.
const OUT_FIRST: Duration = Duration::from_secs(10);

/// The longest time: nothing but clients may be there to notice that a server is back.
const OUT_MOST: Duration = Duration::from_secs(80);

/// How many failures in a row count for a server without checks: as `fall` of HAProxy.
pub(super) const FALL: u16 = 3;

/// How many failures in a row change a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    pub(super) rise: u16,
    pub(super) fall: u16,
    /// There are checks.
    pub(super) has_checks: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Health {
    thresholds: Thresholds,
    checks: Checks,
    traffic: Traffic,
    /// In a row.
    failed_connections: u16,
    /// Since the last connection on which the server has sent something.
    early_resets: u16,
    first_early_reset: Option<Instant>,
    /// When it came back; `None` if it has been up from the start.
    back_since: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Checks {
    Passing { failed: u16 },
    Failing { passed: u16 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Traffic {
    In {
        /// The last time that it was out.
        last: Option<Absence>,
    },
    Out {
        absence: Absence,
        passed_checks: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Absence {
    cause: Cause,
    time: Duration,
    until: Instant,
}

/// Why traffic takes a server out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Connections to it are not made.
    Refused,
    /// It resets connections before its first byte.
    Resets,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Up,
    /// Its checks fail.
    Down,
    /// Its traffic has taken it out, for so much longer.
    Out(Duration),
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    WentDown,
    CameUp,
}

impl Thresholds {
    pub(super) fn of(plan: Option<&HealthPlan>) -> Self {
        Self {
            rise: plan.map_or(1, |plan| plan.rise),
            fall: plan.map_or(FALL, |plan| plan.fall),
            has_checks: plan.is_some(),
        }
    }
}

impl Health {
    pub(super) fn new(thresholds: Thresholds) -> Self {
        Self {
            thresholds,
            checks: Checks::Passing { failed: 0 },
            traffic: Traffic::In { last: None },
            failed_connections: 0,
            early_resets: 0,
            first_early_reset: None,
            back_since: None,
        }
    }

    pub(super) fn state(&self, now: Instant) -> State {
        match (self.checks, self.traffic) {
            (Checks::Failing { .. }, _) => State::Down,
            (_, Traffic::Out { absence, .. }) if now < absence.until => {
                State::Out(absence.until - now)
            }
            _ => State::Up,
        }
    }

    /// When it came back the last time, or was taken out; `None` if it has been in from the start. Checks have no clock
    /// here.
    pub(super) fn since(&self, now: Instant) -> Option<Instant> {
        match self.traffic {
            Traffic::Out { absence, .. } if now < absence.until => {
                absence.until.checked_sub(absence.time)
            }
            Traffic::Out { absence, .. } => Some(absence.until),
            Traffic::In { .. } => self.back_since,
        }
    }

    pub(super) fn thresholds(&self) -> Thresholds {
        self.thresholds
    }

    pub(super) fn set_thresholds(&mut self, thresholds: Thresholds) {
        if !thresholds.has_checks {
            // Nothing would bring it back.
            self.checks = Checks::Passing { failed: 0 };
        }
        self.thresholds = thresholds;
    }

    pub(super) fn check_failed(&mut self) -> Option<Change> {
        if !self.thresholds.has_checks {
            // It was under way when they were switched off.
            return None;
        }
        if let Traffic::Out { passed_checks, .. } = &mut self.traffic {
            *passed_checks = 0;
        }
        match &mut self.checks {
            Checks::Passing { failed } => {
                *failed += 1;
                if *failed < self.thresholds.fall {
                    return None;
                }
                self.checks = Checks::Failing { passed: 0 };
                Some(Change::WentDown)
            }
            Checks::Failing { passed } => {
                *passed = 0;
                None
            }
        }
    }

    pub(super) fn check_passed(&mut self, now: Instant) -> Option<Change> {
        self.settle(now);
        let before = self.state(now);
        let rise = self.thresholds.rise;
        self.failed_connections = 0;
        match &mut self.checks {
            Checks::Passing { failed } => *failed = 0,
            Checks::Failing { passed } => {
                *passed += 1;
                if *passed >= rise {
                    self.checks = Checks::Passing { failed: 0 };
                    self.back_since = Some(now);
                }
            }
        }
        if let Traffic::Out {
            absence,
            passed_checks,
        } = &mut self.traffic
            && absence.cause == Cause::Refused
        {
            *passed_checks += 1;
            if *passed_checks >= rise {
                self.come_in(now);
            }
        }
        self.came_up(before, now)
    }

    pub(super) fn connected(&mut self, now: Instant) -> Option<Change> {
        self.settle(now);
        let before = self.state(now);
        self.failed_connections = 0;
        match self.traffic {
            Traffic::Out { absence, .. } if absence.cause == Cause::Refused => self.come_in(now),
            _ => {}
        }
        self.came_up(before, now)
    }

    /// Returns whether it is to be taken out.
    pub(super) fn connection_failed(&mut self, now: Instant) -> bool {
        self.settle(now);
        self.failed_connections = self.failed_connections.saturating_add(1);
        self.failed_connections >= self.thresholds.fall && self.state(now) == State::Up
    }

    /// The server has sent something on a connection that was made at `began`. Older ones say nothing
    /// about today's server.
    pub(super) fn answered(&mut self, began: Instant) {
        if self.first_early_reset.is_some_and(|first| began >= first) {
            self.early_resets = 0;
            self.first_early_reset = None;
        }
    }

    /// Returns whether they are so many that it is suspect.
    pub(super) fn early_reset(&mut self, now: Instant) -> bool {
        self.settle(now);
        self.early_resets = self.early_resets.saturating_add(1);
        self.first_early_reset.get_or_insert(now);
        self.early_resets >= self.thresholds.fall && self.state(now) == State::Up
    }

    /// Traffic takes it out, if it is up. Returns for how long: twice as long as the last time, if it has not
    /// been in for as long as it was out.
    pub(super) fn take_out(&mut self, cause: Cause, now: Instant) -> Option<Duration> {
        self.settle(now);
        if self.state(now) != State::Up {
            return None;
        }
        let time = match self.traffic {
            Traffic::In { last: Some(last) } if now < last.until + last.time => {
                (last.time * 2).min(OUT_MOST)
            }
            _ => OUT_FIRST,
        };
        self.traffic = Traffic::Out {
            absence: Absence {
                cause,
                time,
                until: now + time,
            },
            passed_checks: 0,
        };
        // The first failure after it has come back is enough.
        let one_less = self.thresholds.fall.saturating_sub(1);
        match cause {
            Cause::Refused => self.failed_connections = one_less,
            Cause::Resets => {
                self.early_resets = one_less;
                self.first_early_reset.get_or_insert(now);
            }
        }
        Some(time)
    }

    /// It gets clients again, after it got none for another reason than its health.
    pub(super) fn starts_again(&mut self, now: Instant) {
        self.settle(now);
        self.back_since = Some(now);
    }

    /// The share of its weight that a server has within its slow start, in hundredths.
    pub(super) fn share_percent(&self, slow_start: Option<Duration>, now: Instant) -> u32 {
        let back_since = match self.traffic {
            Traffic::Out { absence, .. } if now >= absence.until => Some(absence.until),
            _ => self.back_since,
        };
        let (Some(at), Some(time)) = (back_since, slow_start) else {
            return 100;
        };
        let elapsed = now.saturating_duration_since(at).as_millis();
        let percent = elapsed * 100 / time.as_millis().max(1);
        (percent as u32).clamp(1, 100)
    }

    /// Its time outside may be over.
    fn settle(&mut self, now: Instant) {
        if let Traffic::Out { absence, .. } = self.traffic
            && now >= absence.until
        {
            self.traffic = Traffic::In {
                last: Some(absence),
            };
            self.back_since = Some(absence.until);
        }
    }

    /// It comes in before its time.
    fn come_in(&mut self, now: Instant) {
        if let Traffic::Out { absence, .. } = self.traffic {
            self.traffic = Traffic::In {
                last: Some(Absence {
                    until: now,
                    ..absence
                }),
            };
            self.back_since = Some(now);
        }
    }

    fn came_up(&self, before: State, now: Instant) -> Option<Change> {
        (before != State::Up && self.state(now) == State::Up).then_some(Change::CameUp)
    }
}

/// Whether traffic may take a server out: of `servers` others `up_others` are up, and `out` are out by
/// their traffic. It never takes out the last one, nor more than half of all: what clients do must not
/// take down a service.
pub(super) fn leaves_enough(up_others: usize, out: usize, servers: usize) -> bool {
    up_others > 0 && out < servers / 2
}

#[cfg(test)]
mod tests;
