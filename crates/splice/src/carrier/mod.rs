//! Carriers: how user space moves a direction's bytes.
//!
//! A carrier has two steps: `fill` reads at most so many bytes (not zero) from the source, with
//! nothing in flight, and `drain` writes what is in flight to the destination and returns how many
//! bytes it took, or `EAGAIN`. Some write in the first step, and report it in the second.
//! [`Direction`](crate::direction::Direction) drives all of them in the same way.

pub(crate) mod aio;
pub(crate) mod buffer;
mod copy;
pub(crate) mod datagram;
pub(crate) mod message;
pub(crate) mod peek;
pub(crate) mod pipe;
pub(crate) mod uring;

use rustix::io::Errno;
use splice_base::error::Result;
use splice_base::obstacle::Obstacle;

use self::uring::{Lane, Ring};
use crate::name::EngineName;
use crate::reactor::{Context, Local, Poller};

/// What a read from the source has returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// This many bytes; the source may have more.
    Bytes(usize),
    /// This many bytes; the source is empty after them, unless EOF or an urgent mark follows.
    LastBytes(usize),
    /// Nothing, for now.
    Empty,
    /// Nothing: an urgent mark is next, which only recv(2) gets past.
    UrgentMark,
    /// EOF.
    EndOfStream,
    /// Nothing: the next datagram is larger than what the read may take.
    OverLimit,
    /// Nothing: the destination has not taken it, to which the read would have written at once.
    NotTaken(Errno),
}

impl ReadOutcome {
    /// The outcome of a read of a socket that asked for `wanted` bytes.
    pub(crate) fn of_read(count: usize, wanted: usize) -> Self {
        match count {
            0 => Self::EndOfStream,
            count if count < wanted => Self::LastBytes(count),
            count => Self::Bytes(count),
        }
    }
}

/// What the pairs of one loop share: carriers that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    pub(crate) buffers: buffer::Buffers,
    pub(crate) pipes: pipe::Pipes,
    /// Created for the first pair of the engine `aio`, and kept: see there.
    pub(crate) aio: Option<aio::AioContext>,
    /// Exists while there are pairs of the engine `uring`, and a little longer.
    pub(crate) ring: Option<Ring>,
    pairs: usize,
}

impl Carriers {
    /// Counts a pair that begins to use carriers.
    pub(crate) fn enter(&mut self) {
        self.pairs += 1;
    }

    /// Counts a pair that has returned its carriers. After the last one, no buffer or pipe is kept,
    /// whatever other tasks the loop has: pipes are scarce for the whole user.
    pub(crate) fn leave(&mut self) {
        self.pairs -= 1;
        if self.pairs == 0 {
            *self = Self {
                aio: self.aio.take(),
                ring: self.ring.take(),
                ..Self::default()
            };
        }
    }

    /// Creates the loop's AIO context, unless it exists.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) if there can be none.
    pub(crate) fn prepare_aio(&mut self) -> Result<()> {
        if self.aio.is_none() {
            let context = aio::AioContext::new();
            self.aio = Some(context.map_err(|obstacle| EngineName::Aio.unavailable(obstacle))?);
        }
        Ok(())
    }
}

impl Local for Carriers {
    fn poller(&mut self) -> Option<&mut dyn Poller> {
        self.ring.as_mut().map(|ring| ring as _)
    }

    fn drop_poller(&mut self) {
        self.ring = None;
    }
}

impl Context<'_> {
    /// The carriers of this loop.
    pub(crate) fn carriers(&mut self) -> &mut Carriers {
        self.local()
    }

    /// The task's lanes on the loop's ring, one per direction.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) if no ring can be created.
    pub(crate) fn lanes(&mut self) -> Result<[Lane; 2]> {
        let key = self.key();
        let unavailable = |errno| EngineName::Uring.unavailable(Obstacle::of_io_uring(errno));
        if self.carriers().ring.is_none() {
            self.carriers().ring = Some(Ring::new().map_err(unavailable)?);
            if let Err(error) = self.poller_added() {
                // The next pair tries again, instead of waiting in a ring that nobody watches.
                self.carriers().ring = None;
                return Err(error);
            }
        }
        let ring = self.carriers().ring.as_mut();
        ring.map(|ring| ring.open_lanes(key))
            .ok_or_else(|| unavailable(Errno::NODEV))
    }
}
