//! Whether a server gets new clients, and what becomes of those that it has. Pure: the caller has the clock.
//!
//! ```text
//!              drain()                     its last connection ends
//! Serving ───────────────▶ Draining ───────────────────────────────────▶ Empty
//!    ▲                        │  without a connection: at once              │
//!    └───────undrain()────────┴─────────────────────────────────────────────┘
//!
//!             leave()                            its time is over
//! Here ────────────────────▶ Leaving ─────────────────────────────▶ Cut
//!   ▲                           │
//!   └────────come_back()────────┘
//! ```
//!
//! An order or the configuration drains a server; a reload or an order has it leave, and another one may bring it back.
//! Neither changes the other: a server that comes back is drained if it was.

use std::fmt;
use std::time::{Duration, Instant};

/// Who keeps new clients away from a server, or has removed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// `disabled` of the server.
    Configuration,
    /// An order of this user, in words.
    Order(String),
}

#[derive(Clone, Debug, Default)]
pub(super) struct Drain {
    /// `None` while it serves.
    drained: Option<Drained>,
    /// Since when it leaves, and who has removed it; `None` while it is here.
    leaving: Option<(Instant, By)>,
    /// What the configuration says of it.
    is_disabled: bool,
}

#[derive(Clone, Debug)]
struct Drained {
    by: By,
    since: Instant,
    /// When its last connection had ended.
    empty: Option<Instant>,
}

/// What a server is in that gets no new clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Away {
    pub(super) since: Instant,
    pub(super) why: String,
    /// As the configuration has it, and not an order.
    pub(super) is_disabled: bool,
}

/// The last connection of a server has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Emptied {
    after: Duration,
    of_what: &'static str,
}

impl Drain {
    /// A server that is new, as the configuration has it.
    pub(super) fn new(is_disabled: bool, now: Instant) -> Self {
        let drained = is_disabled.then_some(Drained {
            by: By::Configuration,
            since: now,
            empty: Some(now),
        });
        Self {
            drained,
            leaving: None,
            is_disabled,
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.drained.is_some()
    }

    /// As the configuration has it, and not an order.
    pub(super) fn is_disabled(&self) -> bool {
        let drained = self.drained.as_ref();
        drained.is_some_and(|drained| drained.by == By::Configuration)
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.leaving.is_some()
    }

    /// Returns whether it served before.
    pub(super) fn drain(&mut self, by: By, now: Instant) -> bool {
        match &mut self.drained {
            Some(drained) => {
                drained.by = by;
                false
            }
            None => {
                self.drained = Some(Drained {
                    by,
                    since: now,
                    empty: None,
                });
                true
            }
        }
    }

    /// Returns whether it was drained.
    pub(super) fn undrain(&mut self) -> bool {
        self.drained.take().is_some()
    }

    /// What the configuration says from now on. An order stands until that changes. Returns what is to be done: drain
    /// it, or not any more.
    pub(super) fn configure(&mut self, is_disabled: bool) -> Option<bool> {
        if std::mem::replace(&mut self.is_disabled, is_disabled) == is_disabled {
            return None;
        }
        match &self.drained {
            None => is_disabled.then_some(true),
            Some(drained) => (drained.by == By::Configuration).then_some(false),
        }
    }

    /// It was removed. Returns what [`is_over`](Self::is_over) is asked with.
    pub(super) fn leave(&mut self, by: By, now: Instant) -> Instant {
        self.leaving = Some((now, by));
        now
    }

    pub(super) fn come_back(&mut self) {
        self.leaving = None;
    }

    /// Whether it still leaves, since `then`.
    pub(super) fn is_over(&self, then: Instant) -> bool {
        self.leaving_since() == Some(then)
    }

    fn leaving_since(&self) -> Option<Instant> {
        self.leaving.as_ref().map(|(since, _)| *since)
    }

    /// Its last connection has ended. Returns what there is to say about that.
    pub(super) fn emptied(&mut self, now: Instant) -> Option<Emptied> {
        let drained = self.drained.as_mut();
        let (since, of_what) = match drained.filter(|drained| drained.empty.is_none()) {
            Some(drained) => {
                drained.empty = Some(now);
                (drained.since, "drained")
            }
            None => (self.leaving_since()?, "removed"),
        };
        Some(Emptied {
            after: now.saturating_duration_since(since),
            of_what,
        })
    }

    /// What it is in, if it gets no new clients. It `is_empty`, or not.
    pub(super) fn away(&self, is_empty: bool) -> Option<Away> {
        if let Some((since, by)) = &self.leaving {
            return Some(Away {
                since: *since,
                why: match by {
                    By::Configuration => "it was removed from the configuration".into(),
                    By::Order(user) => format!("removed until the next reload by {user}"),
                },
                is_disabled: false,
            });
        }
        let drained = self.drained.as_ref()?;
        Some(Away {
            since: drained.empty.filter(|_| is_empty).unwrap_or(drained.since),
            why: drained.by.to_string(),
            is_disabled: self.is_disabled(),
        })
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Configuration => f.write_str("disabled in the configuration"),
            Self::Order(user) => write!(f, "drained by {user}"),
        }
    }
}

