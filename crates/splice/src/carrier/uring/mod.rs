//! `uring`: `io_uring(7)` receives into buffers that the kernel picks, and sends from them.
//!
//! ```text
//! socket a ──receive──▶ provided buffers ──send──▶ socket b
//! ```
//!
//! A loop with pairs of this engine has one [`Ring`] and waits in `io_uring_enter(2)`. The ring
//! watches the loop's epoll instance. So one call submits what is to be sent, sleeps, and receives:
//! for a message, `copy` makes three system calls and this engine one. It makes two if the send is
//! not silent (below), since the completion then ends the wait of the call that submitted it. That
//! is so for a message in more than one buffer, and for a lane that receives once. (While another
//! loop drives this one, each turn asks epoll once and the ring twice.)
//!
//! Each direction of a pair has a [`Lane`]. A completion reaches the pair as readiness of a socket,
//! and [`Direction`](crate::direction::Direction) drives the lane like a carrier. Filling takes what has
//! arrived. Draining submits a send and "would block" until it has completed.
//!
//! A lane receives in one of two ways:
//!
//! ```text
//!                reads bring bulk: cancelled
//!   multishot ─────────────────────────────▶ once, with a bounded length,
//!   into 4 KiB buffers ◀──────────────────── into 64 KiB buffers, in bundles if the
//!                reads are small             kernel has that
//! ```
//!
//! The multishot receive stays armed, so a message costs no request. It takes bytes without asking:
//! a lane with much in flight cancels it, and receives nothing until that has been sent. A lane
//! that must not take a byte too many (because of a byte limit, or little memory) always receives
//! once.
//!
//! A send does not wait: it is complete once it is submitted, and epoll reports room. If a
//! multishot receive will bring the next message, the send of a single piece is silent. The call
//! that submits it can then go on to wait, and the send is counted when that call returns.
//!
//! Buffers and sockets belong to the kernel while a request names them. So a lane is released only
//! when the last of its requests has completed ([`Ring::release`]), and the sockets are closed
//! after that.
#![allow(
    unsafe_code,
    reason = "requests that name memory; see the SAFETY comments"
)]

mod buffers;
mod completion;
mod forgotten;
mod lane;
mod lane_state;
mod poller;
mod setup;
mod submission;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::{fmt, io};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{CancelBuilder, Fd};
use io_uring::{IoUring, opcode};
use rustix::io::Errno;

use self::buffers::{BufferGroup, Piece};
use self::forgotten::Suspects;
pub(crate) use self::lane::{Lane, ReadHint};
use self::lane_state::{
    BufferKind, Gather, LanePair, LaneState, Lanes, ReceiveState, SendState, StreamEnd,
};
pub(crate) use self::setup::probe;
use self::setup::{Features, Opened};
use super::ReadOutcome;
use crate::reactor::{Key, Readiness};

/// A lane with this much in flight cancels its multishot receive, in bytes.
const AHEAD_BYTES: usize = 64 << 10;

/// With less memory than this a direction does not use multishot, in bytes: a multishot receive may
/// take all provided buffers before it can be cancelled.
const MULTISHOT_BYTES: usize =
    AHEAD_BYTES + setup::MESSAGE_BUFFERS as usize * setup::MESSAGE_BUFFER_BYTES as usize;

/// No send waits for room on the ring: if the other end has ended its own stream, such a wait is
/// woken at once and for ever (`IO_POLL_UNMASK` contains `EPOLLRDHUP`, 6.18). epoll can tell room
/// from EOF.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// `IORING_RECVSEND_BUNDLE` of `linux/io_uring.h`.
const BUNDLE: u16 = 1 << 4;

/// The operation of a completion, in the low bits of its user data. The lane's index is above them.
const OPERATION_BITS: u32 = 3;
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const CANCEL: u64 = 2;
const EPOLL: u64 = 3;
const CLOCK: u64 = 4;

