//! One direction of a pair while user space moves its bytes.
//!
//! ```text
//!            source says "end"            nothing in flight: end of stream passed on
//! Flowing ─────────────────────▶ Ending ────────────────────────────────────────▶ Ended
//!    │ byte limit taken             ▲
//!    └──────────────────────────────┘
//! ```
//!
//! A direction reads up to its mark and stands still there: what lies behind the mark is moved in
//! the kernel, or not before an engine there says so (`kernel/mod.rs`). Without one the mark
//! is infinitely far.
//!
//! Readiness is edge-triggered: `source_ready` and `destination_ready` hold what the kernel last
//! said, and only a system call that would have blocked takes it back.

use std::os::fd::AsFd;

use rustix::io::Errno;

use super::in_flight::InFlight;
use crate::carrier::buffer::Size;
use crate::carrier::uring::{self, Manner};
use crate::carrier::{Carriers, Filled, aio};
use crate::endpoint::{Endpoint, Kind};
use crate::kernel::DirectionView;
use crate::limits::Shares;
use crate::reactor::Readiness;

/// What a direction moves before the others on its loop have their turn, in bytes: four of the
/// largest reads, some 100 µs.
const TURN_BYTES: u64 = 1 << 20;

/// How often a direction looks at the size of its sockets' buffers, in bytes read.
const LOOK_AT_BUFFERS_BYTES: u64 = 256 << 10;

/// A read of this size or more shows bulk data, which passes more cheaply through a pipe, in
/// bytes. Set before it was measured: the median latency through a pipe is 1.05 of that by `copy` at
/// 16 KiB, 0.92 and 0.99 at 64 KiB (ping-pong in docs/results, on two machines).
const BULK_READ_BYTES: usize = 16 << 10;

/// A read below this size shows small messages, for which `copy` has the lower latency, in bytes: a
/// pipe's is 1.04 to 1.09 of it (as above). A quarter of the other mark, so that a flow whose reads
/// come near that does not go to and fro.
const SMALL_READ_BYTES: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flowing,
    Ending,
    Ended,
}

/// How a direction picks its carrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carriage {
    /// Always by buffer.
    Copy,
    /// Always by pipe.
    Pipe,
    /// Always by requests to the loop's context.
    Aio,
    /// Always by the loop's ring.
    Ring,
    /// By pipe as long as reads bring bulk, once [`Way::pipe_after_bytes`] have moved.
    Adaptive,
}

/// What a direction needs from its pair and loop to move.
pub(crate) struct Way<'a> {
    pub(crate) source: &'a Endpoint,
    /// The source itself, in an echo.
    pub(crate) destination: &'a Endpoint,
    pub(crate) carriers: &'a mut Carriers,
    pub(crate) shares: Shares,
    pub(crate) pipe_after_bytes: u64,
    pub(crate) byte_limit: Option<u64>,
    /// What the source's receive buffer is fixed at, in bytes.
    pub(crate) receive_bytes: usize,
    /// The other direction has ended: the close that follows says the end of stream by itself.
    pub(crate) closing: bool,
}

/// How far a direction came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It waits for one of its sockets, or has ended.
    Waits,
    /// It could go on; its turn is over.
    TurnOver,
}

/// What has carried a direction's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WayTaken {
    /// A pipe has carried some of them.
    pub(crate) piped: bool,
    /// Why bytes that should have gone through a pipe were copied.
    pub(crate) no_pipe: Option<Errno>,
}

/// A system call that failed for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// On the destination's socket; otherwise on the source's.
    pub(crate) at_destination: bool,
    pub(crate) errno: Errno,
}

#[derive(Debug)]
pub(crate) struct Direction {
    state: State,
    carriage: Carriage,
    in_flight: InFlight,
    size: Size,
    source_ready: bool,
    /// An end of stream or an error stands behind the bytes: read until it comes.
    source_outlasts: bool,
    /// An urgent mark stands in the source, which splice(2) does not get past.
    urgent: bool,
    destination_ready: bool,
    /// The source has said that its stream ends behind the bytes that have come.
    end_seen: bool,
    /// Bytes were given that TCP keeps until the end of the stream, which is about to be read.
    kept_for_end: bool,
    taken_bytes: u64,
    given_bytes: u64,
    /// Nothing is read beyond this many bytes, not even an end of stream.
    mark_bytes: u64,
    next_look_bytes: u64,
    /// What the source's receive buffer was fixed at, in bytes, as far as it could be; 0 before.
    source_fixed_bytes: usize,
    /// The last read brought bulk.
    bulk: bool,
    way_taken: WayTaken,
}

