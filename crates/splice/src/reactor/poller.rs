//! A second poller beside epoll, which an upper layer brings along (`carrier/uring`).
//!
//! ```text
//! turned by run():        the loop waits in the poller, which watches the epoll instance
//! driven by another loop: that one waits for the epoll instance, which watches a descriptor of the poller
//! ```

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use splice_base::error::{Result, ResultExt as _};

use super::EventLoop;
use super::readiness::Readiness;
use super::token::{Key, POLLER_TOKEN};

/// Waits for its own events and for those of an epoll instance.
pub(crate) trait Poller {
    /// Waits for an event for at most `timeout`. True if the epoll instance has events.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System) if the system call fails.
    fn wait(&mut self, epoll: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool>;

    /// Submits and collects without waiting.
    fn turn(&mut self) -> Result<()>;

    /// A descriptor that becomes readable when there are events.
    fn notifier(&mut self) -> Result<BorrowedFd<'_>>;

    /// As [`EventLoop::set_busy_poll`].
    fn set_busy_poll(&self, time: Duration) -> Result<()>;

    /// The next event: its task, which of its sockets, and the readiness.
    fn next_event(&mut self) -> Option<(Key, u8, Readiness)>;

    fn has_events(&self) -> bool;

    /// Whether no task uses it.
    fn is_unused(&self) -> bool;
}

/// How long an unused poller is kept. Otherwise connections that come one by one would each create
/// one, which takes some 100 µs for an io_uring.
const KEPT: Duration = Duration::from_millis(100);

/// What a wait in the poller says about the epoll instance.
pub(super) enum EpollEvents {
    None,
    Pending,
    /// The loop did not wait in a poller.
    Unknown,
}

impl EventLoop {
    pub(super) fn wait_in_poller(&mut self, timeout: Option<Duration>) -> Result<EpollEvents> {
        if self.driven {
            return Ok(EpollEvents::Unknown);
        }
        let Some(poller) = self.locals.poller() else {
            return Ok(EpollEvents::Unknown);
        };
        let mut timeout = timeout;
        if poller.is_unused() {
            let since = *self.poller_unused_since.get_or_insert(self.now);
            if self.now.saturating_duration_since(since) >= KEPT {
                self.locals.drop_poller();
                self.poller_unused_since = None;
                return Ok(EpollEvents::Unknown);
            }
            timeout = Some(timeout.map_or(KEPT, |timeout| timeout.min(KEPT)));
        } else {
            self.poller_unused_since = None;
        }
        Ok(match poller.wait(self.epoll.as_fd(), timeout)? {
            true => EpollEvents::Pending,
            false => EpollEvents::None,
        })
    }

    pub(super) fn next_from_poller(&mut self) -> Option<(Key, u8, Readiness)> {
        self.locals.poller()?.next_event()
    }

    /// An upper layer has created a poller.
    pub(super) fn poller_added(&mut self) -> Result<()> {
        if let (Some(time), Some(poller)) = (self.busy_poll, self.locals.poller()) {
            // epoll accepted the setting, so the kernel supports it (both are of Linux 6.9). A
            // poller without it still waits.
            let _ = poller.set_busy_poll(time);
        }
        if self.driven {
            self.watch_poller()?;
        }
        Ok(())
    }

    /// Registers the poller with the epoll instance.
    pub(super) fn watch_poller(&mut self) -> Result<()> {
        let Some(poller) = self.locals.poller() else {
            return Ok(());
        };
        let data = EventData::new_u64(POLLER_TOKEN);
        let flags = EventFlags::IN | EventFlags::ET;
        let notifier = poller.notifier()?;
        epoll::add(&self.epoll, notifier, data, flags)
            .context("cannot watch the event loop's second poller")
    }
}
