//! Submitting requests, and waiting in the same call.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{EnterFlags, opcode};
use rustix::io::Errno;

use super::{CLOCK, EPOLL, Ring, errno_of};

/// How long a silent send may stay uncounted while nothing else happens, and half of how long a byte may be forgotten.
static CLOCK_TIME: Timespec = Timespec::new().nsec(50_000_000);

impl Ring {
    pub(super) fn push(&mut self, entry: Entry) {
        if !self.waiting.is_empty() {
            return self.waiting.push_back(entry);
        }
        // SAFETY: what the request names stays in place until its completion is taken: pieces and
        // headers in their `LaneState`, which `release` keeps until then, and buffer groups in the
        // `Ring`.
        let pushed = unsafe { self.uring.submission().push(&entry) };
        if pushed.is_err() {
            self.waiting.push_back(entry);
        }
    }

    /// Submits the poll of the loop's epoll instance.
    pub(super) fn watch(&mut self, epoll: BorrowedFd<'_>) {
        if !self.watches_epoll {
            self.watches_epoll = true;
            let entry = opcode::PollAdd::new(Fd(epoll.as_raw_fd()), libc::POLLIN as u32);
            self.push(entry.build().user_data(EPOLL));
        }
    }

    /// Submits the timer that bounds how long silent sends stay uncounted and bytes forgotten.
    pub(super) fn start_clock(&mut self) {
        let is_needed = !self.silent.is_empty() || !self.suspects.is_empty();
        if is_needed && !self.clock_runs {
            self.clock_runs = true;
            let entry = opcode::Timeout::new(&raw const CLOCK_TIME);
            self.push(entry.build().user_data(CLOCK));
        }
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
            // SAFETY: there is an argument if `EXT_ARG` is set, and it outlives the call.
            let entered = unsafe {
                self.uring
                    .submitter()
                    .enter(full, want, flags.bits(), arguments.as_ref())
            };
            match entered.map_err(errno_of) {
                Ok(_) if !self.waiting.is_empty() => {}
                // Requests that could not be submitted stay in the queue.
                Ok(_) | Err(Errno::TIME | Errno::INTR | Errno::AGAIN | Errno::BUSY) => {
                    return Ok(());
                }
                Err(errno) => return Err(errno),
            }
        }
    }
}
