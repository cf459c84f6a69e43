//! How other threads reach an event loop.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use rustix::event::{EventfdFlags, epoll, eventfd};
use splice_base::error::{Error, ErrorKind, Result, ResultExt as _};

use super::EventLoop;
use super::token::Key;

/// An action for a loop's own thread.
pub(crate) type Action = Box<dyn FnOnce(&mut EventLoop) + Send>;

pub(crate) enum Message {
    Run(Action),
    Wake(Key),
    Close(Key),
    End,
}

/// The messages to one loop, and the descriptor that wakes it.
pub(crate) struct Mailbox {
    /// `None` once the loop has ended.
    messages: Mutex<Option<Vec<Message>>>,
    /// Watched by its edges: every write is an event (`eventfd_write`), and nobody has to read it.
    eventfd: OwnedFd,
    /// The loop's epoll instance.
    epoll: Arc<OwnedFd>,
}

impl Mailbox {
    pub(crate) fn new(epoll: Arc<OwnedFd>) -> Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create the event loop's eventfd")?;
        Ok(Self {
            messages: Mutex::new(Some(Vec::new())),
            eventfd,
            epoll,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Message>>> {
        // A panic cannot leave a vector of messages half updated.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a message. Returns it as an error if the loop has ended.
    pub(crate) fn post(&self, message: Message) -> std::result::Result<(), Message> {
        let first = match &mut *self.lock() {
            None => return Err(message),
            Some(messages) => {
                messages.push(message);
                messages.len() == 1
            }
        };
        if first {
            // The write fails only if the counter is full, which takes more writes than anybody makes.
            let _ = rustix::io::write(&self.eventfd, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn shut(&self) -> Vec<Message> {
        self.lock().take().unwrap_or_default()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

/// Reaches an [`EventLoop`] from any thread.
#[derive(Clone)]
pub struct Remote(Arc<Mailbox>);

impl Remote {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self(mailbox)
    }

    /// Runs `action` on the loop's thread, as its next message.
    ///
    /// # Errors
    /// [`ErrorKind::LoopEnded`] if the loop has ended; `action` is dropped.
    pub fn run(&self, action: impl FnOnce(&mut EventLoop) + Send + 'static) -> Result<()> {
        self.0.post(Message::Run(Box::new(action))).map_err(|_| {
            Error::new(
                ErrorKind::LoopEnded,
                "the event loop has ended and accepts no more actions",
            )
        })
    }

    /// Stops watching a descriptor, from any thread. The loop may still handle an event of it.
    pub(crate) fn deregister(&self, fd: BorrowedFd<'_>) {
        // It fails only if the descriptor is not watched, which is the goal.
        let _ = epoll::delete(&self.0.epoll, fd);
    }

    /// Closes a task, unless it has ended.
    pub(crate) fn close(&self, key: Key) {
        let _ = self.0.post(Message::Close(key));
    }

    /// Ends the loop: it closes its tasks, its pairs end with
    /// [`Reason::Shutdown`](crate::Reason::Shutdown), and [`EventLoop::run`] returns.
    pub fn end(&self) {
        let _ = self.0.post(Message::End);
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// Wakes or closes one task from any thread. If the task has ended, nothing happens.
#[derive(Clone)]
pub struct Waker {
    mailbox: Arc<Mailbox>,
    key: Key,
}

impl Waker {
    pub(crate) fn new(mailbox: Arc<Mailbox>, key: Key) -> Self {
        Self { mailbox, key }
    }

    /// Makes the loop call the task's [`resume`](crate::Task::resume).
    pub fn wake(&self) {
        let _ = self.mailbox.post(Message::Wake(self.key));
    }

    /// Makes the loop close and drop the task.
    pub fn close(&self) {
        let _ = self.mailbox.post(Message::Close(self.key));
    }
}

/// For layers that do not know the loop.
impl From<Waker> for std::task::Waker {
    fn from(waker: Waker) -> Self {
        Self::from(Arc::new(waker))
    }
}

impl Wake for Waker {
    fn wake(self: Arc<Self>) {
        Self::wake(&self);
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
