//! One direction of a pair while user space moves its bytes.
//!
//! ```text
//!                EOF read                 nothing in flight: EOF passed on
//! Flowing ─────────────────────▶ Ending ────────────────────────────────────────▶ Ended
//!    │ byte limit taken             ▲
//!    └──────────────────────────────┘
//! ```
//!
//! A direction reads up to its mark and stops there. The kernel moves what comes after the mark, or
//! user space does once the kernel engine moves the mark (`kernel/mod.rs`). Without an engine the
//! mark is infinite.
//!
//! Readiness is edge-triggered. `source_ready` and `destination_ready` hold what the kernel last
//! reported, and only a system call that would have blocked clears them.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::in_flight::InFlight;
use crate::carrier::buffer::Size;
use crate::carrier::uring::{self, ReadHint};
use crate::carrier::{Carriers, ReadOutcome, aio};
use crate::endpoint::{Endpoint, Kind};
use crate::kernel::DirectionView;
use crate::limits::Shares;
use crate::reactor::Readiness;

/// How much a direction moves before the others on its loop have their turn, in bytes: four of the
/// largest reads, some 100 µs.
const TURN_BYTES: u64 = 1 << 20;

/// How often a direction checks the size of its sockets' buffers, in bytes read.
const LOOK_AT_BUFFERS_BYTES: u64 = 256 << 10;

/// A read of this size or more shows bulk data, for which a pipe is cheaper, in bytes. The median
/// latency through a pipe is 1.05 of that by `copy` at 16 KiB, 0.92 and 0.99 at 64 KiB (ping-pong
/// in docs/results, on two machines).
const BULK_READ_BYTES: usize = 16 << 10;

/// A read below this size shows small messages, for which `copy` has the lower latency, in bytes: a
/// pipe's is 1.04 to 1.09 of it (as above). A quarter of the other threshold, so that a flow near
/// that does not alternate.
const SMALL_READ_BYTES: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flowing,
    Ending,
    Ended,
}

/// How a direction picks its carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CarrierChoice {
    /// Always a buffer.
    Copy,
    /// Always a pipe.
    Pipe,
    /// Always requests to the loop's AIO context.
    Aio,
    /// Always a lane of the loop's ring.
    Ring,
    /// A pipe while reads bring bulk, once [`Conduit::pipe_after_bytes`] have moved; otherwise a
    /// buffer.
    Adaptive,
}

/// What a direction gets from its pair and its loop, to move bytes.
pub(crate) struct Conduit<'a> {
    pub(crate) source: &'a Endpoint,
    /// In an echo, the source itself.
    pub(crate) destination: &'a Endpoint,
    pub(crate) carriers: &'a mut Carriers,
    pub(crate) shares: Shares,
    pub(crate) pipe_after_bytes: u64,
    pub(crate) byte_limit: Option<u64>,
    /// The size at which the source's receive buffer is fixed, in bytes.
    pub(crate) receive_bytes: usize,
    /// The other direction has ended: the close that follows sends EOF by itself.
    pub(crate) closing: bool,
}

/// Why a direction has stopped for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The direction waits for one of its sockets, or has ended.
    Waits,
    /// The direction could go on, but its turn is over.
    TurnOver,
}

/// Which carriers have moved a direction's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CarriersUsed {
    /// A pipe has moved some of them.
    pub(crate) piped: bool,
    /// Why bytes were copied that should have gone through a pipe.
    pub(crate) no_pipe: Option<Errno>,
}

/// A fatal error of a system call on a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SocketError {
    /// The error is on the destination's socket; otherwise on the source's.
    pub(crate) at_destination: bool,
    pub(crate) errno: Errno,
}

#[derive(Debug)]
pub(crate) struct Direction {
    state: State,
    carrier_choice: CarrierChoice,
    in_flight: InFlight,
    size: Size,
    source_ready: bool,
    /// EOF or an error is queued behind the data.
    source_needs_further_read: bool,
    /// The source has an urgent mark, which splice(2) does not get past.
    urgent: bool,
    destination_ready: bool,
    /// The source has reported EOF after the bytes that have arrived.
    end_seen: bool,
    /// TCP holds written bytes back until EOF, which is about to be read.
    kept_for_end: bool,
    taken_bytes: u64,
    given_bytes: u64,
    /// Nothing is read beyond this many bytes, not even EOF.
    mark_bytes: u64,
    /// The stream ends behind this many bytes, if it ends without EOF.
    end_bytes: u64,
    next_look_bytes: u64,
    /// The size at which the source's receive buffer was fixed, in bytes, as far as possible; 0
    /// before.
    source_fixed_bytes: usize,
    /// The last read brought bulk.
    bulk: bool,
    carriers_used: CarriersUsed,
}

