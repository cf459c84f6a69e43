//! A second way to wait for events beside epoll, which a layer above brings along (`carrier/uring`).
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

/// Waits for events of its own, and for those of an epoll instance.
pub(crate) trait Poller {
    /// Waits for an event, at most for `timeout`. True when the epoll instance has some.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System), as the two below.
    fn wait(&mut self, epoll: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool>;

    /// Does what is to be done without waiting.
    fn turn(&mut self) -> Result<()>;

    /// A descriptor that becomes readable when there are events.
    fn notifier(&mut self) -> Result<BorrowedFd<'_>>;

    /// As [`EventLoop::set_busy_poll`].
    fn set_busy_poll(&self, time: Duration) -> Result<()>;

    /// The next event: whom it is for, which of its sockets is meant, and what is possible there.
    fn next_event(&mut self) -> Option<(Key, u8, Readiness)>;

    fn has_events(&self) -> bool;

    /// No task uses it.
    fn is_unused(&self) -> bool;
}

/// How long a poller that nobody uses is kept: connections that come one by one would each make one,
/// which takes some 100 µs for an io_uring.
const KEPT: Duration = Duration::from_millis(100);

/// What a wait has found out about the epoll instance.
pub(super) enum EpollEvents {
    None,
    Pending,
    /// There was no such wait.
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

    /// A layer above has made a poller.
    pub(super) fn poller_added(&mut self) -> Result<()> {
        if let (Some(time), Some(poller)) = (self.busy_poll, self.locals.poller()) {
            // Epoll could be told, so the kernel knows how (both are of Linux 6.9); and a poller that
            // does not poll the device still waits.
            let _ = poller.set_busy_poll(time);
        }
        if self.driven {
            self.watch_poller()?;
        }
        Ok(())
    }

    /// From now on the epoll instance tells of the poller.
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
