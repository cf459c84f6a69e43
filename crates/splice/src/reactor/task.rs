//! What an event loop runs, and how it reaches the loop.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Instant;

use rustix::event::epoll::{self, EventData};
use splice_base::error::{Result, ResultExt as _};

use super::EventLoop;
use super::local::Local;
use super::mailbox::Waker;
use super::notifier::Notifier;
use super::readiness::{Interest, Readiness};
use super::token::Key;

/// Something that an [`EventLoop`] runs: a pair, a listener, a connection being
/// established.
///
/// A task never blocks. The loop tells it what has become possible; the task does what it can and
/// returns a [`Step`]. It owns its file descriptors; they leave the loop when the task is dropped.
pub trait Task {
    /// The task is on a loop now. This is the moment to register its descriptors.
    fn start(&mut self, cx: &mut Context<'_>) -> Step;

    /// The descriptor that was registered as `source` became ready.
    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step;

    /// The deadline set with [`Context::set_deadline`] has passed.
    fn deadline_passed(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Wait
    }

    /// The task runs again after [`Step::Again`], or because a [`Waker`] was used.
    fn resume(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Wait
    }

    /// The task only waits for its deadline, and nobody waits for it:
    /// [`EventLoop::tasks`](crate::EventLoop::tasks) does not count it.
    #[doc(hidden)]
    fn is_aftermath(&self) -> bool {
        false
    }

    /// The task must end now. It is dropped afterwards.
    fn close(&mut self, _cx: &mut Context<'_>) {}
}

/// How a [`Task`] goes on.
pub enum Step {
    /// Wait for the next event.
    Wait,
    /// The task is runnable without a new event. Other tasks have their turn first.
    Again,
    /// The task continues as another one, which keeps the registrations but not the deadline.
    Become(Box<dyn Task>),
    /// The task has finished; drop it.
    Done,
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Wait => "Wait",
            Self::Again => "Again",
            Self::Become(_) => "Become",
            Self::Done => "Done",
        })
    }
}

/// How a task reaches its loop.
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

    /// Changes what a registered descriptor is watched for. Its readiness is reported again.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) when the descriptor is not registered.
    pub(crate) fn rewatch(&mut self, fd: impl AsFd, source: u8, interest: Interest) -> Result<()> {
        let data = EventData::new_u64(self.key.token(source));
        epoll::modify(&self.event_loop.epoll, fd, data, interest.flags())
            .context("cannot change what a descriptor is watched for")
    }

    /// Stops watching a descriptor.
    pub fn deregister(&mut self, fd: impl AsFd) {
        // It fails only if the descriptor is not watched, which is the goal.
        let _ = epoll::delete(&self.event_loop.epoll, fd);
    }

    /// Sets the task's deadline, or removes it with `None`. A task has at most one.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        let index = self.key.index as usize;
        match deadline {
            Some(deadline) => self.event_loop.wheel.set(index, deadline),
            None => self.event_loop.wheel.cancel(index),
        }
    }

    /// A [`Waker`], which wakes this task from other threads.
    pub fn waker(&self) -> Waker {
        Waker::new(Arc::clone(&self.event_loop.mailbox), self.key)
    }

    /// Places another task on this loop and starts it.
    pub fn spawn(&mut self, task: Box<dyn Task>) -> Waker {
        self.event_loop.spawn_in_turn(task, |_| ())
    }

    /// The task's key.
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

    /// An upper layer's state for this loop, created at the first call.
    pub(crate) fn local<T: Local + Default>(&mut self) -> &mut T {
        self.event_loop.local()
    }

    /// Tells the loop that a [`Local`] has created its poller.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if epoll cannot watch it.
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
