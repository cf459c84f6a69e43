//! Shortages of descriptors, memory or buffers: they may be over a moment later, and say nothing about what was asked for.

use std::time::{Duration, Instant};

use rustix::io::Errno;

/// How long the answer to a question counts that cannot be asked again during a shortage.
const LONGEST: Duration = Duration::from_secs(5);

/// Whether a system call has failed for want of something that may be there a moment later.
pub fn is_shortage(errno: Errno) -> bool {
    is_of_descriptors(errno) || matches!(errno, Errno::NOMEM | Errno::NOBUFS | Errno::AGAIN)
}

/// Whether the process or the host has no descriptor left.
pub fn is_of_descriptors(errno: Errno) -> bool {
    matches!(errno, Errno::MFILE | Errno::NFILE)
}

/// A question that is asked time and again, and what a shortage does to it.
#[derive(Debug, Default)]
pub struct Shortage {
    since: Option<Instant>,
}

impl Shortage {
    /// A shortage keeps the question from being asked. Whether the last answer still counts.
    pub fn bears(&mut self, now: Instant) -> bool {
        now < *self.since.get_or_insert(now) + LONGEST
    }

    /// The question was answered.
    pub fn end(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_is_borne_for_a_while_each_time() {
        let mut shortage = Shortage::default();
        let began = Instant::now();
        let soon = began + LONGEST - Duration::from_millis(1);
        assert!(shortage.bears(began) && shortage.bears(soon));
        assert!(!shortage.bears(began + LONGEST));
        shortage.end();
        assert!(shortage.bears(began + LONGEST));
    }

    #[test]
    fn what_is_forbidden_is_no_shortage() {
        for errno in [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::AGAIN,
        ] {
            assert!(is_shortage(errno), "{errno}");
        }
        for errno in [Errno::PERM, Errno::ACCESS, Errno::NODEV, Errno::INVAL] {
            assert!(!is_shortage(errno), "{errno}");
        }
    }
}
