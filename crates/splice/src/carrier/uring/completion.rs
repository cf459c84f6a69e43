//! Completions, and what pairs learn from them.

use io_uring::cqueue;
use rustix::io::Errno;

use super::buffers::{Piece, Taken};
use super::lane_state::{BufferKind, ReceiveState, SendState, StreamEnd};
use super::{AHEAD_BYTES, CLOCK, EPOLL, OPERATION_BITS, RECEIVE, Ring, SEND};
use crate::reactor::Readiness;

impl Ring {
    /// Takes all completions, and provides new buffers.
    pub(super) fn take_completions(&mut self) {
        while let Some(entry) = { self.uring.completion().next() } {
            let index = (entry.user_data() >> OPERATION_BITS) as usize;
            match entry.user_data() & ((1 << OPERATION_BITS) - 1) {
                RECEIVE => self.received(index, &entry),
                SEND => {
                    let state = self.lanes.state(index);
                    let (SendState::Submitted(all) | SendState::Silent(all)) = state.send else {
                        continue;
                    };
                    state.send = match usize::try_from(entry.result()) {
                        Ok(count) if count == all => SendState::Done(count),
                        Ok(count) => SendState::Short(count),
                        Err(_) => match Errno::from_raw_os_error(-entry.result()) {
                            Errno::AGAIN => SendState::Short(0),
                            Errno::INTR => SendState::Idle,
                            errno => SendState::Failed(errno),
                        },
                    };
                    self.tell_writable(index);
                }
                CLOCK => {
                    self.clock_runs = false;
                    self.receive_forgotten();
                }
                EPOLL => {
                    self.watches_epoll = false;
                    self.epoll_has_events = true;
                }
                // The pair may have ended, and another one have its index.
                _ if self.lanes.0.contains(index / 2) => self.cancel(index),
                _ => {}
            }
        }
        // Submitted sends are complete, and the errors among them were taken above, unless they did
        // not fit into the queue.
        let queue = self.uring.submission();
        let all_said = queue.is_empty() && !queue.cq_overflow();
        drop(queue);
        if self.waiting.is_empty() && all_said {
            while let Some(index) = self.silent.pop() {
                let Some(pair) = self.lanes.0.get_mut(index / 2) else {
                    continue;
                };
                let state = &mut pair.states[index % 2];
                if let SendState::Silent(count) = state.send {
                    state.send = SendState::Done(count);
                    self.tell_writable(index);
                }
            }
        }
        self.message_buffers.refill();
        self.bulk_buffers.refill();
        for index in std::mem::take(&mut self.starved) {
            self.request(index);
        }
    }

    fn received(&mut self, index: usize, entry: &cqueue::Entry) {
        let state = self.lanes.state(index);
        let (is_bulk, group) = match state.receive {
            ReceiveState::Once {
                size: BufferKind::Bulk,
                ..
            } => (true, &mut self.bulk_buffers),
            _ => (false, &mut self.message_buffers),
        };
        let bytes = usize::try_from(entry.result()).unwrap_or(0);
        if state.receive == ReceiveState::Multishot {
            self.suspects.note(index, state, bytes);
        }
        let mut is_lost = false;
        if let Some(first) = cqueue::buffer_select(entry.flags()) {
            let mut none = None;
            let taken = group.take(first, bytes, |piece| match piece.len() {
                0 => none = Some(piece),
                _ => state.received.push_back(piece),
            });
            if let Some(piece) = none {
                group.give_back(piece);
            }
            is_lost = taken == Taken::Lost;
            // Completions of multishot receives come before those of single receives.
            if is_bulk && taken != Taken::InTurn {
                self.features.bundle = false;
            }
        }
        // A burst has used up the buffers.
        if entry.result() == -Errno::NOBUFS.raw_os_error() && !state.cancelled {
            return self.starved.push(index);
        }
        let goes_on = cqueue::more(entry.flags());
        let was = state.receive;
        if !goes_on {
            state.receive = ReceiveState::Idle;
            state.cancelled = false;
        }
        match entry.result() {
            0 => state.stream_end = Some(StreamEnd::EndOfStream),
            error if error < 0 => match Errno::from_raw_os_error(-error) {
                // The direction tries again if it wants to.
                Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                // Linux before 6.0. Every receive that was submitted meanwhile fails in the same
                // way.
                Errno::INVAL if was == ReceiveState::Multishot => {
                    self.features.multishot = false;
                }
                errno => state.stream_end = Some(StreamEnd::Error(errno)),
            },
            _ if is_lost => state.stream_end = Some(StreamEnd::Error(Errno::IO)),
            _ => {}
        }
        let much = state.receive == ReceiveState::Multishot
            && !state.cancelled
            && state.received.iter().map(Piece::capacity).sum::<usize>() >= AHEAD_BYTES;
        if much {
            state.cancelled = true;
            self.cancel(index);
        }
        if self.lanes.tell(index, index % 2, Readiness::READABLE) {
            self.ready.push_back(index / 2);
        }
    }

    fn tell_writable(&mut self, index: usize) {
        if self.lanes.tell(index, 1 - index % 2, Readiness::WRITABLE) {
            self.ready.push_back(index / 2);
        }
    }
}
