//! `pipe`: `splice(2)` from the socket into a pipe and from the pipe into the other socket.
//!
//! ```text
//! socket a ──splice──▶ pipe (references to pages) ──splice──▶ socket b
//! ```
//!
//! What splice(2) leaves to its caller, and how this file handles it:
//!
//! - `EAGAIN` on reading means that the socket is empty *or* that the pipe is full. The engine only
//!   reads into an empty pipe, so it means the socket.
//! - A pipe has slots, not bytes. skbs of one segment each fill 16 slots with 23 KiB, and a GRO
//!   super-packet puts more bytes into a slot than the page that the slot counts for. So this file
//!   counts bytes and concludes nothing from the pipe's capacity. A short transfer says nothing
//!   about the socket.
//! - `SPLICE_F_MORE` works like `TCP_CORK`: a last short piece would wait up to 200 ms. The engine
//!   never sets it, and asks for exactly the bytes in the pipe on writing, since the kernel sets
//!   the flag by itself for more (`splice_to_socket`, 6.5 on).
//! - `tcp_read_sock` stops for ever at an urgent mark; recv(2) reads past it. If `EPOLLPRI` has
//!   reported a mark, [`Direction`](crate::direction::Direction) continues with `copy`. If the mark
//!   arrives later, the stream seems to end there, so recv(2) confirms EOF.
//! - Pipes are charged to the user (`fs.pipe-user-pages-soft`). Beyond that limit the kernel cuts
//!   new pipes to two pages. This process uses at most half of it and leaves the rest to others.

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

use super::ReadOutcome;

/// The capacity that a pipe requests, and the most that it holds, in bytes: the default of
/// `fs.pipe-max-size`, which needs no privilege.
pub(crate) const CAPACITY_BYTES: usize = 1 << 20;

/// How many empty pipes a loop keeps. A turn uses one at a time, and creating one costs two system
/// calls and the allocation of its slots. Not more, since others cannot use what a loop keeps.
const KEPT: usize = 1;

/// The pages that all pipes of this process may be charged for.
#[derive(Debug)]
struct Budget {
    pages: AtomicUsize,
    most_pages: usize,
}

impl Budget {
    fn of_process() -> &'static Self {
        static BUDGET: OnceLock<Budget> = OnceLock::new();
        BUDGET.get_or_init(|| {
            // 0 turns the kernel's limit off (pipe(7)). If the file cannot be read, assume the
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

/// A loop's free pipes.
#[derive(Debug, Default)]
pub(crate) struct Pipes {
    free: Vec<Pipe>,
}

impl Pipes {
    /// An empty pipe; otherwise `EMFILE` and the like, or `ENOBUFS` if the budget is used up.
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

/// A pipe and the bytes in it.
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
                // The kernel refuses if others have used up the user's budget. A smaller pipe
                // works, too.
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

/// Whether this process can create a pipe.
///
/// # Errors
/// The obstacle.
pub(crate) fn probe() -> Result<(), Obstacle> {
    let (reason, remedy) = match Pipe::new() {
        Ok(_) => return Ok(()),
        Err(Errno::NOBUFS) => (
            "half of the pages that fs.pipe-user-pages-soft allows for pipes are in use".into(),
            "raise it".into(),
        ),
        Err(errno) => (
            format!("a pipe cannot be created: {errno}"),
            match errno {
                Errno::NFILE => "raise fs.file-max, or fs.pipe-user-pages-hard if it is set".into(),
                _ => Obstacle::too_many_files().remedy,
            },
        ),
    };
    Err(Obstacle { reason, remedy })
}

/// The capacity of a new pipe, in bytes: less than [`CAPACITY_BYTES`] if the user's budget is
/// short.
pub(crate) fn capacity_bytes() -> Result<usize, Errno> {
    Pipe::new().map(|pipe| pipe.charged_pages * page_size())
}

/// `tcp_splice_read` returns 0 at EOF, and also at an urgent mark once EOF has arrived after it: it
/// checks `RCV_SHUTDOWN`, not its queue.
fn behind_zero(source: BorrowedFd<'_>) -> Result<ReadOutcome, Errno> {
    let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
    match recv(source, &mut [0u8; 1], flags) {
        Ok((0, _)) => Ok(ReadOutcome::EndOfStream),
        Ok(_) => Ok(ReadOutcome::UrgentMark),
        Err(Errno::AGAIN) => Ok(ReadOutcome::Empty),
        Err(errno) => Err(errno),
    }
}

impl Pipe {
    pub(crate) fn fill(
        &mut self,
        source: BorrowedFd<'_>,
        at_most: usize,
    ) -> Result<ReadOutcome, Errno> {
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

    pub(crate) fn drain(&mut self, destination: BorrowedFd<'_>) -> Result<usize, Errno> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        let count = splice(&self.read, None, destination, None, self.held, flags)?;
        self.held -= count;
        Ok(count)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held == 0
    }
}
