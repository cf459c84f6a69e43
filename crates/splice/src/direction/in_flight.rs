//! What a direction has read and not yet written, in the carrier that it uses.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;

use super::CarrierChoice;
use crate::carrier::buffer::Buffer;
use crate::carrier::uring::{self, ReadHint};
use crate::carrier::{Carriers, ReadOutcome, pipe};

#[derive(Debug)]
pub(super) enum InFlight {
    Empty,
    Buffer(Buffer),
    Pipe(pipe::Pipe),
    /// Held from the start of the pair to its end.
    Lane(uring::Lane),
}

impl InFlight {
    /// Reads bytes. With `onward` the carrier may write them there at once.
    pub(super) fn fill(
        &mut self,
        choice: CarrierChoice,
        source: BorrowedFd<'_>,
        onward: Option<BorrowedFd<'_>>,
        carriers: &mut Carriers,
        hint: ReadHint,
    ) -> Result<ReadOutcome, Errno> {
        use CarrierChoice::{Aio, Datagrams, Messages, Peek};
        let at_most = hint.at_most();
        let buffer = match self {
            Self::Empty => return Ok(ReadOutcome::Empty),
            Self::Pipe(pipe) => return pipe.fill(source, at_most),
            Self::Lane(lane) => {
                let ring = carriers.ring.as_mut();
                return ring.map_or(Ok(ReadOutcome::Empty), |ring| ring.fill(lane, source, hint));
            }
            Self::Buffer(buffer) => buffer,
        };
        match (choice, onward, &mut carriers.aio) {
            (Aio, _, None) => Ok(ReadOutcome::Empty),
            (Aio, _, Some(context)) => context.fill(buffer, source, at_most, onward),
            (Peek(peeking), Some(onward), _) if !peeking.is_shared => {
                peeking.fill(buffer, source, at_most, onward, hint.may_be_urgent)
            }
            (Datagrams(datagrams), Some(onward), _) => {
                datagrams.fill(buffer, source, at_most, hint.largest_datagram, onward)
            }
            (Messages(messages), ..) => messages.fill(buffer, source),
            (Peek(_) | Datagrams(_), None, _) => Ok(ReadOutcome::NotTaken(Errno::AGAIN)),
            _ => buffer.fill(source, at_most),
        }
    }

    /// Writes to the destination, or reports what was written at once.
    pub(super) fn drain(
        &mut self,
        choice: CarrierChoice,
        destination: BorrowedFd<'_>,
        carriers: &mut Carriers,
    ) -> Result<usize, Errno> {
        match (self, &mut carriers.aio, &mut carriers.ring) {
            (Self::Pipe(pipe), ..) => pipe.drain(destination),
            (Self::Lane(lane), _, Some(ring)) => ring.drain(lane, destination),
            (Self::Buffer(buffer), Some(context), _) if choice == CarrierChoice::Aio => {
                context.drain(buffer, destination)
            }
            (Self::Buffer(buffer), ..) => match choice {
                CarrierChoice::Messages(messages) => {
                    // VSOCK sends nothing for it, and reports that it did (`vsock_connectible_sendmsg`): it would be lost.
                    if messages.can_tear && buffer.bytes().is_empty() {
                        return Err(Errno::OPNOTSUPP);
                    }
                    messages.drain(buffer, destination)
                }
                _ => buffer.drain(destination),
            },
            (Self::Lane(_) | Self::Empty, ..) => Err(Errno::AGAIN),
        }
    }

    /// Whether nothing is in flight. What was written at once is, until a drain has reported it.
    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Buffer(buffer) => buffer.is_empty(),
            Self::Pipe(pipe) => pipe.is_empty(),
            Self::Lane(lane) => lane.held() == 0,
        }
    }
}
