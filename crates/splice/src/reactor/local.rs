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