/// The io_uring of one loop, and the lanes on it.
pub(crate) struct Ring {
    uring: IoUring,
    features: Features,
    message_buffers: BufferGroup,
    bulk_buffers: BufferGroup,
    lanes: Lanes,
    /// Pairs with new readiness.
    ready: VecDeque<usize>,
    /// Requests that do not fit into the submission queue.
    waiting: VecDeque<Entry>,
    /// Lanes with a silent send.
    silent: Vec<usize>,
    /// Lanes that found no buffer. They get the next ones first.
    starved: Vec<usize>,
    /// A request that polls the loop's epoll instance is pending.
    watches_epoll: bool,
    epoll_has_events: bool,
    suspects: Suspects,
    /// A request that wakes the loop after `CLOCK_TIME` is pending.
    clock_runs: bool,
    /// Wakes a loop that does not wait in the ring.
    eventfd: Option<OwnedFd>,
}

impl Ring {
    /// Creates a ring.
    ///
    /// # Errors
    /// The kernel's error, which [`probe`] explains.
    pub(crate) fn new() -> Result<Self, Errno> {
        Self::with(Features::ALL)
    }

    fn with(wanted: Features) -> Result<Self, Errno> {
        let Opened {
            uring,
            features,
            message_buffers,
            bulk_buffers,
        } = setup::open(wanted)?;
        Ok(Self {
            uring,
            features,
            message_buffers,
            bulk_buffers,
            lanes: Lanes::default(),
            ready: VecDeque::new(),
            waiting: VecDeque::new(),
            silent: Vec::new(),
            suspects: Suspects::default(),
            starved: Vec::new(),
            watches_epoll: false,
            epoll_has_events: false,
            clock_runs: false,
            eventfd: None,
        })
    }

    /// Opens the lanes of the pair that is the task `key`: the one that reads its socket 0, and the
    /// one that reads its socket 1.
    pub(crate) fn open_lanes(&mut self, key: Key) -> [Lane; 2] {
        let pair = self.lanes.0.insert(LanePair {
            key,
            states: [LaneState::NEW; 2],
            events: [Readiness::NONE; 2],
            queued: false,
        });
        [0, 1].map(|socket| Lane {
            index: pair * 2 + socket,
            held: 0,
            is_blocked: false,
        })
    }

    /// Takes what has arrived, and keeps a receive submitted. Called with nothing in flight.
    pub(crate) fn fill(
        &mut self,
        lane: &mut Lane,
        source: BorrowedFd<'_>,
        hint: ReadHint,
    ) -> Result<ReadOutcome, Errno> {
        debug_assert_eq!(lane.held, 0);
        let state = self.lanes.state(lane.index);
        std::mem::swap(&mut state.received, &mut state.sending);
        let count = state.sending.iter().map(Piece::len).sum::<usize>();
        lane.held = count;
        match (count, state.stream_end) {
            // A socket reports its error once. If the other lane's send got it, a receive finds
            // EOF, which is wrong.
            (0, Some(StreamEnd::EndOfStream)) => match self.lanes.state(lane.index ^ 1).send {
                SendState::Failed(errno) => Err(errno),
                _ => Ok(ReadOutcome::EndOfStream),
            },
            (0, Some(StreamEnd::Error(errno))) => Err(errno),
            (_, Some(_)) => Ok(ReadOutcome::Bytes(count)),
            (_, None) => {
                self.receive(lane.index, source.as_raw_fd(), hint);
                Ok(match count {
                    0 => ReadOutcome::Empty,
                    count => ReadOutcome::Bytes(count),
                })
            }
        }
    }

