//! Descriptors that are kept for what has to be opened when connections have used up all others.

use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{DupFlags, Errno, dup3, fcntl_dupfd_cloexec};

use crate::shortage::is_of_descriptors;

/// How many are kept: the two links of a program on a device, and two that other threads may take meanwhile.
const KEPT: usize = 4;

/// A reserve of descriptors, which any thread may use.
#[derive(Debug)]
pub struct Reserve {
    kept: Mutex<Vec<OwnedFd>>,
    /// What the kept ones are copies of.
    model: OwnedFd,
}

impl Reserve {
    /// # Errors
    /// If there are no descriptors.
    pub fn filled() -> Result<Self, Errno> {
        let reserve = Self {
            kept: Mutex::default(),
            model: eventfd(0, EventfdFlags::CLOEXEC)?,
        };
        reserve.try_fill()?;
        Ok(reserve)
    }

    /// Opens something, with a descriptor of the reserve if there is no other. It is asked again for as long as one is kept:
    /// another thread may be faster.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn lend<T>(&self, mut open: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
        loop {
            match open() {
                Err(errno) if is_of_descriptors(errno) && self.give_up() => {}
                done => return done,
            }
        }
    }

    /// Gives one up for the next descriptor of this process. Returns whether one was kept.
    pub fn give_up(&self) -> bool {
        self.kept().pop().is_some()
    }

    /// Closes what was opened with [`lend`](Self::lend), and keeps its number without a moment in which another thread could
    /// take that.
    pub fn take(&self, mut ended: OwnedFd) {
        let mut kept = self.kept();
        if kept.len() < KEPT && dup3(&self.model, &mut ended, DupFlags::CLOEXEC).is_ok() {
            kept.push(ended);
        }
    }

    /// Replaces what was given up, as far as there are descriptors.
    pub fn fill(&self) {
        let _ = self.try_fill();
    }

    fn try_fill(&self) -> Result<(), Errno> {
        let mut kept = self.kept();
        while kept.len() < KEPT {
            kept.push(fcntl_dupfd_cloexec(&self.model, 0)?);
        }
        Ok(())
    }

    fn kept(&self) -> MutexGuard<'_, Vec<OwnedFd>> {
        // Every change is complete before anything can panic.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn a_descriptor_of_the_reserve_is_lent_if_there_is_no_other() {
        let reserve = Reserve::filled().expect("descriptors");
        let mut failures = 0;
        let opened = reserve.lend(|| {
            failures += 1;
            match failures {
                1 => Err(Errno::MFILE),
                2 => Err(Errno::NFILE),
                _ => eventfd(0, EventfdFlags::CLOEXEC),
            }
        });
        assert_eq!(reserve.kept().len(), KEPT - 2);
        let opened = opened.expect("opened");
        let number = opened.as_raw_fd();
        reserve.take(opened);
        let numbers: Vec<_> = reserve.kept().iter().map(|one| one.as_raw_fd()).collect();
        assert!(numbers.len() == KEPT - 1 && numbers.contains(&number));
        reserve.fill();
        assert_eq!(reserve.kept().len(), KEPT);
        reserve.take(eventfd(0, EventfdFlags::CLOEXEC).expect("opened"));
        assert_eq!(reserve.kept().len(), KEPT);
    }

    #[test]
    fn who_finds_the_reserve_empty_hears_so() {
        let reserve = Reserve::filled().expect("descriptors");
        let mut tries = 0;
        let refused = reserve.lend(|| {
            tries += 1;
            Err::<(), _>(Errno::MFILE)
        });
        assert_eq!((refused, tries), (Err(Errno::MFILE), KEPT + 1));
        reserve.fill();
        let other = reserve.lend(|| Err::<(), _>(Errno::NOMEM));
        assert_eq!((other, reserve.kept().len()), (Err(Errno::NOMEM), KEPT));
    }
}
