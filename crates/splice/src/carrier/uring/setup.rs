//! Making a ring: with what this kernel has, and in words where it has not enough.

use std::thread;

use io_uring::{Builder, IoUring};
use rustix::io::Errno;
use splice_base::obstacle::Obstacle;

use super::buffers::BufferGroup;

/// Lanes for requests: the events that a turn of the loop takes (`EVENTS_PER_TURN`), each with one
/// request. When they are all taken the ring submits what is there.
const REQUESTS: u32 = 256;

/// Lanes for completions. What does not fit, the kernel keeps (`IORING_FEAT_NODROP`).
const COMPLETIONS: u32 = 4096;

/// The page that a short message touches, and as many as a turn of the loop takes at once with the
/// other directions idle; a multishot receive finds no more than these before it is looked at.
pub(super) const MESSAGE_BUFFER_BYTES: u32 = 4 << 10;
pub(super) const MESSAGE_BUFFERS: u16 = 128;

/// A bundle takes all that are provided: 256 KiB, as `copy` does, beyond which the buffers no longer
/// fit the second-level cache of common CPUs.
const BULK_BUFFER_BYTES: u32 = 64 << 10;
const BULK_BUFFERS: u16 = 4;

const MESSAGE_GROUP: u16 = 0;
const BULK_GROUP: u16 = 1;

/// What younger kernels have, and the ring can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// `IORING_SETUP_DEFER_TASKRUN` and `IORING_SETUP_SINGLE_ISSUER`: completions are worked on
    /// when the loop asks for them, on its thread, and not at any system call. Linux 6.1.
    pub(super) deferred: bool,
    /// `IORING_RECV_MULTISHOT`: Linux 6.0. An older kernel says `EINVAL` to the first one.
    pub(super) multishot: bool,
    /// `IORING_RECVSEND_BUNDLE`: one receive fills several buffers. Linux 6.10.
    pub(super) bundle: bool,
    /// `IORING_ENTER_NO_IOWAIT`: who waits for a peer is not counted as one that waits for a disk.
    /// Linux 6.15.
    pub(super) no_iowait: bool,
}

impl Features {
    pub(super) const ALL: Self = Self {
        deferred: true,
        multishot: true,
        bundle: true,
        no_iowait: true,
    };
}

/// A ring and the buffers that are provided to it.
pub(super) struct Opened {
    pub(super) uring: IoUring,
    pub(super) features: Features,
    pub(super) message_buffers: BufferGroup,
    pub(super) bulk_buffers: BufferGroup,
}

pub(super) fn open(wanted: Features) -> Result<Opened, Errno> {
    let (uring, deferred) = match wanted.deferred.then(|| build(true)) {
        None | Some(Err(Errno::INVAL)) => (build(false)?, false),
        Some(built) => (built?, true),
    };
    let has = uring.params();
    let group = |number, count, bytes| BufferGroup::new(&uring, number, count, bytes);
    let message_buffers = group(MESSAGE_GROUP, MESSAGE_BUFFERS, MESSAGE_BUFFER_BYTES)?;
    let bulk_buffers = group(BULK_GROUP, BULK_BUFFERS, BULK_BUFFER_BYTES)?;
    Ok(Opened {
        features: Features {
            deferred,
            bundle: wanted.bundle && has.is_feature_recvsend_bundle(),
            no_iowait: wanted.no_iowait && has.is_feature_no_iowait(),
            ..wanted
        },
        uring,
        message_buffers,
        bulk_buffers,
    })
}

fn build(deferred: bool) -> Result<IoUring, Errno> {
    let mut builder: Builder = IoUring::builder();
    builder.dontfork();
    builder.setup_cqsize(COMPLETIONS);
    // A request that fails at once does not keep the others behind it (5.18).
    builder.setup_submit_all();
    if deferred {
        builder.setup_single_issuer();
        builder.setup_defer_taskrun();
    } else {
        builder.setup_coop_taskrun();
    }
    builder.build(REQUESTS).map_err(super::errno_of)
}

/// Whether this process can have a ring with provided buffers.
///
/// It is tried on a thread of its own. When a ring is gone the kernel calls the thread that used it
/// once more (`io_ring_exit_work`), which can interrupt a system call that it waits in by then.
///
/// # Errors
/// What is in the way.
pub(crate) fn probe() -> Result<(), Obstacle> {
    let attempt = || open(Features::ALL).map(drop);
    let thread = thread::Builder::new().spawn(attempt);
    let tried = match thread {
        Ok(thread) => thread.join().unwrap_or(Err(Errno::IO)),
        // No thread is to be had.
        Err(_) => attempt(),
    };
    tried.map_err(Obstacle::of_io_uring)
}