impl Direction {
    pub(crate) fn new(carriage: Carriage) -> Self {
        Self {
            state: State::Flowing,
            carriage,
            in_flight: InFlight::Empty,
            size: Size::default(),
            // A ring is asked, and tells when it has an answer.
            source_ready: carriage == Carriage::Ring,
            source_outlasts: false,
            urgent: false,
            destination_ready: carriage == Carriage::Ring,
            end_seen: false,
            kept_for_end: false,
            taken_bytes: 0,
            given_bytes: 0,
            mark_bytes: u64::MAX,
            next_look_bytes: LOOK_AT_BUFFERS_BYTES,
            source_fixed_bytes: 0,
            bulk: false,
            way_taken: WayTaken::default(),
        }
    }

    /// One in which nothing ever flows.
    pub(crate) fn ended() -> Self {
        Self {
            state: State::Ended,
            ..Self::new(Carriage::Copy)
        }
    }

    pub(crate) fn source_became(&mut self, readiness: Readiness) {
        self.source_ready |= readiness.is_readable();
        self.source_outlasts |= readiness.outlasts_short_read();
        self.urgent |= readiness.is_urgent();
        self.end_seen |= readiness.is_hung_up();
    }

    pub(crate) fn destination_became(&mut self, readiness: Readiness) {
        self.destination_ready |= readiness.is_writable();
    }

    /// There is a mark.
    pub(crate) fn is_held(&self) -> bool {
        self.mark_bytes != u64::MAX
    }

    pub(crate) fn way_taken(&self) -> WayTaken {
        self.way_taken
    }

    /// What goes by the ring has found no room in the destination.
    pub(crate) fn is_blocked_on_ring(&self) -> bool {
        matches!(&self.in_flight, InFlight::Lane(lane) if lane.is_blocked)
    }

    /// What its source has failed with, where the ring knows that before the direction reads it.
    pub(crate) fn fault_on_ring(&self, carriers: &mut Carriers) -> Option<Errno> {
        match (&self.in_flight, &mut carriers.ring) {
            (InFlight::Lane(lane), Some(ring)) => ring.fault(lane),
            _ => None,
        }
    }

    /// Takes its place on the loop's ring, which it has until [`release`](Self::release).
    pub(crate) fn enter(&mut self, lane: uring::Lane) {
        self.in_flight = InFlight::Lane(lane);
    }

    /// Lets go of what is in hand.
    pub(crate) fn release(&mut self, carriers: &mut Carriers) {
        if let (InFlight::Lane(lane), Some(ring)) = (&self.in_flight, &mut carriers.ring) {
            self.given_bytes += ring.release(lane) as u64;
        }
        self.put_down(carriers);
    }

    /// Moves what can be moved now.
    pub(crate) fn pump(&mut self, way: &mut Way<'_>) -> Result<Progress, Fault> {
        let progress = self.advance(way);
        // The end did not come after all: its turn is over, the destination is full, or the source
        // has failed.
        if self.kept_for_end && self.state != State::Ended {
            way.destination.push();
        }
        self.kept_for_end = false;
        progress
    }

