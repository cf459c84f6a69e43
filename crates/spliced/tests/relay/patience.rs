//! How long a test waits for what has to happen.

use std::thread;
use std::time::{Duration, Instant};

/// After this a test fails. A busy machine may need seconds for what takes a millisecond, so no
/// test is meant to last as long as this.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Waits until `look` finds something.
pub(crate) fn until_found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Waits until `holds` says so.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_found(what, || holds().then_some(()));
}

/// Waits until `measure` gives the same for `time`: what it measures has come to rest. Under load
/// it may rest only seemingly, so a test may conclude from it that something *has* happened, or
/// that a bound held until then, and nothing else.
pub(crate) fn until_at_rest<T: PartialEq>(time: Duration, mut measure: impl FnMut() -> T) -> T {
    let start = Instant::now();
    let (mut value, mut since) = (measure(), start);
    while since.elapsed() < time {
        assert!(start.elapsed() < PATIENCE, "it never came to rest");
        thread::sleep(LOOK_EVERY);
        let now = measure();
        if now != value {
            (value, since) = (now, Instant::now());
        }
    }
    value
}
