//! A task's way to its loop.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData};

use splice_base::error::{Context as _, Result};

use super::EventLoop;
use super::local::Local;
use super::mailbox::Waker;
use super::notifier::Notifier;
use super::readiness::Interest;
use super::task::Task;
use super::token::Key;

/// A task's way to its loop.
pub struct Context<'a> {
    pub(super) event_loop: &'a mut EventLoop,
    pub(super) key: Key,
}

impl Context<'_> {
    /// When this turn of the loop began.
    pub fn now(&self) -> Instant {
        self.event_loop.now
    }

    /// Watches a descriptor; [`Task::ready`] is called with `source`.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System), `ENOSPC` when the user's epoll watches
    /// are used up (`/proc/sys/fs/epoll/max_user_watches`).
    pub fn register(&mut self, fd: impl AsFd, source: u8, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(self.key.token(source));
        epoll::add(&self.event_loop.epoll, fd, data, interest.flags())
            .context("cannot watch a descriptor")
    }

    /// Watches a registered descriptor for something else from now on. What it is ready for is
    /// told again.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when the descriptor is not registered.
    pub(crate) fn rewatch(&mut self, fd: impl AsFd, source: u8, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(self.key.token(source));
        epoll::modify(&self.event_loop.epoll, fd, data, interest.flags())
            .context("cannot watch a descriptor for something else")
    }

    /// Stops watching a descriptor.
    pub fn deregister(&mut self, fd: impl AsFd) {
        // It can fail only when the descriptor is not watched, which is what is wanted.
        let _ = epoll::delete(&self.event_loop.epoll, fd);
    }

    /// Sets the task's one deadline, or with `None` takes it away.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        let index = self.key.index as usize;
        match deadline {
            Some(deadline) => self.event_loop.wheel.set(index, deadline),
            None => self.event_loop.wheel.cancel(index),
        }
    }

    /// A way to wake this task from other threads.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.event_loop.mailbox), self.key)
    }

    /// Places another task on this loop and starts it.
    pub fn spawn(&mut self, task: Box<dyn Task>) -> Waker {
        self.event_loop.spawn_in_turn(task, |_| ())
    }

    /// Which task this is.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// Answers a notifier on this loop, until the loop is empty.
    ///
    /// # Errors
    /// As [`register`](Self::register).
    pub(crate) fn watch_notifier(&mut self, notifier: Arc<dyn Notifier>) -> Result<()> {
        self.event_loop.watch_notifier(notifier)
    }

    /// What a layer above keeps once per loop; made when it is first asked for.
    pub(crate) fn local<T: Local + Default>(&mut self) -> &mut T {
        self.event_loop.local()
    }

    /// A [`Local`] has made its poller.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when epoll cannot watch it.
    pub(crate) fn poller_added(&mut self) -> Result<()> {
        self.event_loop.poller_added()
    }
}

impl fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
