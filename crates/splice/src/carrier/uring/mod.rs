//! `uring`: `io_uring(7)` receives into buffers that the kernel picks, and sends from them.
//!
//! ```text
//! socket a ──receive──▶ provided buffers ──send──▶ socket b
//! ```
//!
//! A loop with pairs of this engine has one [`Ring`] and waits in `io_uring_enter(2)`. The ring
//! watches the loop's epoll instance, so that a single call submits what is to be sent, sleeps, and
//! receives: where `copy` makes three system calls for a message, this engine makes one. It makes two
//! where the send is not silent (below), since its completion ends the wait that it was submitted with:
//! for a message that came in more than one buffer, and where the lane receives once. (In a loop that
//! somebody else drives, each turn asks epoll once and the ring twice.)
//!
//! Each direction of a pair has a [`Lane`]. What completes on it is told to the pair as readiness
//! of a socket, so that [`Direction`](crate::flow::Direction) drives it like a carrier:
//! filling takes what has come, draining submits a send and "would block" until it has completed.
//!
//! A lane receives in one of two ways:
//!
//! ```text
//!                reads bring bulk: cancelled
//!   multishot ─────────────────────────────▶ once, with a bounded length,
//!   into 4 KiB buffers ◀──────────────────── into 64 KiB buffers, a bundle of them where the
//!                reads are small             kernel has that
//! ```
//!
//! The multishot receive stays armed, so that a message costs no request. It takes what comes
//! without asking: a lane that has much in hand cancels it, and nothing is received until that has
//! been sent. What must not take a byte too much (a pair with a byte limit, or with little memory)
//! always receives once.
//!
//! A send does not wait: it is over when it was submitted, and epoll tells of room. Where a
//! multishot receive will bring the next message, a send of one piece is silent, so that the call
//! which submits it can go on to wait; it is counted when that call returns.
//!
//! Buffers and sockets belong to the kernel while a request names them. So a lane is let go only
//! when the last of its requests has completed ([`Ring::release`]), and the sockets are closed after
//! that.
#![allow(
    unsafe_code,
    reason = "requests that name memory; see the SAFETY comments"
)]

mod buffers;
mod completion;
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
pub(crate) use self::lane::{Lane, ReadHint};
use self::lane_state::{
    BufferKind, Gather, LanePair, LaneState, Lanes, ReceiveState, SendState, StreamEnd,
};
pub(crate) use self::setup::probe;
use self::setup::{Features, Opened};
use super::ReadOutcome;
use crate::reactor::{Key, Readiness};

/// With this much in hand that waits to be sent, a multishot receive is cancelled, in bytes.
const AHEAD_BYTES: usize = 64 << 10;

/// Below this share of memory a direction does not receive by multishot, in bytes: it takes as much
/// as is provided before it can be cancelled.
const MULTISHOT_BYTES: usize =
    AHEAD_BYTES + setup::MESSAGE_BUFFERS as usize * setup::MESSAGE_BUFFER_BYTES as usize;

/// No send waits for room on the ring: what waits there is woken at once and for ever where the
/// other end has ended its own stream (`IO_POLL_UNMASK` holds `EPOLLRDHUP`, 6.18). epoll knows room
/// from ends.
const SEND_FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// `IORING_RECVSEND_BUNDLE` of `linux/io_uring.h`.
const BUNDLE: u16 = 1 << 4;

/// What a completion is about, in the low bits of its number; the lane's index is above them.
const OPERATION_BITS: u32 = 3;
const RECEIVE: u64 = 0;
const SEND: u64 = 1;
const CANCEL: u64 = 2;
const EPOLL: u64 = 3;
const CLOCK: u64 = 4;

/// The rings of one loop, and the lanes on them.
pub(crate) struct Ring {
    uring: IoUring,
    features: Features,
    message_buffers: BufferGroup,
    bulk_buffers: BufferGroup,
    lanes: Lanes,
    /// Lanes whose pairs are to be told something.
    ready: VecDeque<usize>,
    /// Requests for which the submission queue has no room.
    waiting: VecDeque<Entry>,
    /// Lanes with a silent send.
    silent: Vec<usize>,
    /// Lanes that found no buffer: they are the first to have the next ones.
    starved: Vec<usize>,
    /// A request that watches the loop's epoll instance is under way.
    watches_epoll: bool,
    epoll_has_events: bool,
    /// A request that wakes the loop after `SILENT_MOST` is under way.
    clock_runs: bool,
    /// What calls a loop that does not wait in the ring.
    eventfd: Option<OwnedFd>,
}