    /// Keeps a receive of the wanted kind submitted.
    fn receive(&mut self, index: usize, fd: RawFd, hint: ReadHint) {
        let state = self.lanes.state(index);
        let multishot = self.features.multishot
            && hint.limit_bytes.is_none()
            && hint.carrier_bytes >= MULTISHOT_BYTES
            && !hint.bulk;
        match state.receive {
            // EOF can arrive between two looks of a multishot receive that bytes have woken, and
            // then nothing wakes it again (`io_poll_check_events`). A new one looks again.
            ReceiveState::Multishot
                if !state.cancelled && (!multishot || hint.needs_further_read) =>
            {
                state.cancelled = true;
                self.cancel(index);
            }
            ReceiveState::Multishot | ReceiveState::Once { .. } => {}
            // One receive, one send: what was just received is sent while it is in the CPU's cache,
            // and the same buffers are used again. (With the next receive pending at the same time,
            // bulk costs 1.2 times the CPU time.)
            ReceiveState::Idle if !multishot && !state.sending.is_empty() => {}
            ReceiveState::Idle => {
                state.source = fd;
                state.receive = if multishot {
                    ReceiveState::Multishot
                } else {
                    let (size, group) = if hint.bulk {
                        (BufferKind::Bulk, &self.bulk_buffers)
                    } else {
                        (BufferKind::Message, &self.message_buffers)
                    };
                    let most = hint.at_most().min(group.buffer_bytes());
                    if most == 0 {
                        return;
                    }
                    // A bundle takes every provided buffer, whatever length was requested (seen on
                    // 6.18).
                    let bundle = self.features.bundle
                        && size == BufferKind::Bulk
                        && hint.limit_bytes.is_none()
                        && hint.carrier_bytes >= group.stock_bytes();
                    ReceiveState::Once {
                        size,
                        most_bytes: if bundle { 0 } else { most as u32 },
                        bundle,
                    }
                };
                self.request(index);
            }
        }
    }

    /// Submits the lane's receive.
    fn request(&mut self, index: usize) {
        let state = self.lanes.state(index);
        let fd = Fd(state.source);
        let entry = match state.receive {
            ReceiveState::Idle => return,
            ReceiveState::Multishot => {
                opcode::RecvMulti::new(fd, self.message_buffers.number()).build()
            }
            ReceiveState::Once {
                size,
                most_bytes,
                bundle,
            } => {
                let group = match size {
                    BufferKind::Message => &self.message_buffers,
                    BufferKind::Bulk => &self.bulk_buffers,
                };
                opcode::Recv::new(fd, std::ptr::null_mut(), most_bytes)
                    .buf_group(group.number())
                    .ioprio(if bundle { BUNDLE } else { 0 })
                    .build()
                    .flags(Flags::BUFFER_SELECT)
            }
        };
        self.push(entry.user_data(number(index, RECEIVE)));
    }

    /// Sends what is in flight to the destination. Returns how many bytes it took, or `EAGAIN`
    /// while that is unknown.
    pub(crate) fn drain(
        &mut self,
        lane: &mut Lane,
        destination: BorrowedFd<'_>,
    ) -> Result<usize, Errno> {
        let state = self.lanes.state(lane.index);
        match std::mem::replace(&mut state.send, SendState::Idle) {
            SendState::Done(count) => {
                lane.is_blocked = false;
                self.sent(lane.index, count);
                lane.held -= count;
                Ok(count)
            }
            // The next call reports that it is blocked.
            SendState::Short(count) if count > 0 => {
                state.send = SendState::Short(0);
                self.sent(lane.index, count);
                lane.held -= count;
                Ok(count)
            }
            SendState::Short(_) => {
                lane.is_blocked = true;
                Err(Errno::AGAIN)
            }
            SendState::Failed(errno) => Err(errno),
            under_way @ (SendState::Submitted(_) | SendState::Silent(_)) => {
                state.send = under_way;
                Err(Errno::AGAIN)
            }
            SendState::Idle => {
                let bytes = lane.held;
                state.send = SendState::Submitted(bytes);
                let fd = Fd(destination.as_raw_fd());
                let entry = match &state.sending {
                    // Only a multishot receive brings the lane its next event.
                    pieces if pieces.len() == 1 && state.receive == ReceiveState::Multishot => {
                        state.send = SendState::Silent(bytes);
                        self.silent.push(lane.index);
                        // With `MSG_WAITALL` a partial send counts as failed, so it is not silent.
                        opcode::Send::new(fd, pieces[0].address(), bytes as u32)
                            .flags(SEND_FLAGS | libc::MSG_WAITALL)
                            .build()
                            .flags(Flags::SKIP_SUCCESS)
                    }
                    pieces if pieces.len() == 1 => {
                        opcode::Send::new(fd, pieces[0].address(), bytes as u32)
                            .flags(SEND_FLAGS)
                            .build()
                    }
                    pieces => {
                        let gather = state.gather.insert(Gather::of(pieces));
                        opcode::SendMsg::new(fd, &raw const gather.header)
                            .flags(SEND_FLAGS as u32)
                            .build()
                    }
                };
                self.push(entry.user_data(number(lane.index, SEND)));
                Err(Errno::AGAIN)
            }
        }
    }

