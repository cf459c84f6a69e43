//! One direction of a pair, or a one-way splice, while user space moves its bytes.
//!
//! ```text
//!                EOF read                 nothing in flight: EOF passed on
//! Flowing ─────────────────────▶ Ending ────────────────────────────────────────▶ Ended
//!    │ byte limit taken             ▲                                              ▲
//!    ├──────────────────────────────┘                                              │
//!    └──the destination takes nothing any more─────────────────────────────────────┘
//! ```
//!
//! A direction reads up to its mark and stops there. The kernel moves what comes after the mark, or
//! user space does once the kernel engine moves the mark (`kernel/mod.rs`). Without an engine the
//! mark is infinite.
//!
//! Readiness is edge-triggered. `source_ready` and `destination_ready` hold what the kernel last
//! reported, and only a system call that would have blocked clears them.

mod carrier_choice;
mod conduit;
mod in_flight;
mod progress;

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use rustix::io::Errno;

pub(crate) use self::carrier_choice::{CarrierChoice, CarriersUsed};
pub(crate) use self::conduit::{Conduit, TURN_READS};
use self::in_flight::InFlight;
pub(crate) use self::progress::{Progress, SocketError};
use crate::carrier::buffer::{Buffer, Size};
use crate::carrier::peek;
use crate::carrier::uring::{self, ReadHint};
use crate::carrier::{Carriers, ReadOutcome};
use crate::endpoint::Endpoint;
use crate::kernel::DirectionView;
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

/// How long to wait for a destination at a time, in seconds, before it is tried again.
const SETTLE_LOOK_S: i64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flowing,
    Ending,
    Ended,
}

#[derive(Debug)]
pub(crate) struct Direction {
    state: State,
    pub(crate) carrier_choice: CarrierChoice,
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
    source_fixed_bytes: u32,
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
            size: match carrier_choice {
                CarrierChoice::Datagrams(_) => Size::OF_DATAGRAM,
                CarrierChoice::Messages(_) => Size::OF_MESSAGE,
                _ => Size::default(),
            },
            source_ready: carrier_choice.tries_first(),
            // What arrived before the registration brings no event of its own.
            source_needs_further_read: carrier_choice.writes_at_once(),
            urgent: matches!(carrier_choice, CarrierChoice::Peek(peek) if peek.passes_on_urgent),
            destination_ready: carrier_choice.tries_first(),
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