impl Direction {
    pub(crate) fn new(carrier_choice: CarrierChoice) -> Self {
        Self {
            state: State::Flowing,
            carrier_choice,
            in_flight: InFlight::Empty,
            size: Size::default(),
            // The ring reports readiness itself: ask it once.
            source_ready: carrier_choice == CarrierChoice::Ring,
            source_needs_further_read: false,
            urgent: false,
            destination_ready: carrier_choice == CarrierChoice::Ring,
            end_seen: false,
            kept_for_end: false,
            taken_bytes: 0,
            given_bytes: 0,
            mark_bytes: u64::MAX,
            end_bytes: u64::MAX,
            next_look_bytes: LOOK_AT_BUFFERS_BYTES,
            source_fixed_bytes: 0,
            bulk: false,
            carriers_used: CarriersUsed::default(),
        }
    }

    /// A direction in which nothing flows: the second one of an echo.
    pub(crate) fn ended() -> Self {
        Self {
            state: State::Ended,
            ..Self::new(CarrierChoice::Copy)
        }
    }

    pub(crate) fn source_became(&mut self, readiness: Readiness) {
        self.source_ready |= readiness.is_readable();
        self.source_needs_further_read |= readiness.needs_further_read();
        self.urgent |= readiness.is_urgent();
        self.end_seen |= readiness.is_hung_up();
    }

    pub(crate) fn destination_became(&mut self, readiness: Readiness) {
        self.destination_ready |= readiness.is_writable();
    }

    /// The kernel has moved so many bytes since, and with `has_ended` the end of the stream. The source may have another
    /// receive buffer now.
    pub(crate) fn was_moved(&mut self, bytes: u64, has_ended: bool) {
        self.source_fixed_bytes = 0;
        self.taken_bytes += bytes;
        self.given_bytes += bytes;
        if has_ended {
            self.state = State::Ended;
        }
    }

    /// The stream ends behind so many bytes, though the source does not say so.
    pub(crate) fn ends_after(&mut self, bytes: u64) {
        self.end_bytes = self.taken_bytes + bytes;
    }

    /// Whether there is a mark.
    pub(crate) fn is_held(&self) -> bool {
        self.mark_bytes != u64::MAX
    }

    pub(crate) fn carriers_used(&self) -> CarriersUsed {
        self.carriers_used
    }

    /// Whether the lane has found no room in the destination.
    pub(crate) fn is_blocked_on_ring(&self) -> bool {
        matches!(&self.in_flight, InFlight::Lane(lane) if lane.is_blocked)
    }

    /// The source's error, if the ring knows it before the direction reads it.
    pub(crate) fn source_error_on_ring(&self, carriers: &mut Carriers) -> Option<Errno> {
        match (&self.in_flight, &mut carriers.ring) {
            (InFlight::Lane(lane), Some(ring)) => ring.source_error(lane),
            _ => None,
        }
    }

    /// Takes its lane on the loop's ring and keeps it until [`release`](Self::release).
    pub(crate) fn enter(&mut self, lane: uring::Lane) {
        self.in_flight = InFlight::Lane(lane);
    }

    /// Releases what is in flight.
    pub(crate) fn release(&mut self, carriers: &mut Carriers) {
        if let (InFlight::Lane(lane), Some(ring)) = (&self.in_flight, &mut carriers.ring) {
            self.given_bytes += ring.release(lane) as u64;
        }
        self.put_down(carriers);
    }

    /// Moves what can move now.
    pub(crate) fn pump(&mut self, conduit: &mut Conduit<'_>) -> Result<Progress, SocketError> {
        let progress = self.advance(conduit);
        // EOF did not follow after all: the turn is over, the destination is full, or the source
        // has failed.
        if self.kept_for_end && self.state != State::Ended {
            conduit.destination.push();
        }
        self.kept_for_end = false;
        progress
    }

