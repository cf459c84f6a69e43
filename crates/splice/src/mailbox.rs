//! How other threads reach an event loop.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Context as _, Error, ErrorKind, Result};
use crate::event_loop::{EventLoop, Key};

/// What a loop does on its own thread.
pub(crate) type Action = Box<dyn FnOnce(&mut EventLoop) + Send>;

pub(crate) enum Letter {
    Run(Action),
    Wake(Key),
    Close(Key),
    End,
}

/// Letters to one loop, and the descriptor that wakes it.
pub(crate) struct Mailbox {
    /// `None` once the loop has ended.
    letters: Mutex<Option<Vec<Letter>>>,
    bell: OwnedFd,
}

impl Mailbox {
    pub(crate) fn new() -> Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create the event loop's eventfd")?;
        Ok(Self {
            letters: Mutex::new(Some(Vec::new())),
            bell,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Letter>>> {
        // A vector of letters has no state that a panic could leave half made.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the letter back when the loop has ended.
    pub(crate) fn post(&self, letter: Letter) -> std::result::Result<(), Letter> {
        let first = match &mut *self.lock() {
            None => return Err(letter),
            Some(letters) => {
                letters.push(letter);
                letters.len() == 1
            }
        };
        if first {
            // It fails only when the counter is full, and then the loop is woken anyway.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
        Ok(())
    }

    pub(crate) fn take(&self) -> Vec<Letter> {
        let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(crate) fn shut(&self) -> Vec<Letter> {
        self.lock().take().unwrap_or_default()
    }
}

impl AsFd for Mailbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// A way to an [`EventLoop`] from any thread.
#[derive(Clone)]
pub struct Remote(Arc<Mailbox>);

impl Remote {
    pub(crate) fn new(mailbox: Arc<Mailbox>) -> Self {
        Self(mailbox)
    }

    /// Runs `action` on the loop's thread, soon.
    ///
    /// # Errors
    /// [`ErrorKind::LoopEnded`] when the loop is gone; `action` is dropped.
    pub fn run(&self, action: impl FnOnce(&mut EventLoop) + Send + 'static) -> Result<()> {
        self.0.post(Letter::Run(Box::new(action))).map_err(|_| {
            Error::new(
                ErrorKind::LoopEnded,
                "the event loop has ended and takes nothing more",
            )
        })
    }

    /// Ends the loop: its tasks are closed, its pairs end with
    /// [`Reason::Shutdown`](crate::Reason::Shutdown), and [`EventLoop::run`] returns.
    pub fn end(&self) {
        let _ = self.0.post(Letter::End);
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// Wakes or closes one task from any thread. A task that is gone ignores it.
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
        let _ = self.mailbox.post(Letter::Wake(self.key));
    }

    /// Makes the loop close and drop the task.
    pub fn close(&self) {
        let _ = self.mailbox.post(Letter::Close(self.key));
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waker")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
