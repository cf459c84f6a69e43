//! Both directions of a relay in full flow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::owner::Owner;
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{Over, Peer};

/// What a sender sends at a time, in bytes.
const CHUNK_BYTES: u64 = 40_000;

/// Bytes on their way from one peer to another, compared with what was sent.
struct Flow<'peers> {
    from: &'peers Peer,
    to: &'peers Peer,
    payload: Payload,
    announced: AtomicU64,
    received: AtomicU64,
}

impl<'peers> Flow<'peers> {
    fn new(from: &'peers Peer, to: &'peers Peer, salt: u64) -> Self {
        Self {
            from,
            to,
            payload: Payload::new(salt),
            announced: AtomicU64::new(0),
            received: AtomicU64::new(0),
        }
    }

    fn send(&self, stop: &AtomicBool) {
        while !stop.load(Ordering::Acquire) {
            let position = self.announced.fetch_add(CHUNK_BYTES, Ordering::AcqRel);
            self.from.send(self.payload, position, CHUNK_BYTES);
        }
    }

    fn receive(&self, stop: &AtomicBool) {
        loop {
            // In this order: what was announced before the end is read.
            let is_last = stop.load(Ordering::Acquire);
            let position = self.received.load(Ordering::Acquire);
            if position < self.announced.load(Ordering::Acquire) {
                self.to.expect(self.payload, position, CHUNK_BYTES);
                self.received.fetch_add(CHUNK_BYTES, Ordering::AcqRel);
            } else if is_last {
                return;
            } else {
                thread::yield_now();
            }
        }
    }

    fn wait_further(&self) {
        let before = self.received.load(Ordering::Acquire);
        until("bytes arrive", || {
            self.received.load(Ordering::Acquire) > before + 10 * CHUNK_BYTES
        });
    }
}

/// Both directions in full flow while `work` runs; then everything that was sent has arrived.
pub(super) fn in_full_flow(owner: &Owner, work: impl FnOnce(&dyn Fn())) {
    let there = Flow::new(&owner.client, &owner.server, 1);
    let back = Flow::new(&owner.server, &owner.client, 2);
    let [stopped, ended] = [AtomicBool::new(false), AtomicBool::new(false)];
    thread::scope(|scope| {
        let all_is_sent = Over(&ended);
        let stop = Over(&stopped);
        let senders = [&there, &back].map(|flow| scope.spawn(|| flow.send(&stopped)));
        for flow in [&there, &back] {
            scope.spawn(|| flow.receive(&ended));
        }
        work(&|| [&there, &back].iter().for_each(|flow| flow.wait_further()));
        drop(stop);
        for sender in senders {
            sender.join().expect("everything is sent");
        }
        drop(all_is_sent);
    });
    for Flow {
        received,
        announced,
        ..
    } in [there, back]
    {
        assert_eq!(received.into_inner(), announced.into_inner());
    }
}