impl fmt::Display for Emptied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let after = Duration::from_millis(self.after.as_millis() as u64);
        let (after, of_what) = (humantime::format_duration(after), self.of_what);
        write!(f, "is empty, {after} after it was {of_what}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> By {
        By::Order("user 7 (process 8)".into())
    }

    fn at(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_drained_server_says_once_when_it_is_empty() {
        let start = Instant::now();
        let mut drain = Drain::new(false, start);
        assert_eq!(drain.emptied(start), None);
        assert_eq!(drain.away(true), None);
        assert!(drain.drain(order(), at(start, 1)));
        assert!(!drain.drain(order(), at(start, 2)));
        let away = drain.away(false).expect("it gets no clients");
        assert_eq!(away.since, at(start, 1));
        assert_eq!(away.why, "drained by user 7 (process 8)");
        let emptied = drain.emptied(at(start, 4)).expect("the first time");
        assert_eq!(emptied.to_string(), "is empty, 3s after it was drained");
        assert_eq!(drain.emptied(at(start, 5)), None);
        let away = drain.away(true).expect("it gets no clients");
        assert_eq!(away.since, at(start, 4));
        assert!(drain.undrain());
        assert!(!drain.undrain());
        assert_eq!(drain.away(true), None);
    }

    #[test]
    fn an_order_stands_until_the_configuration_changes() {
        let start = Instant::now();
        let mut drain = Drain::new(true, start);
        assert!(drain.away(true).is_some_and(|away| away.is_disabled));
        drain.undrain();
        assert_eq!(drain.configure(true), None);
        assert_eq!(drain.configure(false), None);
        assert_eq!(drain.configure(true), Some(true));
        drain.drain(By::Configuration, start);
        assert_eq!(drain.configure(false), Some(false));
        drain.undrain();
        drain.drain(order(), start);
        // The order stands.
        assert_eq!(drain.configure(true), None);
        assert_eq!(drain.configure(false), None);
        assert!(drain.is_drained());
    }

    #[test]
    fn a_server_that_comes_back_is_drained_if_it_was() {
        let start = Instant::now();
        let mut drain = Drain::new(false, start);
        drain.drain(order(), start);
        let first = drain.leave(By::Configuration, at(start, 1));
        assert!(drain.is_over(first));
        let away = drain.away(false).expect("it gets no clients");
        assert_eq!(away.why, "it was removed from the configuration");
        drain.come_back();
        assert!(!drain.is_over(first) && drain.is_drained());
        let second = drain.leave(By::Configuration, at(start, 2));
        assert!(!drain.is_over(first) && drain.is_over(second));
        // Drained first.
        assert!(drain.emptied(at(start, 3)).is_some());
        let emptied = drain.emptied(at(start, 4)).expect("a client that was late");
        assert_eq!(emptied.to_string(), "is empty, 2s after it was removed");
    }
}
