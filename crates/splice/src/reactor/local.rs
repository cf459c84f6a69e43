//! State that upper layers keep once per loop.

use std::any::Any;
use std::fmt;

use super::poller::Poller;

/// State that exists once per loop for all of its tasks, found by its type
/// ([`Context::local`](super::Context::local)).
pub(crate) trait Local: Any {
    /// A second poller beside epoll, if this has one.
    fn poller(&mut self) -> Option<&mut dyn Poller> {
        None
    }

    /// Drops the poller, which no task uses any more.
    fn drop_poller(&mut self) {}

    /// The last task has left the loop.
    fn emptied(&mut self) {}
}

/// The locals of a loop. A linear search is cheaper than a hash for the one or two that exist.
#[derive(Default)]
pub(super) struct Locals(Vec<Box<dyn Local>>);

impl Locals {
    pub(super) fn get<T: Local + Default>(&mut self) -> &mut T {
        let mut locals = self.0.iter();
        let found = locals.position(|local| (local.as_ref() as &dyn Any).is::<T>());
        let index = found.unwrap_or_else(|| {
            self.0.push(Box::new(T::default()));
            self.0.len() - 1
        });
        let local: &mut dyn Any = self.0[index].as_mut();
        match local.downcast_mut() {
            Some(local) => local,
            None => unreachable!("it was found by its type"),
        }
    }

    pub(super) fn poller(&mut self) -> Option<&mut dyn Poller> {
        self.0.iter_mut().find_map(|local| local.poller())
    }

    pub(super) fn drop_poller(&mut self) {
        self.0.iter_mut().for_each(|local| local.drop_poller());
    }

    pub(super) fn drop_poller_if_unused(&mut self) {
        if self.poller().is_some_and(|poller| poller.is_unused()) {
            self.drop_poller();
        }
    }

    pub(super) fn emptied(&mut self) {
        self.0.iter_mut().for_each(|local| local.emptied());
    }
}

impl fmt::Debug for Locals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Locals").field(&self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::time::Duration;

    use splice_base::error::Result;

    use super::*;
    use crate::reactor::{Key, Readiness};

    #[derive(Debug, Default)]
    struct Counter {
        value: u32,
        emptied: u32,
    }

    impl Local for Counter {
        fn emptied(&mut self) {
            self.emptied += 1;
        }
    }

    /// Brings a poller along.
    #[derive(Default)]
    struct WithPoller(Option<IdlePoller>);

    impl Local for WithPoller {
        fn poller(&mut self) -> Option<&mut dyn Poller> {
            self.0.as_mut().map(|poller| poller as _)
        }

        fn drop_poller(&mut self) {
            self.0 = None;
        }
    }

    /// A poller without events.
    struct IdlePoller {
        is_unused: bool,
    }

    impl Poller for IdlePoller {
        fn wait(&mut self, _: BorrowedFd<'_>, _: Option<Duration>) -> Result<bool> {
            Ok(false)
        }

        fn turn(&mut self) -> Result<()> {
            Ok(())
        }

        fn notifier(&mut self) -> Result<BorrowedFd<'_>> {
            unreachable!("no other loop drives this one")
        }

        fn set_busy_poll(&self, _: Duration) -> Result<()> {
            Ok(())
        }

        fn next_event(&mut self) -> Option<(Key, u8, Readiness)> {
            None
        }

        fn has_events(&self) -> bool {
            false
        }

        fn is_unused(&self) -> bool {
            self.is_unused
        }
    }

    #[test]
    fn each_type_has_one_value_that_keeps_its_state() {
        let mut locals = Locals::default();
        locals.get::<Counter>().value = 7;
        locals.get::<WithPoller>();
        assert_eq!(locals.get::<Counter>().value, 7);
        assert_eq!(locals.0.len(), 2);
    }

    #[test]
    fn every_local_learns_that_the_loop_is_empty() {
        let mut locals = Locals::default();
        locals.emptied();
        locals.get::<WithPoller>();
        locals.get::<Counter>();
        locals.emptied();
        assert_eq!(locals.get::<Counter>().emptied, 1);
    }

    #[test]
    fn the_poller_is_found_and_dropped_once_it_is_unused() {
        let mut locals = Locals::default();
        assert!(locals.poller().is_none());
        locals.get::<Counter>();
        locals.get::<WithPoller>();
        assert!(locals.poller().is_none(), "it has none yet");
        locals.get::<WithPoller>().0 = Some(IdlePoller { is_unused: false });
        locals.drop_poller_if_unused();
        assert!(locals.poller().is_some(), "a task uses it");
        locals.get::<WithPoller>().0 = Some(IdlePoller { is_unused: true });
        locals.drop_poller_if_unused();
        assert!(locals.poller().is_none());
        // The local itself stays.
        assert_eq!(locals.0.len(), 2);
    }
}