    fn advance(&mut self, conduit: &mut Conduit<'_>) -> Result<Progress, SocketError> {
        if self.state == State::Ended || !(self.source_ready || self.in_flight.held() > 0) {
            return Ok(Progress::Waits);
        }
        let turn_ends_at = self.given_bytes + TURN_BYTES;
        let progress = loop {
            if !self.drain(conduit)? {
                break Progress::Waits;
            }
            if conduit.byte_limit == Some(self.taken_bytes) || self.taken_bytes == self.end_bytes {
                self.state = State::Ending;
            }
            if self.state == State::Ending {
                if !conduit.closing {
                    conduit.destination.end_stream().map_err(at_destination)?;
                }
                self.state = State::Ended;
                break Progress::Waits;
            }
            if !self.source_ready || self.taken_bytes >= self.mark_bytes {
                break Progress::Waits;
            }
            if self.given_bytes >= turn_ends_at {
                break Progress::TurnOver;
            }
            self.fill(conduit)?;
        };
        if self.in_flight.held() == 0 && self.carrier_choice != CarrierChoice::Ring {
            self.put_down(conduit.carriers);
        }
        Ok(progress)
    }

    /// Writes what is in flight to the destination. False if the destination is full.
    fn drain(&mut self, conduit: &mut Conduit<'_>) -> Result<bool, SocketError> {
        let end_follows = self.end_follows(conduit);
        while self.in_flight.held() > 0 {
            if !self.destination_ready {
                return Ok(false);
            }
            let given = match &mut self.in_flight {
                InFlight::Buffer(buffer) if end_follows => {
                    self.kept_for_end = true;
                    buffer.drain_before_end(conduit.destination.as_fd())
                }
                in_flight => in_flight.drain(conduit.destination.as_fd(), conduit.carriers),
            };
            match given {
                Ok(count) => self.given_bytes += count as u64,
                Err(Errno::AGAIN) => self.destination_ready = false,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(at_destination(errno)),
            }
        }
        Ok(true)
    }

    /// Whether the source has reported EOF and the direction is about to read it. Then TCP sends
    /// EOF together with the last bytes. Most short connections end with a message and a close, and
    /// a segment costs both hosts more than a system call.
    fn end_follows(&self, conduit: &Conduit<'_>) -> bool {
        self.end_seen
            && self.source_ready
            && self.mark_bytes == u64::MAX
            && conduit.byte_limit.is_none()
            && !conduit.closing
            // kTLS keeps an unfinished record to itself when the stream is shut down
            // (`tls_sw_sendmsg`, 6.18): the bytes would be lost.
            && !conduit.destination.has_upper_protocol()
            && matches!(conduit.destination.kind(), Kind::Tcp4 | Kind::Tcp6)
    }

