//! Carriers: the ways by which user space moves a direction's bytes.
//!
//! Each takes bytes from a source into its hand and gives them to a destination. [`Direction`](crate::flow::Direction)
//! drives whichever it uses, and [`uring`]'s lanes in the same way.

pub(crate) mod aio;
pub(crate) mod buffer;
mod copy;
pub(crate) mod pipe;
pub(crate) mod uring;

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use splice_base::error::Result;
use splice_base::obstacle::Obstacle;

use self::uring::{Lane, Ring};
use crate::name::EngineName;
use crate::reactor::{Context, Local, Poller};

/// What a read from the source brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadOutcome {
    /// This many bytes are in hand now, and the source may have more.
    Bytes(usize),
    /// This many bytes are in hand now, and the source was found empty behind them, unless an
    /// end of stream or an urgent mark stands there.
    LastBytes(usize),
    /// Nothing, for now.
    Empty,
    /// Nothing: an urgent mark stands in the way, which only recv(2) gets past.
    UrgentMark,
    /// The end of the stream.
    EndOfStream,
}

impl ReadOutcome {
    /// What a read of a socket brought that asked for `wanted` bytes.
    pub(crate) fn of_read(count: usize, wanted: usize) -> Self {
        match count {
            0 => Self::EndOfStream,
            count if count < wanted => Self::LastBytes(count),
            count => Self::Bytes(count),
        }
    }
}

/// Carries bytes from a source to a destination; what it has taken and not yet given is "in
/// hand".
pub(crate) trait Carrier {
    /// Takes at most `at_most` bytes (not zero) from the source. Called with nothing in hand.
    fn fill(
        &mut self,
        source: BorrowedFd<'_>,
        at_most: usize,
    ) -> std::result::Result<ReadOutcome, Errno>;

    /// Gives bytes in hand to the destination; returns how many it took, or `EAGAIN`.
    fn drain(&mut self, destination: BorrowedFd<'_>) -> std::result::Result<usize, Errno>;

    /// How many bytes are in hand.
    fn held(&self) -> usize;
}

/// What the pairs of one loop share: the carriers that are not in use.
#[derive(Debug, Default)]
pub(crate) struct Carriers {
    pub(crate) buffers: buffer::Buffers,
    pub(crate) pipes: pipe::Pipes,
    /// Made for the first pair of the engine `aio`, and kept: see there.
    pub(crate) aio: Option<aio::AioContext>,
    /// Exists while pairs of the engine `uring` do, and a little longer.
    pub(crate) ring: Option<Ring>,
    pairs: usize,
}

impl Carriers {
    /// A pair begins to use them.
    pub(crate) fn enter(&mut self) {
        self.pairs += 1;
    }

    /// A pair has given back what it had. When it was the last one no buffer or pipe is
    /// kept, whatever other tasks the loop goes on with: pipes are a scarce good of the whole user.
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

    /// Makes what requests of the engine `aio` go through, unless the loop has it.
    ///
    /// # Errors
    /// What is in the way.
    pub(crate) fn prepare_aio(&mut self) -> std::result::Result<(), Obstacle> {
        if self.aio.is_none() {
            self.aio = Some(aio::AioContext::new()?);
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

    /// The task's place on the loop's ring: the lanes of its two directions.
    ///
    /// # Errors
    /// [`ErrorKind::EngineRefused`](crate::ErrorKind::EngineRefused) when no ring can be had.
    pub(crate) fn lanes(&mut self) -> Result<[Lane; 2]> {
        let key = self.key();
        if let Some(ring) = &mut self.carriers().ring {
            return Ok(ring.open_lanes(key));
        }
        let hindered = |errno| EngineName::Uring.hindered(Obstacle::of_io_uring(errno));
        let mut ring = Ring::new().map_err(hindered)?;
        let lanes = ring.open_lanes(key);
        self.carriers().ring = Some(ring);
        self.poller_added()?;
        Ok(lanes)
    }
}
