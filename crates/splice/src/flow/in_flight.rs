//! What a direction has read and not yet written, in the carrier that it uses.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use crate::carrier::buffer::Buffer;
use crate::carrier::uring::{self, ReadHint};
use crate::carrier::{Carrier, Carriers, ReadOutcome, aio, pipe};

#[derive(Debug)]
pub(super) enum InFlight {
    Empty,
    Buffer(Buffer),
    Pipe(pipe::Pipe),
    Aio(aio::AioBuffer),
    /// Held from the start of the pair to its end.
    Lane(uring::Lane),
}

impl InFlight {
    /// Reads bytes. With `onward` the carrier may write them there at once.
    pub(super) fn fill(
        &mut self,
        source: BorrowedFd<'_>,
        onward: Option<BorrowedFd<'_>>,
        carriers: &mut Carriers,
        hint: ReadHint,
    ) -> Result<ReadOutcome, Errno> {
        let at_most = hint.at_most();
        match (self, &mut carriers.aio, &mut carriers.ring) {
            (Self::Buffer(buffer), ..) => buffer.fill(source, at_most),
            (Self::Pipe(pipe), ..) => pipe.fill(source, at_most),
            (Self::Aio(buffer), Some(context), _) => buffer.fill(context, source, at_most, onward),
            (Self::Lane(lane), _, Some(ring)) => ring.fill(lane, source, hint),
            (Self::Aio(_) | Self::Lane(_) | Self::Empty, ..) => Ok(ReadOutcome::Empty),
        }
    }

    pub(super) fn drain(
        &mut self,
        destination: BorrowedFd<'_>,
        carriers: &mut Carriers,
    ) -> Result<usize, Errno> {
        match (self, &mut carriers.aio, &mut carriers.ring) {
            (Self::Buffer(buffer), ..) => buffer.drain(destination),
            (Self::Pipe(pipe), ..) => pipe.drain(destination),
            (Self::Aio(buffer), Some(context), _) => buffer.drain(context, destination),
            (Self::Lane(lane), _, Some(ring)) => ring.drain(lane, destination),
            (Self::Aio(_) | Self::Lane(_) | Self::Empty, ..) => Err(Errno::AGAIN),
        }
    }

    pub(super) fn held(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Buffer(buffer) => buffer.held(),
            Self::Pipe(pipe) => pipe.held(),
            Self::Aio(buffer) => buffer.held(),
            Self::Lane(lane) => lane.held(),
        }
    }
}
