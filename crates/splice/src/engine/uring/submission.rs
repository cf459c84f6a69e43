//! Handing requests to the kernel, and waiting in the same call.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Napi, SubmitArgs, Timespec};
use io_uring::{EnterFlags, opcode};
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{CLOCK, EPOLL, Ring, errno_of};

/// How long a silent send may stay without being counted, while nothing else happens.
static SILENT_MOST: Timespec = Timespec::new().nsec(50_000_000);

impl Ring {
    pub(super) fn push(&mut self, entry: Entry) {
        if !self.waiting.is_empty() {
            return self.waiting.push_back(entry);
        }
        // SAFETY: what the request names stays where it is until its completion was taken: pieces
        // and headers in their `Flow`, which `release` keeps until then, groups in the `Ring`.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        if pushed.is_err() {
            self.waiting.push_back(entry);
        }
    }

    /// Submits, and waits for something to happen on a lane or on the loop's epoll instance, at most
    /// for `timeout`. Tells whether the latter has called.
    pub(crate) fn wait(
        &mut self,
        epoll: BorrowedFd<'_>,
        timeout: Option<Duration>,
    ) -> Result<bool, Errno> {
        if !self.watches_epoll {
            self.watches_epoll = true;
            let entry = opcode::PollAdd::new(Fd(epoll.as_raw_fd()), libc::POLLIN as u32);
            self.push(entry.build().user_data(EPOLL));
        }
        if !self.silent.is_empty() && !self.clock_runs {
            self.clock_runs = true;
            let entry = opcode::Timeout::new(&raw const SILENT_MOST);
            self.push(entry.build().user_data(CLOCK));
        }
        let want = u32::from(timeout != Some(Duration::ZERO));
        self.enter(want, timeout.filter(|_| want > 0))?;
        self.take_completions();
        Ok(std::mem::take(&mut self.epoll_called))
    }

    /// Has the ring poll the devices of its sockets for up to `time` before it sleeps
    /// (`io_napi_busy_loop`, Linux 6.9 on).
    pub(crate) fn set_busy_poll(&self, time: Duration) -> Result<(), Errno> {
        let microseconds = time.as_micros().try_into().unwrap_or(u32::MAX);
        let mut napi = Napi::new().set_busy_poll_timeout(microseconds);
        let registered = self.uring.submitter().register_napi(&mut napi);
        registered.map_err(errno_of)
    }

    /// A descriptor on which every edge says that [`turn`](Self::turn) has something to take. The
    /// ring's own does not tell of work that was deferred to the next turn: nobody wakes those who
    /// poll it (`io_req_local_work_add`, 6.18).
    pub(crate) fn caller(&mut self) -> Result<BorrowedFd<'_>, Errno> {
        let caller = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let registered = self.uring.submitter().register_eventfd(caller.as_raw_fd());
        registered.map_err(errno_of)?;
        let caller: &OwnedFd = self.caller.insert(caller);
        Ok(caller.as_fd())
    }

    /// Submits, and takes what has completed.
    pub(crate) fn turn(&mut self) -> Result<(), Errno> {
        self.enter(0, None)?;
        self.take_completions();
        Ok(())
    }

    pub(super) fn enter(&mut self, want: u32, timeout: Option<Duration>) -> Result<(), Errno> {
        let mut flags = EnterFlags::GETEVENTS;
        if self.features.no_iowait {
            flags |= EnterFlags::NO_IOWAIT;
        }
        let time = timeout.map(Timespec::from);
        let arguments = time.as_ref().map(|time| {
            flags |= EnterFlags::EXT_ARG;
            SubmitArgs::new().timespec(time)
        });
        loop {
            let full = {
                let mut queue = self.uring.submission();
                while let Some(entry) = self.waiting.front() {
                    // SAFETY: as in `push`.
                    if unsafe { queue.push(entry) }.is_err() {
                        break;
                    }
                    self.waiting.pop_front();
                }
                queue.len() as u32
            };
            let want = if self.waiting.is_empty() { want } else { 0 };
            // SAFETY: an argument is there where `EXT_ARG` promises it, and outlives the call.
            let entered = unsafe {
                self.uring
                    .submitter()
                    .enter(full, want, flags.bits(), arguments.as_ref())
            };
            match entered.map_err(errno_of) {
                Ok(_) if !self.waiting.is_empty() => {}
                // What could not be submitted for now stays in the queue.
                Ok(_) | Err(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => {
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}