    /// The source's error after the bytes that have arrived: a receive has taken it from the
    /// socket.
    pub(crate) fn source_error(&mut self, lane: &Lane) -> Option<Errno> {
        match self.lanes.state(lane.index).stream_end {
            Some(StreamEnd::Error(errno)) => Some(errno),
            _ => None,
        }
    }

    /// Removes `count` bytes from what is in flight.
    fn sent(&mut self, index: usize, mut count: usize) {
        let state = self.lanes.state(index);
        state.gather = None;
        while count > 0 {
            let Some(piece) = state.sending.front_mut() else {
                break;
            };
            if piece.len() > count {
                piece.advance(count);
                break;
            }
            count -= piece.len();
            if let Some(piece) = state.sending.pop_front() {
                give_back(&mut self.message_buffers, &mut self.bulk_buffers, piece);
            }
        }
    }

    /// Closes a lane once none of its requests is pending. Returns how many bytes were sent that
    /// [`drain`](Self::drain) has not reported.
    pub(crate) fn release(&mut self, lane: &Lane) -> usize {
        let index = lane.index;
        let state = self.lanes.state(index);
        (state.cancelled, state.released) = (true, true);
        self.cancel(index);
        while !self.lanes.state(index).is_quiet() {
            // After an error the requests are still pending. The only choice is to ask again: the
            // kernel owns the memory and the sockets until they complete.
            let is_sending = self.lanes.state(index).is_sending();
            let _ = self.enter(u32::from(!is_sending), None);
            self.take_completions();
        }
        let pair = &mut self.lanes.0[index / 2];
        let released = LaneState {
            released: true,
            ..LaneState::NEW
        };
        let state = std::mem::replace(&mut pair.states[index % 2], released);
        if pair
            .states
            .iter()
            .all(|state| state.released && state.is_quiet())
        {
            self.lanes.0.remove(index / 2);
        }
        for piece in state.sending.into_iter().chain(state.received) {
            give_back(&mut self.message_buffers, &mut self.bulk_buffers, piece);
        }
        match state.send {
            SendState::Done(count) | SendState::Short(count) => count,
            _ => 0,
        }
    }

    /// Asks the kernel to cancel a receive that is marked. The kernel may not find the request
    /// while a multishot receive waits to continue (`MULTISHOT_MAX_RETRY`); then the completion of
    /// this request asks again.
    fn cancel(&mut self, index: usize) {
        let state = self.lanes.state(index);
        if state.cancelled && state.receive != ReceiveState::Idle {
            let entry = opcode::AsyncCancel::new(number(index, RECEIVE))
                .build()
                .flags(Flags::SKIP_SUCCESS);
            self.push(entry.user_data(number(index, CANCEL)));
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Only a task that panicked leaves lanes. The poll of the epoll instance may be pending.
        let all = CancelBuilder::any();
        let cancelled = self.uring.submitter().register_sync_cancel(None, all);
        let nothing_left = matches!(cancelled.map_err(errno_of), Ok(()) | Err(Errno::NOENT));
        if !nothing_left {
            // The kernel may still read what the lanes hold and write into provided buffers, so
            // they are leaked.
            for pair in self.lanes.0.drain() {
                std::mem::forget(pair);
            }
            self.message_buffers.leak();
            self.bulk_buffers.leak();
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("features", &self.features)
            .field("pairs", &self.lanes.0.len())
            .finish_non_exhaustive()
    }
}

fn number(index: usize, operation: u64) -> u64 {
    (index as u64) << OPERATION_BITS | operation
}

fn give_back(message_buffers: &mut BufferGroup, bulk_buffers: &mut BufferGroup, piece: Piece) {
    if piece.capacity() == message_buffers.buffer_bytes() {
        message_buffers.give_back(piece);
    } else {
        bulk_buffers.give_back(piece);
    }
}

fn errno_of(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
