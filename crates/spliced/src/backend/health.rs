//! Whether a server can be used, from what its checks and its connections say. Pure: the caller has the
//! clock.
//!
//! ```text
//!        `fall` failures in a row
//! Up ───────────────────────────────▶ Down
//!  ▲  `rise` passed checks in a row     │
//!  └────────────────────────────────────┘
//!        without checks: after PAUSE
//! ```
//!
//! A failure is a check that does not pass, a connection that is refused or not answered, or one that is
//! reset before its first byte. A connection that is made ends the row, as a passed check does.

use std::time::{Duration, Instant};

/// How long a server without checks is left alone after it has failed: as `fail_timeout` of nginx.
pub(super) const PAUSE: Duration = Duration::from_secs(10);

/// How many failures in a row take a server without checks out: as `fall` of HAProxy.
pub(super) const FALL: u16 = 3;

/// When a state ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Thresholds {
    pub(super) rise: u16,
    pub(super) fall: u16,
    /// There are checks, which bring a server back.
    pub(super) has_checks: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Up {
        failures: u16,
        /// When it came back; `None` if it has been up from the start.
        since: Option<Instant>,
    },
    Down {
        passed: u16,
        since: Instant,
    },
}

/// A change that is worth a line in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    WentDown,
    CameUp,
}

impl Health {
    pub(super) const NEW: Self = Self::Up {
        failures: 0,
        since: None,
    };

    pub(super) fn is_up(&self, thresholds: &Thresholds, now: Instant) -> bool {
        match self {
            Self::Up { .. } => true,
            Self::Down { since, .. } => !thresholds.has_checks && now >= *since + PAUSE,
        }
    }

    pub(super) fn failed(&mut self, thresholds: &Thresholds, now: Instant) -> Option<Change> {
        match self {
            Self::Up { failures, .. } => {
                *failures += 1;
                if *failures < thresholds.fall {
                    return None;
                }
                *self = Self::Down {
                    passed: 0,
                    since: now,
                };
                Some(Change::WentDown)
            }
            Self::Down { passed, since } => {
                *passed = 0;
                // Without checks the pause begins again, since somebody has just tried.
                *since = now;
                None
            }
        }
    }

    /// A check has passed, or a connection was made.
    pub(super) fn passed(&mut self, thresholds: &Thresholds, now: Instant) -> Option<Change> {
        match self {
            Self::Up { failures, .. } => {
                *failures = 0;
                None
            }
            Self::Down { passed, .. } => {
                *passed += 1;
                if thresholds.has_checks && *passed < thresholds.rise {
                    return None;
                }
                *self = Self::Up {
                    failures: 0,
                    since: Some(now),
                };
                Some(Change::CameUp)
            }
        }
    }

    /// The share of its weight that a server has within its slow start, in hundredths.
    pub(super) fn share_percent(&self, slow_start: Option<Duration>, now: Instant) -> u32 {
        let (
            Self::Up {
                since: Some(at), ..
            },
            Some(time),
        ) = (self, slow_start)
        else {
            return 100;
        };
        let elapsed = now.saturating_duration_since(*at).as_millis();
        let percent = elapsed * 100 / time.as_millis().max(1);
        (percent as u32).clamp(1, 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKED: Thresholds = Thresholds {
        rise: 2,
        fall: 3,
        has_checks: true,
    };
    const UNCHECKED: Thresholds = Thresholds {
        has_checks: false,
        ..CHECKED
    };

    #[test]
    fn failures_in_a_row_take_a_server_out_and_checks_bring_it_back() {
        let now = Instant::now();
        let mut health = Health::NEW;
        assert_eq!(health.failed(&CHECKED, now), None);
        assert_eq!(health.failed(&CHECKED, now), None);
        // The row is broken.
        assert_eq!(health.passed(&CHECKED, now), None);
        assert_eq!(health.failed(&CHECKED, now), None);
        assert_eq!(health.failed(&CHECKED, now), None);
        assert_eq!(health.failed(&CHECKED, now), Some(Change::WentDown));
        assert!(!health.is_up(&CHECKED, now + 10 * PAUSE));
        assert_eq!(health.passed(&CHECKED, now), None);
        assert_eq!(health.failed(&CHECKED, now), None);
        assert_eq!(health.passed(&CHECKED, now), None);
        assert_eq!(health.passed(&CHECKED, now), Some(Change::CameUp));
        assert!(health.is_up(&CHECKED, now));
    }

    #[test]
    fn without_checks_a_server_is_tried_again_after_a_pause() {
        let now = Instant::now();
        let mut health = Health::NEW;
        for _ in 0..3 {
            health.failed(&UNCHECKED, now);
        }
        assert!(!health.is_up(&UNCHECKED, now));
        assert!(health.is_up(&UNCHECKED, now + PAUSE));
        // The one that tries has no luck: the next one waits as long.
        health.failed(&UNCHECKED, now + PAUSE);
        assert!(!health.is_up(&UNCHECKED, now + PAUSE));
        assert_eq!(health.passed(&UNCHECKED, now), Some(Change::CameUp));
    }

    #[test]
    fn a_server_that_comes_back_gets_its_share_slowly() {
        let start = Instant::now();
        let slow = Some(Duration::from_secs(10));
        assert_eq!(Health::NEW.share_percent(slow, start), 100);
        let back = Health::Up {
            failures: 0,
            since: Some(start),
        };
        let after = |seconds| back.share_percent(slow, start + Duration::from_secs(seconds));
        assert_eq!([0, 1, 5, 10, 11].map(after), [1, 10, 50, 100, 100]);
        assert_eq!(back.share_percent(None, start), 100);
    }
}
