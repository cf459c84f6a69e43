//! Descriptors that are kept for clients of the control socket: connections may have used up all others.

use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, dup3};

/// How many are kept: one for whoever gives orders, and two for others who ask.
const KEPT: usize = 3;

#[derive(Debug)]
pub(super) struct Reserve {
    kept: Mutex<Vec<OwnedFd>>,
    one_is_kept: Condvar,
    /// What the kept ones are copies of.
    model: OwnedFd,
}

impl Reserve {
    /// # Errors
    /// If there is no descriptor.
    pub(super) fn filled() -> rustix::io::Result<Self> {
        let reserve = Self {
            kept: Mutex::default(),
            one_is_kept: Condvar::new(),
            model: eventfd(0, EventfdFlags::CLOEXEC)?,
        };
        reserve.fill();
        Ok(reserve)
    }

    /// Gives one up for the next descriptor of this process, as soon as one is kept, but waits no longer than `within`.
    pub(super) fn give_up(&self, within: Duration) {
        let is_empty = |kept: &mut Vec<OwnedFd>| kept.is_empty();
        let waited = self
            .one_is_kept
            .wait_timeout_while(self.kept(), within, is_empty);
        let (mut kept, _) = waited.unwrap_or_else(PoisonError::into_inner);
        kept.pop();
    }

    /// Closes `ended`, or keeps its number without a moment in which another thread could take that.
    pub(super) fn take(&self, mut ended: OwnedFd) {
        let mut kept = self.kept();
        if kept.len() < KEPT && dup3(&self.model, &mut ended, DupFlags::CLOEXEC).is_ok() {
            kept.push(ended);
            self.one_is_kept.notify_one();
        }
    }

    /// Replaces what others have taken, as far as there are descriptors.
    pub(super) fn fill(&self) {
        let mut kept = self.kept();
        while kept.len() < KEPT
            && let Ok(another) = self.model.try_clone()
        {
            kept.push(another);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_number_of_what_has_ended_is_kept_and_what_is_too_much_is_closed() {
        let reserve = Reserve::filled().expect("descriptors");
        reserve.give_up(Duration::ZERO);
        let (ended, peer) = UnixStream::pair().expect("connected");
        let number = ended.as_raw_fd();
        reserve.take(ended.into());
        let numbers = || {
            let kept = reserve.kept();
            kept.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>()
        };
        assert_eq!(numbers().len(), KEPT);
        assert!(numbers().contains(&number));
        reserve.take(peer.into());
        reserve.fill();
        assert_eq!(numbers().len(), KEPT);
        for left in [2, 1, 0, 0] {
            reserve.give_up(Duration::ZERO);
            assert_eq!(numbers().len(), left);
        }
        reserve.fill();
        assert_eq!(numbers().len(), KEPT);
    }
}
