//! `pipe`: `splice(2)` from the socket into a pipe and from the pipe into the other socket.
//!
//! ```text
//! socket a ──splice──▶ pipe (references to pages) ──splice──▶ socket b
//! ```
//!
//! What splice(2) leaves to its caller, and how it is met here:
//!
//! - `EAGAIN` on the way in means that the socket is empty *or* that the pipe is full. It is
//!   asked only with an empty pipe, so it means the socket.
//! - A pipe has slots, not bytes: skbs of one segment each fill 16 slots with 23 KiB, and a GRO
//!   super-packet puts more bytes into a slot than the page that the slot is counted as. So the
//!   bytes are counted here, nothing is concluded from the pipe's capacity, and a short transfer
//!   says nothing about the socket.
//! - `SPLICE_F_MORE` works like `TCP_CORK`: a last short piece would wait up to 200 ms. It is
//!   never set, and the length asked for on the way out is exactly what is in the pipe, since
//!   the kernel sets the flag by itself when more is asked for (`splice_to_socket`, 6.5 on).
//! - `tcp_read_sock` stops for ever before an urgent mark; recv(2) reads past it. Where
//!   `EPOLLPRI` told of one, [`Direction`](crate::flow::Direction) reads on by `copy`, and
//!   where it arrived since, a stream seems to end at the mark: the end is confirmed by recv(2).
//! - Pipes are charged to the user (`fs.pipe-user-pages-soft`): beyond it new pipes are cut to
//!   two pages. This process uses at most half of it, so that others have theirs.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use rustix::param::page_size;
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};
use splice_base::obstacle::Obstacle;

use super::{Carrier, ReadOutcome};

/// The capacity that is asked for, and the most that a pipe is given to hold, in bytes:
/// `fs.pipe-max-size` as it is by default, which no privilege is needed for.
pub(crate) const CAPACITY_BYTES: usize = 1 << 20;

/// How many empty pipes a loop keeps: a turn uses one at a time, and making one costs two system
/// calls and the allocation of its slots. No more, since what a loop keeps the others cannot have.
const KEPT: usize = 1;

/// The pages that all pipes of this process may be charged with, as far as it has any say.
#[derive(Debug)]
struct Budget {
    pages: AtomicUsize,
    most_pages: usize,
}

impl Budget {
    fn of_process() -> &'static Self {
        static BUDGET: OnceLock<Budget> = OnceLock::new();
        BUDGET.get_or_init(|| {
            // 0 switches the kernel's limit off (pipe(7)); an unreadable file is taken as the
            // default of 16384.
            let soft_pages = std::fs::read_to_string("/proc/sys/fs/pipe-user-pages-soft")
                .ok()
                .and_then(|text| text.trim().parse().ok())
                .unwrap_or(16384);
            let most_pages = if soft_pages == 0 {
                usize::MAX
            } else {
                soft_pages / 2
            };
            Self {
                pages: AtomicUsize::new(0),
                most_pages,
            }
        })
    }

    fn take(&self, pages: usize) -> bool {
        self.pages
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |taken| {
                taken
                    .checked_add(pages)
                    .filter(|sum| *sum <= self.most_pages)
            })
            .is_ok()
    }

    fn give_back(&self, pages: usize) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}

/// The empty pipes that a loop has to hand out.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    free: Vec<Pipe>,
}

impl Pipes {
    /// An empty pipe, or `EMFILE` and the like, or `ENOBUFS` when the budget is used up.
    pub(crate) fn take(&mut self) -> Result<Pipe, Errno> {
        match self.free.pop() {
            Some(pipe) => Ok(pipe),
            None => Pipe::new(),
        }
    }

    pub(crate) fn give_back(&mut self, pipe: Pipe) {
        if self.free.len() < KEPT && pipe.held == 0 {
            self.free.push(pipe);
        }
    }
}

/// A pipe and what is in it.
#[derive(Debug)]
pub(crate) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    held: usize,
    charged_pages: usize,
}

impl Pipe {
    fn new() -> Result<Self, Errno> {
        let budget = Budget::of_process();
        let wanted_pages = CAPACITY_BYTES / page_size();
        if !budget.take(wanted_pages) {
            return Err(Errno::NOBUFS);
        }
        match pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK) {
            Err(errno) => {
                budget.give_back(wanted_pages);
                Err(errno)
            }
            Ok((read, write)) => {
                // Refused when the user's budget is used up by others; a smaller pipe works too.
                let _ = fcntl_setpipe_size(&write, CAPACITY_BYTES);
                let bytes = fcntl_getpipe_size(&write).unwrap_or(CAPACITY_BYTES);
                let charged_pages = (bytes / page_size()).min(wanted_pages);
                budget.give_back(wanted_pages - charged_pages);
                Ok(Self {
                    read,
                    write,
                    held: 0,
                    charged_pages,
                })
            }
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        Budget::of_process().give_back(self.charged_pages);
    }
}

/// Whether this process can have a pipe at all.
///
/// # Errors
/// What is in the way.
pub(crate) fn probe() -> Result<(), Obstacle> {
    let (reason, remedy) = match Pipe::new() {
        Ok(_) => return Ok(()),
        Err(Errno::NOBUFS) => (
            "half of the pages that fs.pipe-user-pages-soft allows for pipes are in use".into(),
            "raise it".into(),
        ),
        Err(errno) => (
            format!("a pipe cannot be made: {errno}"),
            match errno {
                Errno::NFILE => {
                    "raise fs.file-max, or fs.pipe-user-pages-hard where it is set".into()
                }
                _ => Obstacle::too_many_files().remedy,
            },
        ),
    };
    Err(Obstacle { reason, remedy })
}

/// What a new pipe can hold, in bytes: less than [`CAPACITY_BYTES`] where the user has none to spare.
pub(crate) fn capacity_bytes() -> Result<usize, Errno> {
    Pipe::new().map(|pipe| pipe.charged_pages * page_size())
}

/// `tcp_splice_read` says 0 at the end of the stream, and before an urgent mark as soon as the
/// end has arrived behind it (it looks at `RCV_SHUTDOWN`, not at its queue).
fn behind_zero(source: BorrowedFd<'_>) -> Result<ReadOutcome, Errno> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(source, &mut [0u8; 1], flags) {
        Ok((0, _)) => Ok(ReadOutcome::EndOfStream),
        Ok(_) => Ok(ReadOutcome::UrgentMark),
        Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
        Err(errno) => Err(errno),
    }
}

impl Carrier for Pipe {
    fn fill(&mut self, source: BorrowedFd<'_>, at_most: usize) -> Result<ReadOutcome, Errno> {
        debug_assert_eq!(self.held, 0, "EAGAIN would be ambiguous");
        let wanted = at_most.min(CAPACITY_BYTES);
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        match splice(source, None, &self.write, None, wanted, flags) {
            Ok(0) => behind_zero(source),
            Ok(count) => {
                self.held = count;
                Ok(ReadOutcome::Bytes(count))
            }
            Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
            Err(errno) => Err(errno),
        }
    }

    fn drain(&mut self, destination: BorrowedFd<'_>) -> Result<usize, Errno> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let count = splice(&self.read, None, destination, None, self.held, flags)?;
        self.held -= count;
        Ok(count)
    }

    fn held(&self) -> usize {
        self.held
    }
}
