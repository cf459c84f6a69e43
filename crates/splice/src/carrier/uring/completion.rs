//! What the kernel says has been done, and what the pairs are told of it.

use io_uring::cqueue;
use rustix::io::Errno;

use super::buffers::{Piece, Taken};
use super::flow::{Behind, Receive, Send, Size};
use super::{AHEAD_BYTES, CLOCK, EPOLL, OPERATION_BITS, RECEIVE, Ring, SEND};
use crate::reactor::Readiness;

impl Ring {
    /// Takes what has completed, and lets the kernel have new buffers.
    pub(super) fn take_completions(&mut self) {
        while let Some(entry) = { self.uring.completion().next() } {
            let index = (entry.user_data() >> OPERATION_BITS) as usize;
            match entry.user_data() & ((1 << OPERATION_BITS) - 1) {
                RECEIVE => self.received(index, &entry),
                SEND => {
                    let flow = self.places.flow(index);
                    let (Send::Submitted(all) | Send::Silent(all)) = flow.send else {
                        continue;
                    };
                    flow.send = match usize::try_from(entry.result()) {
                        Ok(count) if count == all => Send::Done(count),
                        Ok(count) => Send::Short(count),
                        Err(_) => match Errno::from_raw_os_error(-entry.result()) {
                            Errno::AGAIN => Send::Short(0),
                            Errno::INTR => Send::Idle,
                            errno => Send::Failed(errno),
                        },
                    };
                    self.tell_writable(index);
                }
                CLOCK => self.clock_runs = false,
                EPOLL => {
                    self.watches_epoll = false;
                    self.epoll_called = true;
                }
                // The pair may be gone, and another one in its place.
                _ if self.places.0.contains(index / 2) => self.cancel(index),
                _ => {}
            }
        }
        // Those that are submitted are over, and their complaints, if any, were taken above, unless
        // they did not fit into the queue.
        let queue = self.uring.submission();
        let all_said = queue.is_empty() && !queue.cq_overflow();
        drop(queue);
        if self.waiting.is_empty() && all_said {
            while let Some(index) = self.silent.pop() {
                let Some(place) = self.places.0.get_mut(index / 2) else {
                    continue;
                };
                let flow = &mut place.flows[index % 2];
                if let Send::Silent(count) = flow.send {
                    flow.send = Send::Done(count);
                    self.tell_writable(index);
                }
            }
        }
        self.message_buffers.refill();
        self.bulk_buffers.refill();
        for index in std::mem::take(&mut self.hungry) {
            self.request(index);
        }
    }

    fn received(&mut self, index: usize, entry: &cqueue::Entry) {
        let flow = self.places.flow(index);
        let (is_bulk, group) = match flow.receive {
            Receive::Once {
                size: Size::Bulk, ..
            } => (true, &mut self.bulk_buffers),
            _ => (false, &mut self.message_buffers),
        };
        let bytes = usize::try_from(entry.result()).unwrap_or(0);
        let mut is_lost = false;
        if let Some(first) = cqueue::buffer_select(entry.flags()) {
            let mut none = None;
            let taken = group.take(first, bytes, |piece| match piece.len() {
                0 => none = Some(piece),
                _ => flow.received.push_back(piece),
            });
            if let Some(piece) = none {
                group.give_back(piece);
            }
            is_lost = taken == Taken::Lost;
            // Receives by multishot are told of before those that were asked for once.
            if is_bulk && taken != Taken::InTurn {
                self.features.bundle = false;
            }
        }
        // A burst has used up the buffers.
        if entry.result() == -Errno::NOBUFS.raw_os_error() && !flow.cancelled {
            return self.hungry.push(index);
        }
        let goes_on = cqueue::more(entry.flags());
        let was = flow.receive;
        if !goes_on {
            flow.receive = Receive::Idle;
            flow.cancelled = false;
        }
        match entry.result() {
            0 => flow.behind = Some(Behind::EndOfStream),
            error if error < 0 => match Errno::from_raw_os_error(-error) {
                // There is to be another try, if any.
                Errno::NOBUFS | Errno::CANCELED | Errno::INTR | Errno::AGAIN => {}
                // Linux before 6.0; every receive that was asked for meanwhile says so.
                Errno::INVAL if was == Receive::Multishot => {
                    self.features.multishot = false;
                }
                errno => flow.behind = Some(Behind::Fault(errno)),
            },
            _ if is_lost => flow.behind = Some(Behind::Fault(Errno::IO)),
            _ => {}
        }
        let much = flow.receive == Receive::Multishot
            && !flow.cancelled
            && flow.received.iter().map(Piece::capacity).sum::<usize>() >= AHEAD_BYTES;
        if much {
            flow.cancelled = true;
            self.cancel(index);
        }
        if self.places.tell(index, index % 2, Readiness::READABLE) {
            self.ready.push_back(index / 2);
        }
    }

    fn tell_writable(&mut self, index: usize) {
        if self.places.tell(index, 1 - index % 2, Readiness::WRITABLE) {
            self.ready.push_back(index / 2);
        }
    }
}
