//! Setting up a ring with the features of this kernel, or the obstacle in words.

use std::thread;

use io_uring::{Builder, IoUring};
use rustix::io::Errno;
use splice_base::obstacle::Obstacle;

use super::buffers::BufferGroup;

/// Slots for requests: as many as the events of a turn (`EVENTS_PER_TURN`), each with one request.
/// When all are in use, the ring submits them.
const REQUESTS: u32 = 256;

/// Slots for completions. The kernel keeps those that do not fit (`IORING_FEAT_NODROP`).
const COMPLETIONS: u32 = 4096;

/// The page that a short message touches; and as many as a turn of the loop takes while the other
/// directions are idle. A multishot receive fills no more than these before the loop looks.
pub(super) const MESSAGE_BUFFER_BYTES: u32 = 4 << 10;
pub(super) const MESSAGE_BUFFERS: u16 = 128;

/// A bundle takes all provided buffers: 256 KiB, as `copy` does, beyond which buffers do not fit
/// the second-level cache of common CPUs.
const BULK_BUFFER_BYTES: u32 = 64 << 10;
const BULK_BUFFERS: u16 = 4;

const MESSAGE_GROUP: u16 = 0;
const BULK_GROUP: u16 = 1;

/// Features of newer kernels that the ring can do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// `IORING_SETUP_DEFER_TASKRUN` and `IORING_SETUP_SINGLE_ISSUER`: the kernel runs completions
    /// when the loop asks for them, on its thread, and not at any system call. Linux 6.1.
    pub(super) deferred: bool,
    /// `IORING_RECV_MULTISHOT`: Linux 6.0. An older kernel answers the first one with `EINVAL`.
    pub(super) multishot: bool,
    /// `IORING_RECVSEND_BUNDLE`: one receive fills several buffers. Linux 6.10.
    pub(super) bundle: bool,
    /// `IORING_ENTER_NO_IOWAIT`: waiting for a peer does not count as waiting for a disk. Linux
    /// 6.15.
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

/// A ring and its provided buffers.
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
    // A request that fails at once does not stop the ones after it (5.18).
    builder.setup_submit_all();
    if deferred {
        builder.setup_single_issuer();
        builder.setup_defer_taskrun();
    } else {
        builder.setup_coop_taskrun();
    }
    builder.build(REQUESTS).map_err(super::errno_of)
}

/// Whether this process can create a ring with provided buffers.
///
/// It tries on a thread of its own. After a ring is closed, the kernel runs task work once more on
/// the thread that used it (`io_ring_exit_work`), which can interrupt a system call there.
///
/// # Errors
/// The obstacle.
pub(crate) fn probe() -> Result<(), Obstacle> {
    let attempt = || open(Features::ALL).map(drop);
    let thread = thread::Builder::new().spawn(attempt);
    let tried = match thread {
        Ok(thread) => thread.join().unwrap_or(Err(Errno::IO)),
        // No thread can be started.
        Err(_) => attempt(),
    };
    tried.map_err(Obstacle::of_io_uring)
}
