//! How long a test waits for a condition.

use std::io::{self, ErrorKind};
use std::thread;
use std::time::{Duration, Instant};

/// A test that waits longer fails. It is far above the time that a test takes, since a busy machine may need
/// seconds for a millisecond's work.
pub const PATIENCE: Duration = Duration::from_secs(40);

const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Waits until `look` finds something.
///
/// # Panics
/// After [`PATIENCE`].
pub fn until_found<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "waited in vain until {what}");
        thread::sleep(LOOK_EVERY);
    }
}

/// Waits until `condition` holds.
///
/// # Panics
/// After [`PATIENCE`].
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_found(what, || condition().then_some(()));
}

/// Waits until `measure` returns the same value for `time`. Under load the value may change again later, so a
/// test may conclude only that something *has* happened, or that a bound has held until then.
///
/// # Panics
/// After [`PATIENCE`].
pub fn until_at_rest<T: PartialEq>(time: Duration, mut measure: impl FnMut() -> T) -> T {
    let (mut value, mut since) = (measure(), Instant::now());
    until_found("it comes to rest", || {
        let now = measure();
        if now != value {
            (value, since) = (now, Instant::now());
        }
        (since.elapsed() >= time).then_some(())
    });
    value
}

/// Calls again after an interruption. A socket call with a timeout ends with `EINTR` when the process is
/// stopped and continued, or had an io_uring, and does not restart by itself (signal(7),
/// `sock_intr_errno`).
///
/// # Errors
/// Those of `call`, but for `EINTR`.
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::uninterrupted;

    #[test]
    fn interruptions_are_not_errors() {
        let mut answers = [
            Err(ErrorKind::Interrupted),
            Err(ErrorKind::Interrupted),
            Ok(7),
            Err(ErrorKind::ConnectionReset),
        ]
        .into_iter();
        let mut call = || answers.next().expect("an answer").map_err(Error::from);
        assert_eq!(uninterrupted(&mut call).expect("a count"), 7);
        let error = uninterrupted(&mut call).expect_err("a reset");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
}