impl Ring {
    /// Makes the rings.
    ///
    /// # Errors
    /// What the kernel said, for which [`probe`] has words.
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
            starved: Vec::new(),
            watches_epoll: false,
            epoll_has_events: false,
            clock_runs: false,
            eventfd: None,
        })
    }

    /// A place for the pair that is the task `key`: the lane that reads its socket 0, and the one
    /// that reads its socket 1.
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

    /// Takes what has come, and sees to it that more can come. Called with nothing in hand.
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
            // A socket tells its error once: where the other lane's send had it, a receive finds an
            // end of stream, which it is not.
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

    /// Has a receive under way, of the kind that is wanted.
    fn receive(&mut self, index: usize, fd: RawFd, hint: ReadHint) {
        let state = self.lanes.state(index);
        let multishot = self.features.multishot
            && hint.exactly_bytes.is_none()
            && hint.carrier_bytes >= MULTISHOT_BYTES
            && !hint.bulk;
        match state.receive {
            // An end of stream can come in between two looks of a multishot receive that was woken
            // by bytes, and then nothing wakes it again (`io_poll_check_events`). One that begins
            // looks anew.
            ReceiveState::Multishot if !state.cancelled && (!multishot || hint.outlasts) => {
                state.cancelled = true;
                self.cancel(index);
            }
            ReceiveState::Multishot | ReceiveState::Once { .. } => {}
            // One receive, one send: what was just received is sent while it is in the CPU's
            // cache, and the same buffers are used again. (With the next receive under way at
            // the same time, bulk cost 1.2 times the CPU time.)
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
                    // A bundle takes every buffer that is provided, whatever length was asked for
                    // (seen on 6.18).
                    let bundle = self.features.bundle
                        && size == BufferKind::Bulk
                        && hint.exactly_bytes.is_none()
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

    /// Submits the receive that the lane has.
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

    /// Gives what is in hand to the destination: tells how many bytes it took, or `EAGAIN` while
    /// that is not known.
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
            // The next call tells that it is blocked.
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
                    // Nothing else would bring the lane its next receive.
                    pieces if pieces.len() == 1 && state.receive == ReceiveState::Multishot => {
                        state.send = SendState::Silent(bytes);
                        self.silent.push(lane.index);
                        // With `MSG_WAITALL` a send that is not whole is a failed one, which is not
                        // silent.
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

    /// What the source has failed with behind the bytes that have come: a receive has taken the error
    /// from the socket.
    pub(crate) fn fault(&mut self, lane: &Lane) -> Option<Errno> {
        match self.lanes.state(lane.index).stream_end {
            Some(StreamEnd::Error(errno)) => Some(errno),
            _ => None,
        }
    }

    /// Takes `count` bytes out of the hand.
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

    /// Takes a lane off the ring, when none of its requests is under way any more. Tells how many
    /// bytes were sent that [`drain`](Self::drain) has not told of.
    pub(crate) fn release(&mut self, lane: &Lane) -> usize {
        let index = lane.index;
        let state = self.lanes.state(index);
        (state.cancelled, state.released) = (true, true);
        self.cancel(index);
        while !self.lanes.state(index).is_quiet() {
            // An error leaves the requests where they are. There is nothing else to do than to ask
            // again: the memory and the sockets are the kernel's until it says so.
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

    /// Asks the kernel to end a receive that is marked. It says so when it cannot find the request, as while a
    /// multishot receive waits to go on (`MULTISHOT_MAX_RETRY`); then it is asked again.
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
        // Lanes are left only by a task that panicked; the epoll instance may be watched.
        let all = CancelBuilder::any();
        let cancelled = self.uring.submitter().register_sync_cancel(None, all);
        let nothing_left = matches!(cancelled.map_err(errno_of), Ok(()) | Err(Errno::NOENT));
        if !nothing_left {
            // The kernel may still read what the lanes hold and write into what was provided: it is
            // not given back.
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