    fn advance(&mut self, way: &mut Way<'_>) -> Result<Progress, Fault> {
        if self.state == State::Ended || !(self.source_ready || self.in_flight.held() > 0) {
            return Ok(Progress::Waits);
        }
        let turn_ends_at = self.given_bytes + TURN_BYTES;
        let progress = loop {
            if !self.drain(way)? {
                break Progress::Waits;
            }
            if way.byte_limit == Some(self.taken_bytes) {
                self.state = State::Ending;
            }
            if self.state == State::Ending {
                if !way.closing {
                    way.destination.end_stream().map_err(at_destination)?;
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
            self.fill(way)?;
        };
        if self.in_flight.held() == 0 && self.carriage != Carriage::Ring {
            self.put_down(way.carriers);
        }
        Ok(progress)
    }

    /// Gives what is in hand to the destination; false when it takes no more.
    fn drain(&mut self, way: &mut Way<'_>) -> Result<bool, Fault> {
        let end_follows = self.end_follows(way);
        while self.in_flight.held() > 0 {
            if !self.destination_ready {
                return Ok(false);
            }
            let given = match &mut self.in_flight {
                InFlight::Buffer(buffer) if end_follows => {
                    self.kept_for_end = true;
                    buffer.drain_before_end(way.destination.as_fd())
                }
                in_flight => in_flight.drain(way.destination.as_fd(), way.carriers),
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

    /// The source has told of its end of stream and is going to be read until that comes, which
    /// is then told to the destination by a segment of TCP. A message and a close are how most
    /// short connections end, and each segment costs both hosts more than a system call.
    fn end_follows(&self, way: &Way<'_>) -> bool {
        self.end_seen
            && self.source_ready
            && self.mark_bytes == u64::MAX
            && way.byte_limit.is_none()
            && !way.closing
            && matches!(way.destination.kind(), Kind::Tcp4 | Kind::Tcp6)
    }

    fn fill(&mut self, way: &mut Way<'_>) -> Result<(), Fault> {
        let end = way.byte_limit.unwrap_or(u64::MAX).min(self.mark_bytes);
        let manner = Manner {
            exactly_bytes: (end != u64::MAX).then(|| end - self.taken_bytes),
            carrier_bytes: way.shares.carrier_bytes,
            bulk: self.bulk,
            outlasts: self.source_outlasts,
        };
        self.pick_up(way);
        // These take what is there, however much.
        if matches!(self.in_flight, InFlight::Pipe(_) | InFlight::Lane(_)) {
            self.fix_source(way);
        }
        let source = way.source.as_fd();
        let onward = self.destination_ready.then(|| way.destination.as_fd());
        match self.in_flight.fill(source, onward, way.carriers, manner) {
            Ok(Filled::Some(count)) => self.took(count, way),
            Ok(Filled::Last(count)) => {
                self.took(count, way);
                // A UNIX stream stops short behind a message that carries a descriptor, and
                // nothing tells (`unix_stream_read_generic`).
                self.source_ready = self.source_outlasts || way.source.kind() == Kind::Unix;
            }
            Ok(Filled::Empty) => {
                self.urgent = false;
                self.source_ready = false;
                self.source_outlasts = false;
            }
            Ok(Filled::Mark) => self.urgent = true,
            // Before the mark bytes are still to come: a socket with a BPF program on it says "end"
            // while they wait in its backlog (`tcp_bpf_recvmsg_parser`).
            Ok(Filled::End) if self.is_held() => self.source_ready = false,
            Ok(Filled::End) => self.state = State::Ending,
            Err(Errno::INTR) => {}
            Err(errno) => {
                return Err(Fault {
                    at_destination: false,
                    errno,
                });
            }
        }
        Ok(())
    }

    fn took(&mut self, count: usize, way: &mut Way<'_>) {
        self.taken_bytes += count as u64;
        if self.taken_bytes >= self.next_look_bytes {
            self.next_look_bytes = self.taken_bytes + LOOK_AT_BUFFERS_BYTES;
            way.source.bound_receive_buffer(way.shares.buffer_bytes);
            way.destination.bound_send_buffer(way.shares.buffer_bytes);
        }
        if count >= BULK_READ_BYTES {
            self.bulk = true;
            self.fix_source(way);
        } else if count < SMALL_READ_BYTES {
            self.bulk = false;
        }
    }

    /// Fixes the source's receive buffer before the kernel's tuning enlarges it, which it does by a
    /// read that brings more than the ones before: from 128 KiB to any size in one step
    /// (`tcp_rcvbuf_grow`, 6.18). Its sender hears of the room within that read, and may fill it
    /// before a look at the size can follow.
    fn fix_source(&mut self, way: &Way<'_>) {
        if self.source_fixed_bytes < way.receive_bytes {
            self.source_fixed_bytes = way.receive_bytes;
            way.source.fix_receive_buffer(way.receive_bytes);
        }
    }

    /// Puts an empty carrier into the hand for the next read.
    fn pick_up(&mut self, way: &mut Way<'_>) {
        let carriers = &mut *way.carriers;
        let by_pipe = !self.urgent
            && match self.carriage {
                Carriage::Ring => return,
                Carriage::Copy | Carriage::Aio => false,
                Carriage::Pipe => true,
                Carriage::Adaptive => self.bulk && self.given_bytes >= way.pipe_after_bytes,
            };
        match (&self.in_flight, by_pipe) {
            (InFlight::Pipe(_), true) => return,
            (InFlight::Buffer(buffer), false) if buffer.suits_next() => return,
            (InFlight::Aio(block), false) if block.buffer().suits_next() => return,
            _ => self.put_down(carriers),
        }
        if by_pipe {
            match carriers.pipes.take() {
                Ok(pipe) => {
                    self.way_taken.piped = true;
                    self.in_flight = InFlight::Pipe(pipe);
                    return;
                }
                Err(errno) => self.way_taken.no_pipe = Some(errno),
            }
        }
        let buffer = carriers.buffers.take(self.size);
        self.in_flight = match self.carriage {
            Carriage::Aio => InFlight::Aio(aio::Block::new(buffer)),
            _ => InFlight::Buffer(buffer),
        };
    }

    fn put_down(&mut self, carriers: &mut Carriers) {
        let buffer = match std::mem::replace(&mut self.in_flight, InFlight::Empty) {
            InFlight::Empty | InFlight::Lane(_) => return,
            InFlight::Pipe(pipe) => return carriers.pipes.give_back(pipe),
            InFlight::Buffer(buffer) => buffer,
            InFlight::Aio(block) => block.into_buffer(),
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
        self.carriage = Carriage::Copy;
    }

    fn read_again(&mut self) {
        self.source_became(Readiness::READABLE);
    }
}

fn at_destination(errno: Errno) -> Fault {
    Fault {
        at_destination: true,
        errno,
    }
}
