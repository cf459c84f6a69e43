//! Calls of the program: it holds a flow, whose pair is to look.

use std::collections::HashMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use crate::reactor::Notifier;
use splice_base::Result;
use splice_bpf::{Map, RingBuffer};

/// Who is called. The program writes slots into a ring; see `segment_calls` in bpf/segment/maps.h.
pub(super) struct Calls {
    map: Map,
    ring: Mutex<RingBuffer>,
    /// By the slot of the flow, with its serial number.
    listeners: Mutex<HashMap<u32, (u32, Waker)>>,
}

impl Calls {
    pub(super) fn of(map: Map) -> Result<Self> {
        Ok(Self {
            ring: Mutex::new(map.consume()?),
            map,
            listeners: Mutex::default(),
        })
    }

    pub(super) fn listen(&self, slot: u32, serial: u32, waker: Waker) {
        self.listeners().insert(slot, (serial, waker));
    }

    /// Has every pair look.
    pub(super) fn wake_all(&self) {
        let listeners = self.listeners();
        let wakers: Vec<_> = listeners.values().map(|(_, waker)| waker.clone()).collect();
        drop(listeners);
        wakers.iter().for_each(Waker::wake_by_ref);
    }

    /// Unless another flow has the slot by now.
    pub(super) fn hang_up(&self, slot: u32, serial: u32) {
        let mut listeners = self.listeners();
        if listeners
            .get(&slot)
            .is_some_and(|(known, _)| *known == serial)
        {
            listeners.remove(&slot);
        }
    }

    fn listeners(&self) -> MutexGuard<'_, HashMap<u32, (u32, Waker)>> {
        // Every change is complete before anything can panic.
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Notifier for Calls {
    fn fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }

    fn answer(&self) {
        let mut wakers = Vec::new();
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.take(|slot| {
            let listeners = self.listeners();
            wakers.extend(listeners.get(&slot).map(|(_, waker)| waker.clone()));
        });
        drop(ring);
        wakers.iter().for_each(Waker::wake_by_ref);
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Calls").finish_non_exhaustive()
    }
}
