//! The ring as a second poller of its loop.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::types::Napi;
use rustix::event::{EventfdFlags, eventfd};
use splice_base::error::{Result, ResultExt as _};

use super::{Ring, errno_of};
use crate::reactor::{Key, Poller, Readiness};

impl Poller for Ring {
    /// Submits, and waits for a completion on a lane or for the loop's epoll instance.
    fn wait(&mut self, epoll: BorrowedFd<'_>, timeout: Option<Duration>) -> Result<bool> {
        self.watch(epoll);
        self.start_clock();
        let want = u32::from(timeout != Some(Duration::ZERO));
        self.enter(want, timeout.filter(|_| want > 0))
            .context("cannot wait on the event loop's io_uring")?;
        self.take_completions();
        Ok(std::mem::take(&mut self.epoll_has_events))
    }

    /// Submits, and takes what has completed.
    fn turn(&mut self) -> Result<()> {
        self.start_clock();
        self.enter(0, None)
            .context("cannot use the event loop's io_uring")?;
        self.take_completions();
        Ok(())
    }

    /// A descriptor whose edges report that [`turn`](Poller::turn) has completions to take. The
    /// ring's own descriptor does not report deferred task work: the kernel does not wake those who
    /// poll it (`io_req_local_work_add`, 6.18).
    fn notifier(&mut self) -> Result<BorrowedFd<'_>> {
        let caller = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .context("cannot create an eventfd for the event loop's io_uring")?;
        let registered = self.uring.submitter().register_eventfd(caller.as_raw_fd());
        registered.context("cannot watch the event loop's io_uring")?;
        let caller: &OwnedFd = self.eventfd.insert(caller);
        Ok(caller.as_fd())
    }

    /// Makes the ring poll the devices of its sockets for up to `time` before it sleeps
    /// (`io_napi_busy_loop`, Linux 6.9 on).
    fn set_busy_poll(&self, time: Duration) -> Result<()> {
        let microseconds = time.as_micros().try_into().unwrap_or(u32::MAX);
        let mut napi = Napi::new().set_busy_poll_timeout(microseconds);
        let registered = self.uring.submitter().register_napi(&mut napi);
        registered
            .map_err(errno_of)
            .context("cannot make io_uring poll the device")
    }

    fn next_event(&mut self) -> Option<(Key, u8, Readiness)> {
        while let Some(&index) = self.ready.front() {
            if let Some(pair) = self.lanes.0.get_mut(index) {
                for socket in [0, 1] {
                    let event = std::mem::replace(&mut pair.events[socket], Readiness::NONE);
                    if event != Readiness::NONE {
                        return Some((pair.key, socket as u8, event));
                    }
                }
                pair.queued = false;
            }
            self.ready.pop_front();
        }
        None
    }

    fn has_events(&self) -> bool {
        !self.ready.is_empty()
    }

    fn is_unused(&self) -> bool {
        self.lanes.0.is_empty()
    }
}