    fn fill(&mut self, conduit: &mut Conduit<'_>) -> Result<(), SocketError> {
        let end = conduit.byte_limit.unwrap_or(u64::MAX).min(self.mark_bytes);
        let hint = ReadHint {
            limit_bytes: (end != u64::MAX).then(|| end - self.taken_bytes),
            carrier_bytes: conduit.shares.carrier_bytes,
            bulk: self.bulk,
            needs_further_read: self.source_needs_further_read,
        };
        self.pick_up(conduit);
        // These read all that is there, without a limit.
        if matches!(self.in_flight, InFlight::Pipe(_) | InFlight::Lane(_)) {
            self.fix_source(conduit);
        }
        let source = conduit.source.as_fd();
        let onward = self.destination_ready.then(|| conduit.destination.as_fd());
        match self.in_flight.fill(source, onward, conduit.carriers, hint) {
            Ok(ReadOutcome::Bytes(count)) => self.took(count, conduit),
            Ok(ReadOutcome::LastBytes(count)) => {
                self.took(count, conduit);
                // A read of a UNIX stream stops after a message that carries a descriptor, and the
                // kernel does not report that (`unix_stream_read_generic`).
                self.source_ready =
                    self.source_needs_further_read || conduit.source.kind() == Kind::Unix;
            }
            Ok(ReadOutcome::Empty) => {
                self.urgent = false;
                self.source_ready = false;
                self.source_needs_further_read = false;
            }
            Ok(ReadOutcome::UrgentMark) => self.urgent = true,
            // Before the mark there are bytes still to come: a socket with a BPF program returns
            // EOF while they wait in its backlog (`tcp_bpf_recvmsg_parser`).
            Ok(ReadOutcome::EndOfStream) if self.is_held() => self.source_ready = false,
            Ok(ReadOutcome::EndOfStream) => self.state = State::Ending,
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(SocketError {
                    at_destination: false,
                    errno,
                });
            }
        }
        Ok(())
    }

    fn took(&mut self, count: usize, conduit: &mut Conduit<'_>) {
        self.taken_bytes += count as u64;
        if self.taken_bytes >= self.next_look_bytes {
            self.next_look_bytes = self.taken_bytes + LOOK_AT_BUFFERS_BYTES;
            conduit
                .source
                .bound_receive_buffer(conduit.shares.buffer_bytes);
            conduit
                .destination
                .bound_send_buffer(conduit.shares.buffer_bytes);
        }
        if count >= BULK_READ_BYTES {
            self.bulk = true;
            self.fix_source(conduit);
        } else if count < SMALL_READ_BYTES {
            self.bulk = false;
        }
    }

    /// Fixes the source's receive buffer before the kernel's tuning enlarges it. A read that brings
    /// more than earlier ones enlarges it from 128 KiB to any size in one step (`tcp_rcvbuf_grow`,
    /// 6.18). The sender learns of the room within that read, and may fill it before the size can
    /// be checked.
    fn fix_source(&mut self, conduit: &Conduit<'_>) {
        if self.source_fixed_bytes < conduit.receive_bytes {
            self.source_fixed_bytes = conduit.receive_bytes;
            conduit.source.fix_receive_buffer(conduit.receive_bytes);
        }
    }

    /// Picks an empty carrier for the next read.
    fn pick_up(&mut self, conduit: &mut Conduit<'_>) {
        let carriers = &mut *conduit.carriers;
        let by_pipe = !self.urgent
            && match self.carrier_choice {
                CarrierChoice::Ring => return,
                CarrierChoice::Copy | CarrierChoice::Aio => false,
                CarrierChoice::Pipe => true,
                CarrierChoice::Adaptive => {
                    self.bulk && self.given_bytes >= conduit.pipe_after_bytes
                }
            };
        match (&self.in_flight, by_pipe) {
            (InFlight::Pipe(_), true) => return,
            (InFlight::Buffer(buffer), false) if buffer.suits_next() => return,
            (InFlight::Aio(buffer), false) if buffer.buffer().suits_next() => return,
            _ => self.put_down(carriers),
        }
        if by_pipe {
            match carriers.pipes.take() {
                Ok(pipe) => {
                    self.carriers_used.piped = true;
                    self.in_flight = InFlight::Pipe(pipe);
                    return;
                }
                Err(errno) => self.carriers_used.no_pipe = Some(errno),
            }
        }
        let buffer = carriers.buffers.take(self.size);
        self.in_flight = match self.carrier_choice {
            CarrierChoice::Aio => InFlight::Aio(aio::AioBuffer::new(buffer)),
            _ => InFlight::Buffer(buffer),
        };
    }

    fn put_down(&mut self, carriers: &mut Carriers) {
        let buffer = match std::mem::replace(&mut self.in_flight, InFlight::Empty) {
            InFlight::Empty | InFlight::Lane(_) => return,
            InFlight::Pipe(pipe) => return carriers.pipes.give_back(pipe),
            InFlight::Buffer(buffer) => buffer,
            InFlight::Aio(buffer) => buffer.into_buffer(),
        };
        self.size = buffer.next_size();
        carriers.buffers.give_back(buffer);
    }
}

impl DirectionView for Direction {
    fn taken_bytes(&self) -> u64 {
        self.taken_bytes
    }

    fn given_bytes(&self) -> u64 {
        self.given_bytes
    }

    fn end_seen(&self) -> bool {
        self.end_seen
    }

    fn is_ending(&self) -> bool {
        self.state != State::Flowing
    }

    fn has_ended(&self) -> bool {
        self.state == State::Ended
    }

    fn has_none_in_flight(&self) -> bool {
        self.in_flight.held() == 0
    }

    fn can_move(&self) -> bool {
        if self.in_flight.held() > 0 {
            self.destination_ready
        } else {
            self.state == State::Flowing && self.source_ready && self.taken_bytes < self.mark_bytes
        }
    }

    fn hold_at(&mut self, mark_bytes: u64) {
        debug_assert!(mark_bytes >= self.taken_bytes);
        self.mark_bytes = mark_bytes;
    }

    fn copy_only(&mut self) {
        self.carrier_choice = CarrierChoice::Copy;
    }

    fn read_again(&mut self) {
        self.source_became(Readiness::READABLE);
    }
}

fn at_destination(errno: Errno) -> SocketError {
    SocketError {
        at_destination: true,
        errno,
    }
}
