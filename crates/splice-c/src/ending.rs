//! How a pair ends: as one of the library, or as two one-way splices.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use splice::{Counters, OneWay, Reason, Side};

use crate::fault::{Fault, Result};

/// How many reads of the eventfd of an ended pair return at once, since each takes one: more than
/// anybody makes. So a program that reads it by mistake does not hide the end.
const READERS_MOST: u64 = 1 << 62;

/// How a pair ends, known to the caller and to the loops.
#[derive(Debug)]
pub(crate) struct Ending {
    /// Readable once the pair has ended.
    event: OwnedFd,
    state: Mutex<State>,
    /// The splices of a pair that can be undone, for the one that ends first.
    ways: OnceLock<Vec<Weak<OneWay>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// Why, as soon as it is decided.
    reason: Option<Reason>,
    /// What each direction has moved, once it has ended.
    moved: [Option<u64>; 2],
}

impl Ending {
    pub(crate) fn new() -> Result<Arc<Self>> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let event = eventfd(0, flags);
        let event = event.map_err(|errno| Fault::new(errno, "cannot create an eventfd"))?;
        Ok(Arc::new(Self {
            event,
            state: Mutex::new(State::default()),
            ways: OnceLock::new(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it has ended, and what it has moved; `None` while a direction runs.
    pub(crate) fn outcome(&self) -> Option<(Reason, Counters)> {
        let State { reason, moved } = *self.lock();
        let [a_to_b, b_to_a] = moved;
        let moved = Counters {
            a_to_b: a_to_b?,
            b_to_a: b_to_a?,
        };
        Some((reason?, moved))
    }

    fn tell(&self) {
        // It fails only if the counter is full, and then the event is readable.
        let _ = rustix::io::write(&self.event, &READERS_MOST.to_ne_bytes());
    }

    /// A pair of the library has ended.
    pub(crate) fn pair_ended(&self, reason: Reason, moved: Counters) {
        let mut state = self.lock();
        state.reason = Some(reason);
        state.moved = [moved.a_to_b, moved.b_to_a].map(Some);
        drop(state);
        self.tell();
    }

    /// Something else than an end of one of the splices ends the pair.
    pub(crate) fn decide(&self, reason: Reason) {
        self.lock().reason.get_or_insert(reason);
    }

    /// A one-way splice has ended: that from a to b is 0.
    pub(crate) fn way_ended(&self, way: usize, reason: Reason, moved_bytes: u64) {
        let mut state = self.lock();
        state.moved[way] = Some(moved_bytes);
        let both = state.moved.iter().all(Option::is_some);
        // EOF of one direction leaves the other one open.
        if state.reason.is_none() && (reason != Reason::EndOfStream || both) {
            state.reason = Some(of_pair(way, reason));
        }
        let is_decided = state.reason.is_some();
        drop(state);
        if both {
            self.tell();
        } else if is_decided {
            self.undo_rest();
        }
    }

    /// Says which splices a pair has that can be undone.
    pub(crate) fn know(&self, ways: &[Arc<OneWay>]) {
        let _ = self.ways.set(ways.iter().map(Arc::downgrade).collect());
        // One may have ended before the other one was there.
        if self.lock().reason.is_some() {
            self.undo_rest();
        }
    }

    /// Undoes what still runs of a pair whose end is decided.
    fn undo_rest(&self) {
        for way in self.ways.get().into_iter().flatten() {
            if let Some(way) = way.upgrade() {
                way.undo();
            }
        }
    }
}

impl AsFd for Ending {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// The sides of the splice from b to a are the other way round.
fn of_pair(way: usize, reason: Reason) -> Reason {
    let turned = |side: Side| match way {
        0 => side,
        _ => side.other(),
    };
    match reason {
        Reason::Failed { side, errno } => {
            let errno = Errno::from_raw_os_error(errno);
            match errno {
                Errno::CONNRESET | Errno::PIPE => Reason::Reset(turned(side)),
                other => Reason::Failed {
                    side: turned(side),
                    errno: other.raw_os_error(),
                },
            }
        }
        Reason::Reset(side) => Reason::Reset(turned(side)),
        other => other,
    }
}
