//! What runs on an event loop, and its way to the loop.

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

/// Something that an [`EventLoop`](crate::EventLoop) runs: a pair, a listener, a connection being
/// made.
///
/// A task never blocks. It is told what became possible, does what it can, and says with a
/// [`Step`] how to go on. It owns its file descriptors; they leave the loop when it is dropped.
pub trait Task {
    /// The task has been placed on a loop; the moment to register its descriptors.
    fn start(&mut self, cx: &mut Context<'_>) -> Step;

    /// The descriptor that was registered as `source` became ready.
    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step;

    /// The deadline set with [`Context::set_deadline`] has passed.
    fn deadline_passed(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Wait
    }

    /// Its turn has come again after [`Step::Again`], or a [`Waker`](crate::Waker) was used.
    fn resume(&mut self, _cx: &mut Context<'_>) -> Step {
        Step::Wait
    }

    /// It only waits for its time to be over, and nobody waits for it:
    /// [`EventLoop::tasks`](crate::EventLoop::tasks) does not count it.
    #[doc(hidden)]
    fn is_aftermath(&self) -> bool {
        false
    }

    /// The task has to end now; it is dropped afterwards.
    fn close(&mut self, _cx: &mut Context<'_>) {}
}

/// How a [`Task`] goes on.
pub enum Step {
    /// Nothing more can be done until something happens.
    Wait,
    /// More can be done at once; let the others have their turn first.
    Again,
    /// The task goes on as another one, which keeps this one's registrations but not its deadline.
    Become(Box<dyn Task>),
    /// The task is finished; drop it.
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
