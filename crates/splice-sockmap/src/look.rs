//! Looking for what comes soon.

use std::thread;
use std::time::{Duration, Instant};

/// Looks every so often until something is found, or nothing was by the deadline.
///
/// The last look begins behind the deadline: a process that has no CPU for a moment does not take what has come meanwhile for
/// missing.
pub(crate) fn look_until<T>(
    deadline: Instant,
    every: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> Option<T> {
    loop {
        let is_last = Instant::now() >= deadline;
        let found = look();
        if found.is_some() || is_last {
            return found;
        }
        thread::sleep(every);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_come_while_there_was_no_cpu_is_found() {
        let begun = Instant::now();
        let deadline = begun + Duration::from_millis(10);
        let mut looks = 0;
        let found = look_until(deadline, Duration::ZERO, || {
            looks += 1;
            if looks == 1 {
                // As a process that the scheduler keeps waiting.
                thread::sleep(Duration::from_millis(20));
                return None;
            }
            Some(looks)
        });
        assert_eq!(found, Some(2));
        let past = look_until(begun, Duration::ZERO, || None::<()>);
        assert_eq!(past, None);
    }
}
