//! Bytes on their way from one socket to another, through a pipe.
//!
//! ```text
//!          stop()                  the pipe is empty
//! reading ────────▶ writing only ───────────────────▶ over
//!    │ the source has ended or has an urgent byte; an error       ▲
//!    └────────────────────────────────────────────────────────────┘
//! ```
//!
//! A byte is in a socket or in the pipe at each moment, and never in this process's memory, so another process that holds
//! them can go on after this one. splice(2) moves a byte from one to the other in one piece, also if the process is killed
//! in it: the pipe is filled before the socket forgets the bytes, under the socket's lock (`tcp_read_sock`), and emptied
//! when the socket has taken them (`splice_to_socket`, Linux 6.18). Only an urgent byte of the owner goes through memory.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Context, Result};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{SpliceFlags, splice};
use splice_base::socket_option;

use super::pipe::{CAPACITY_BYTES, Pipe};

/// The room that a send buffer must have beyond what is put into the pipe, so that the destination takes it all. Each
/// packet is charged some 1.3 KiB of its own (`tcp_stream_alloc_skb`).
const MARGIN_BYTES: usize = 64 << 10;

/// What is put into the pipe at least once the destination takes bytes at all.
const LEAST_BYTES: usize = 4 << 10;

/// With less room it is better to wait for the destination.
const WORTHWHILE_BYTES: usize = 16 << 10;

/// Why a flow is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It was stopped.
    Stopped,
    /// The source's stream has ended.
    OfStream,
    /// The source has an urgent byte, past which splice(2) does not go.
    Urgent,
    /// The source has failed.
    Source(Errno),
    /// The destination has failed, and a write has taken its error.
    Destination(Errno),
    /// The connection of the destination is over, and the error is still there.
    DestinationGone,
}

/// A thread that moves bytes.
#[derive(Debug)]
pub(super) struct Flow {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Locked while it reads.
    reads: Mutex<bool>,
    /// Readable from [`Flow::stop`] on.
    stop: OwnedFd,
    moved_bytes: AtomicU64,
}

struct Mover {
    source: OwnedFd,
    pipe: Pipe,
    destination: OwnedFd,
    passes_on_urgent: bool,
    shared: Arc<Shared>,
}

impl Flow {
    /// Moves what is in the pipe, and then what arrives on the source. `on_end` is called at the end.
    ///
    /// # Errors
    /// Without a free descriptor or thread.
    pub(super) fn start(
        ends: [&OwnedFd; 2],
        pipe: &Pipe,
        passes_on_urgent: bool,
        on_end: impl FnOnce(End) + Send + 'static,
    ) -> Result<Self> {
        Self::begin(ends, pipe, passes_on_urgent, true, on_end)
    }

    /// Moves only what is in the pipe.
    ///
    /// # Errors
    /// Without a free descriptor or thread.
    pub(super) fn drain(ends: [&OwnedFd; 2], pipe: &Pipe) -> Result<Self> {
        Self::begin(ends, pipe, false, false, drop)
    }

