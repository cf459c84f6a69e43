//! The loop's io_uring: who waits in it, and how long it is kept.
//!
//! ```text
//! turned by run():        it waits in the ring, where a request watches the epoll instance
//! driven by another loop: that one waits for the epoll instance, which watches an eventfd of the ring
//! ```

use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};

use super::EventLoop;
use super::token::RING_TOKEN;
use crate::engine::uring::{self, Ring};
use crate::error::{Context as _, Result};

/// How long a ring without pairs is kept: connections that come one by one would each make one,
/// which takes some 100 µs.
const RING_KEPT: Duration = Duration::from_millis(100);

/// What a wait on the ring has found out about the epoll instance.
pub(super) enum Called {
    ByNobody,
    ByEpoll,
    /// There was no such wait.
    Unknown,
}

impl EventLoop {
    /// A loop that has a ring waits in it, unless it is driven by another one: that one waits for
    /// the epoll instance, which then watches the ring.
    pub(super) fn wait_on_ring(&mut self, timeout: Option<Duration>) -> Result<Called> {
        let Some(ring) = &mut self.carriers.ring else {
            return Ok(Called::Unknown);
        };
        if self.driven {
            return Ok(Called::Unknown);
        }
        let unused = ring.is_unused();
        if unused {
            let since = *self.ring_unused_since.get_or_insert(self.now);
            if self.now.saturating_duration_since(since) >= RING_KEPT {
                self.carriers.ring = None;
                self.ring_unused_since = None;
                return Ok(Called::Unknown);
            }
        } else {
            self.ring_unused_since = None;
        }
        let timeout = match timeout {
            Some(timeout) if unused => Some(timeout.min(RING_KEPT)),
            None if unused => Some(RING_KEPT),
            other => other,
        };
        let called = ring
            .wait(self.epoll.as_fd(), timeout)
            .context("cannot wait on the event loop's io_uring")?;
        Ok(if called {
            Called::ByEpoll
        } else {
            Called::ByNobody
        })
    }

    /// The loop's ring, which the first pair that asks for it makes.
    pub(crate) fn ring(&mut self) -> Result<&mut Ring> {
        if self.carriers.ring.is_none() {
            let ring = Ring::new().map_err(uring::refusal)?;
            if let Some(time) = self.busy_poll {
                // Epoll could be told, so the kernel knows how (both are of Linux 6.9); and a ring that
                // does not poll still waits.
                let _ = ring.set_busy_poll(time);
            }
            self.carriers.ring = Some(ring);
            if self.driven {
                self.watch_ring()?;
            }
        }
        match &mut self.carriers.ring {
            Some(ring) => Ok(ring),
            None => unreachable!("it was made above"),
        }
    }

    /// From now on the epoll instance tells of the ring.
    pub(super) fn watch_ring(&mut self) -> Result<()> {
        let Some(ring) = &mut self.carriers.ring else {
            return Ok(());
        };
        let data = EventData::new_u64(RING_TOKEN);
        let flags = EventFlags::IN | EventFlags::ET;
        ring.caller()
            .and_then(|caller| epoll::add(&self.epoll, caller, data, flags))
            .context("cannot watch the event loop's io_uring")
    }
}
