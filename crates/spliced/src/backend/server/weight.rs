//! How many of the new clients a server gets beside others; with 0, none.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::lock;
use crate::backend::drain::By;

/// What a plan or a SRV record says, or an order until that changes.
pub(super) struct Weight {
    /// For those who pick a server.
    value: AtomicU32,
    set: Mutex<Set>,
}

/// How it has come to its value.
#[derive(Clone)]
struct Set {
    planned: u32,
    by: By,
    since: Instant,
}

impl Weight {
    pub(super) fn planned(value: u32) -> Self {
        Self {
            value: AtomicU32::new(value),
            set: Mutex::new(Set {
                planned: value,
                by: By::Configuration,
                since: Instant::now(),
            }),
        }
    }

    pub(super) fn value(&self) -> u32 {
        self.value.load(Ordering::Relaxed)
    }

    /// What the plan says from now on. Returns the value before, if it is another one now.
    pub(super) fn plan(&self, planned: u32) -> Option<u32> {
        let mut set = lock(&self.set);
        if std::mem::replace(&mut set.planned, planned) == planned {
            return None;
        }
        self.replace(&mut set, planned, By::Configuration)
    }

    /// As [`plan`](Self::plan), but only until the plan changes.
    pub(super) fn order(&self, value: u32, by: By) -> Option<u32> {
        self.replace(&mut lock(&self.set), value, by)
    }

    fn replace(&self, set: &mut Set, value: u32, by: By) -> Option<u32> {
        let before = self.value.swap(value, Ordering::Relaxed);
        set.by = by;
        if before == value {
            return None;
        }
        set.since = Instant::now();
        Some(before)
    }

    /// Since when it is 0, and why; `None` if it is not.
    pub(super) fn zero(&self) -> Option<(Instant, String)> {
        let set = lock(&self.set);
        let why = match &set.by {
            By::Configuration => "weight 0 in the configuration".into(),
            By::Order(user) => format!("weight set to 0 by {user}"),
        };
        (self.value() == 0).then_some((set.since, why))
    }
}

impl Clone for Weight {
    fn clone(&self) -> Self {
        let set = lock(&self.set);
        Self {
            value: AtomicU32::new(self.value()),
            set: Mutex::new(set.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_stands_until_the_plan_changes() {
        let weight = Weight::planned(3);
        assert_eq!(weight.zero(), None);
        assert_eq!(weight.order(0, By::Order("user 7".into())), Some(3));
        let (since, why) = weight.zero().expect("it is 0");
        assert_eq!(why, "weight set to 0 by user 7");
        assert_eq!(weight.plan(3), None);
        // The same again, by another.
        assert_eq!(weight.order(0, By::Order("user 8".into())), None);
        assert_eq!(
            weight.zero(),
            Some((since, "weight set to 0 by user 8".into()))
        );
        assert_eq!(weight.plan(4), Some(0));
        assert_eq!((weight.value(), weight.zero()), (4, None));
        assert_eq!(weight.plan(0), Some(4));
        let (_, why) = weight.zero().expect("it is 0");
        assert_eq!(why, "weight 0 in the configuration");
    }
}