    fn begin(
        [source, destination]: [&OwnedFd; 2],
        pipe: &Pipe,
        passes_on_urgent: bool,
        reads: bool,
        on_end: impl FnOnce(End) + Send + 'static,
    ) -> Result<Self> {
        const CANNOT: &str = "cannot begin to move bytes";
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).context(CANNOT)?;
        let shared = Arc::new(Shared {
            reads: Mutex::new(reads),
            stop,
            moved_bytes: AtomicU64::new(0),
        });
        let mover = Mover {
            source: source.try_clone().context(CANNOT)?,
            pipe: pipe.try_clone().context(CANNOT)?,
            destination: destination.try_clone().context(CANNOT)?,
            passes_on_urgent,
            shared: Arc::clone(&shared),
        };
        thread::Builder::new()
            .name("flow".into())
            .spawn(move || on_end(mover.run()))
            .context(CANNOT)?;
        Ok(Self { shared })
    }

    /// Has it read nothing more, from this call's return on. What is in the pipe still goes to the destination.
    pub(super) fn stop(&self) {
        let mut reads = self
            .shared
            .reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *reads = false;
        // It fails only if it is readable already.
        let _ = rustix::io::write(&self.shared.stop, &1u64.to_ne_bytes());
    }

    /// What the destination has got.
    pub(super) fn moved_bytes(&self) -> u64 {
        self.shared.moved_bytes.load(Ordering::Acquire)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How a step went.
enum Step {
    Moved,
    WaitsForSource,
    WaitsForRoom,
}

impl Mover {
    fn run(self) -> End {
        let mut held = self.pipe.held_bytes() as usize;
        loop {
            let step = if held > 0 {
                self.write(&mut held)
            } else {
                self.read(&mut held)
            };
            let waited = match step {
                Ok(Step::Moved) => Ok(()),
                Ok(Step::WaitsForSource) => self.wait_for_source(),
                Ok(Step::WaitsForRoom) => self.wait_for_room(),
                Err(end) => Err(end),
            };
            if let Err(end) = waited {
                return end;
            }
        }
    }

    fn write(&self, held: &mut usize) -> Result<Step, End> {
        // Exactly what is there: for more the kernel would wait for more to come (`splice_to_socket`).
        let flags = SpliceFlags::NONBLOCK;
        match splice(
            &self.pipe.reader,
            None,
            &self.destination,
            None,
            *held,
            flags,
        ) {
            Ok(count) => {
                *held -= count.min(*held);
                self.moved(count);
                Ok(Step::Moved)
            }
            Err(Errno::INTR) => Ok(Step::Moved),
            Err(Errno::AGAIN) => Ok(Step::WaitsForRoom),
            Err(errno) => Err(End::Destination(errno)),
        }
    }

    fn read(&self, held: &mut usize) -> Result<Step, End> {
        let reads = self
            .shared
            .reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !*reads {
            return Err(End::Stopped);
        }
        let mut room_bytes = self.room_bytes();
        if room_bytes < WORTHWHILE_BYTES {
            if !self.takes_bytes() {
                return Ok(Step::WaitsForRoom);
            }
            room_bytes = room_bytes.max(LEAST_BYTES);
        }
        let most_bytes = room_bytes.min(CAPACITY_BYTES);
        let flags = SpliceFlags::NONBLOCK;
        match splice(
            &self.source,
            None,
            &self.pipe.writer,
            None,
            most_bytes,
            flags,
        ) {
            Ok(0) => self.at_end_or_mark(),
            Ok(count) => {
                *held = count;
                Ok(Step::Moved)
            }
            Err(Errno::INTR) => Ok(Step::Moved),
            // The owner's urgent byte is inline, and waited for in vain.
            Err(Errno::AGAIN) if self.passes_on_urgent => self.at_end_or_mark(),
            Err(Errno::AGAIN) => Ok(Step::WaitsForSource),
            Err(errno) => Err(End::Source(errno)),
        }
    }

    /// Before an urgent byte splice(2) says the same as at the end, or as without any byte.
    fn at_end_or_mark(&self) -> Result<Step, End> {
        let mut byte = [0];
        let peek = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match recv(&self.source, &mut byte[..], peek) {
            Ok((0, _)) => return Err(End::OfStream),
            Ok(_) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::WaitsForSource),
            Err(errno) => return Err(End::Source(errno)),
        }
        if !self.passes_on_urgent {
            return Err(End::Urgent);
        }
        if !socket_option::is_at_mark(&self.source).unwrap_or(false) {
            // It has just arrived.
            return Ok(Step::Moved);
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL | SendFlags::OOB;
        match send(&self.destination, &byte, flags) {
            Ok(_) => {}
            Err(Errno::AGAIN) => return Ok(Step::WaitsForRoom),
            Err(errno) => return Err(End::Destination(errno)),
        }
        self.moved(1);
        match recv(&self.source, &mut byte[..], RecvFlags::DONTWAIT) {
            Ok(_) => Ok(Step::Moved),
            Err(errno) => Err(End::Source(errno)),
        }
    }

    fn moved(&self, count: usize) {
        self.shared
            .moved_bytes
            .fetch_add(count as u64, Ordering::AcqRel);
    }

    /// How many bytes the destination surely takes at once.
    fn room_bytes(&self) -> usize {
        let memory = socket_option::memory(&self.destination).unwrap_or_default();
        memory
            .send_limit_bytes
            .saturating_sub(memory.send_bytes)
            .saturating_sub(MARGIN_BYTES)
    }

    fn takes_bytes(&self) -> bool {
        let mut fds = [PollFd::new(&self.destination, PollFlags::OUT)];
        poll(&mut fds, Some(&rustix::event::Timespec::default())).is_ok_and(|ready| ready > 0)
    }

    fn wait_for_source(&self) -> Result<(), End> {
        let mut watched = PollFlags::IN;
        watched.set(PollFlags::PRI, !self.passes_on_urgent);
        let mut fds = [
            PollFd::new(&self.source, watched),
            PollFd::new(&self.shared.stop, PollFlags::IN),
            // Only that it has failed.
            PollFd::new(&self.destination, PollFlags::empty()),
        ];
        wait(&mut fds)?;
        let [source, _, destination] = fds.map(|fd| fd.revents());
        if source.contains(PollFlags::PRI) {
            return Err(End::Urgent);
        }
        if destination.intersects(PollFlags::ERR | PollFlags::HUP) {
            return Err(End::DestinationGone);
        }
        Ok(())
    }

    fn wait_for_room(&self) -> Result<(), End> {
        let is_stopped = !*self
            .shared
            .reads
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut fds = [
            PollFd::new(&self.destination, PollFlags::OUT),
            PollFd::new(&self.shared.stop, PollFlags::IN),
        ];
        // Once it is stopped, it has to write all the same.
        match is_stopped {
            true => wait(&mut fds[..1]),
            false => wait(&mut fds),
        }
    }
}

fn wait(fds: &mut [PollFd<'_>]) -> Result<(), End> {
    match poll(fds, None) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(errno) => Err(End::Source(errno)),
    }
}
