//! How long a test waits for what has to happen.

use std::thread;
use std::time::{Duration, Instant};

/// After this a test fails. It is never the time that a test takes: a shared, busy machine may
/// need seconds for what takes a millisecond.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// For this long nothing has to happen before it is taken that nothing will. A busy machine that
/// needs longer makes a test see less, never fail.
pub(crate) const QUIET: Duration = Duration::from_millis(100);

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Waits until `condition` holds.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(LOOK_EVERY);
    }
}