    /// The destination takes nothing any more, and what is in flight is lost.
    pub(crate) fn give_up(&mut self) {
        self.state = State::Ended;
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

    /// The destination had no room: epoll reports when it has.
    pub(crate) fn awaits_room(&self) -> bool {
        !self.destination_ready
    }

    /// Has the destination take what is in flight. With `waits` it waits as long as the destination
    /// can take it: to give up would lose it.
    pub(crate) fn settle(&mut self, destination: BorrowedFd<'_>, waits: bool) {
        let carriers = &mut Carriers::default();
        while !self.in_flight.is_empty() {
            match self
                .in_flight
                .drain(self.carrier_choice, destination, carriers)
            {
                Ok(count) => self.given_bytes += count as u64,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if peek::has_room(destination, SETTLE_LOOK_S) || waits => {}
                // A destination that is gone takes nothing, spliced or not.
                Err(_) => break,
            }
        }
        self.in_flight = InFlight::Empty;
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
        if self.kept_for_end
            && self.state != State::Ended
            && let Some(destination) = conduit.destination.endpoint()
        {
            destination.push();
        }
        self.kept_for_end = false;
        progress
    }

    fn advance(&mut self, conduit: &mut Conduit<'_>) -> Result<Progress, SocketError> {
        if self.state == State::Ended || !self.source_ready && self.in_flight.is_empty() {
            return Ok(Progress::Waits);
        }
        let turn_ends_at = self.given_bytes + TURN_BYTES;
        let mut reads = 0;
        let progress = loop {
            if !self.drain(conduit)? {
                break Progress::Waits;
            }
            if conduit.byte_limit == Some(self.taken_bytes) || self.taken_bytes == self.end_bytes {
                self.state = State::Ending;
            }
            if self.state == State::Ending {
                if let Some(destination) = conduit.destination.endpoint()
                    && !conduit.closing
                {
                    let ended = destination.end_stream();
                    ended.map_err(SocketError::at_destination)?;
                }
                self.state = State::Ended;
                break Progress::Waits;
            }
            if !self.can_read() {
                break Progress::Waits;
            }
            if self.given_bytes >= turn_ends_at || reads == conduit.turn_reads {
                break Progress::TurnOver;
            }
            reads += 1;
            self.fill(conduit)?;
        };
        if self.in_flight.is_empty() && self.carrier_choice != CarrierChoice::Ring {
            self.put_down(conduit.carriers);
        }
        Ok(progress)
    }

    /// Writes what is in flight to the destination. False if the destination is full.
    fn drain(&mut self, conduit: &mut Conduit<'_>) -> Result<bool, SocketError> {
        let end_follows = self.end_follows(conduit);
        while !self.in_flight.is_empty() {
            if !self.destination_ready {
                return Ok(false);
            }
            let given = match &mut self.in_flight {
                InFlight::Buffer(buffer) if end_follows => {
                    self.kept_for_end = true;
                    buffer.drain_before_end(conduit.destination.as_fd())
                }
                in_flight => {
                    let destination = conduit.destination.as_fd();
                    in_flight.drain(self.carrier_choice, destination, conduit.carriers)
                }
            };
            match given {
                Ok(count) => {
                    self.given_bytes += count as u64;
                    if let Some(messages) = conduit.messages
                        && self.in_flight.is_empty()
                    {
                        messages.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Err(Errno::AGAIN) => {
                    self.destination_ready = false;
                    self.keep_message(conduit);
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(SocketError::at_destination(errno)),
            }
        }
        Ok(true)
    }

    /// A message that waits for room keeps no memory beyond its bytes.
    fn keep_message(&mut self, conduit: &mut Conduit<'_>) {
        if let (CarrierChoice::Messages(_), InFlight::Buffer(buffer)) =
            (self.carrier_choice, &mut self.in_flight)
        {
            conduit.carriers.buffers.trim(buffer);
        }
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
            && self.carrier_choice != CarrierChoice::Aio
            && conduit
                .destination
                .endpoint()
                .is_some_and(Endpoint::can_hold_for_end)
    }

    fn can_read(&self) -> bool {
        self.source_ready
            && self.taken_bytes < self.mark_bytes
            && (self.destination_ready || !self.carrier_choice.writes_at_once())
    }

    fn fill(&mut self, conduit: &mut Conduit<'_>) -> Result<(), SocketError> {
        let end = conduit.byte_limit.unwrap_or(u64::MAX).min(self.mark_bytes);
        let most_bytes = self.pick_up(conduit);
        if most_bytes == 0 {
            self.destination_ready = false;
            return Ok(());
        }
        let hint = ReadHint {
            limit_bytes: (end != u64::MAX).then(|| end - self.taken_bytes),
            carrier_bytes: conduit.shares.carrier_bytes.min(most_bytes),
            bulk: self.bulk,
            needs_further_read: self.source_needs_further_read,
            may_be_urgent: self.urgent,
            largest_datagram: conduit.largest_datagram,
        };
        // These read all that is there, without a limit.
        if matches!(self.in_flight, InFlight::Pipe(_) | InFlight::Lane(_)) {
            self.fix_source(conduit);
        }
        let source = conduit.source.as_fd();
        let onward = self.destination_ready.then(|| conduit.destination.as_fd());
        let choice = self.carrier_choice;
        match self
            .in_flight
            .fill(choice, source, onward, conduit.carriers, hint)
        {
            Ok(ReadOutcome::Bytes(count)) => self.took(count, conduit),
            Ok(ReadOutcome::LastBytes(count)) => {
                self.took(count, conduit);
                self.source_ready =
                    self.source_needs_further_read || !conduit.source.is_emptied_by_short_read();
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
            Ok(ReadOutcome::EndOfStream | ReadOutcome::OverLimit) => self.state = State::Ending,
            Ok(ReadOutcome::NotTaken(Errno::AGAIN)) => self.destination_ready = false,
            Ok(ReadOutcome::NotTaken(Errno::INTR)) | Err(Errno::INTR) => {}
            Ok(ReadOutcome::NotTaken(errno)) => return Err(SocketError::at_destination(errno)),
            Err(Errno::NOTCONN) => {
                let source = conduit.source.endpoint();
                match source.map_or(Some(Errno::NOTCONN), Endpoint::why_not_connected) {
                    Some(errno) => return Err(SocketError::at_source(errno)),
                    None => self.state = State::Ending,
                }
            }
            Err(errno) => return Err(SocketError::at_source(errno)),
        }
        Ok(())
    }

    fn took(&mut self, count: usize, conduit: &mut Conduit<'_>) {
        self.taken_bytes += count as u64;
        if self.taken_bytes >= self.next_look_bytes {
            self.next_look_bytes = self.taken_bytes + LOOK_AT_BUFFERS_BYTES;
            let bytes = conduit.shares.buffer_bytes;
            if let Some(source) = conduit.source.endpoint() {
                source.bound_receive_buffer(bytes);
            }
            if let Some(destination) = conduit.destination.endpoint() {
                destination.bound_send_buffer(bytes);
            }
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
        let bytes = u32::try_from(conduit.receive_bytes).unwrap_or(u32::MAX);
        if let Some(source) = conduit.source.endpoint()
            && self.source_fixed_bytes < bytes
        {
            self.source_fixed_bytes = bytes;
            source.fix_receive_buffer(conduit.receive_bytes);
        }
    }

    /// Picks an empty carrier for the next read, and returns the most that it may take, in bytes: 0
    /// if the destination has no room.
    fn pick_up(&mut self, conduit: &mut Conduit<'_>) -> usize {
        let is_bulk = self.bulk && !self.urgent;
        let choice = self.carrier_choice;
        let (by_pipe, most_bytes) = choice.next_read(conduit, is_bulk, self.given_bytes);
        let by_pipe = by_pipe && !self.urgent;
        let carriers = &mut *conduit.carriers;
        match &self.in_flight {
            InFlight::Lane(_) => return most_bytes,
            InFlight::Pipe(_) if by_pipe => return most_bytes,
            InFlight::Buffer(buffer) if !by_pipe && self.suits_next(buffer) => return most_bytes,
            _ => self.put_down(carriers),
        }
        self.in_flight = match by_pipe.then(|| carriers.pipes.take()) {
            Some(Ok(pipe)) => {
                self.carriers_used.piped = true;
                InFlight::Pipe(pipe)
            }
            no_pipe => {
                let errno = no_pipe.and_then(Result::err);
                self.carriers_used.no_pipe = errno.or(self.carriers_used.no_pipe);
                InFlight::Buffer(carriers.buffers.take(self.size))
            }
        };
        most_bytes
    }

    /// Whether `buffer` has the size for the next read. That of messages does not depend on how long the last one was.
    fn suits_next(&self, buffer: &Buffer) -> bool {
        match self.carrier_choice {
            CarrierChoice::Messages(_) => buffer.has(self.size),
            _ => buffer.suits_next(),
        }
    }

    fn put_down(&mut self, carriers: &mut Carriers) {
        match std::mem::replace(&mut self.in_flight, InFlight::Empty) {
            InFlight::Empty | InFlight::Lane(_) => {}
            InFlight::Pipe(pipe) => carriers.pipes.give_back(pipe),
            InFlight::Buffer(buffer) => {
                if !matches!(self.carrier_choice, CarrierChoice::Messages(_)) {
                    self.size = buffer.next_size();
                }
                carriers.buffers.give_back(buffer);
            }
        }
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
        self.in_flight.is_empty()
    }

    fn can_move(&self) -> bool {
        if self.in_flight.is_empty() {
            self.state == State::Flowing && self.can_read()
        } else {
            self.destination_ready
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
