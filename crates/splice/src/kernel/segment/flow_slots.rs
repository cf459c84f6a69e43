//! The slots of the table of flows: free, in use, and on offer.
//!
//! ```text
//!          take             offer, when the pair is over
//! free ───────────▶ in use ──────────────────────────────▶ on offer
//!  ▲                  │                                       │
//!  └──────────────────┴───────────────────────────────────────┘
//!                 give back; give up, when others are short of slots
//! ```

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use splice_bpf::types::SegmentTuple;

/// How long an ended flow keeps its slot in any case. By then every peer with a round-trip time of 200 ms or
/// less has retransmitted once what it saw no ACK for: it does so after a round trip and 200 ms
/// (`TCP_RTO_MIN`). Later retransmissions find no socket, as after a full TIME_WAIT, and the kernel answers
/// with a reset. That harms nobody: each peer has acknowledged the whole stream of the other, or was reset.
pub(super) const TIME_WAIT_LEAST: Duration = Duration::from_millis(400);

/// If fewer slots than this are free, flows on offer lose theirs. This is not put off until none is free: a
/// segment that has just found the old flow must not meet a new one in its place. At 40 000 new flows per
/// second, the most that `TIME_WAIT_LEAST` permits, 25 ms pass before a slot is used again.
const FEW_SLOTS: usize = 1024;

/// A flow that has ended, and the addresses of its segments.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) slot: u32,
    pub(super) serial: u32,
    pub(super) tuples: [SegmentTuple; 2],
}

#[derive(Debug)]
pub(super) struct FlowSlots {
    /// First in, first out, for the same reason as `FEW_SLOTS`.
    free: VecDeque<u32>,
    next_serial: u32,
    /// By the time of the offer and the serial number.
    on_offer: BTreeMap<(Instant, u32), Offer>,
}

impl FlowSlots {
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: (0..count).collect(),
            next_serial: 1,
            on_offer: BTreeMap::new(),
        }
    }

    /// A slot for a flow, and its serial number; `None` when there is none.
    pub(super) fn take(&mut self) -> Option<(u32, u32)> {
        let slot = self.free.pop_front()?;
        let serial = self.next_serial;
        // 0 means no flow.
        self.next_serial = serial.wrapping_add(1).max(1);
        Some((slot, serial))
    }

    pub(super) fn offer(&mut self, at: Instant, offer: Offer) {
        self.on_offer.insert((at, offer.serial), offer);
    }

    /// No more segments of the flow are expected.
    pub(super) fn give_back(&mut self, slot: u32, serial: u32, offered_at: Option<Instant>) {
        if let Some(at) = offered_at {
            self.on_offer.remove(&(at, serial));
        }
        self.free.push_back(slot);
    }

    /// If few slots are free, takes the slot of the flow that ended first.
    pub(super) fn give_up(&mut self, now: Instant) -> Option<Offer> {
        if self.free.len() >= FEW_SLOTS {
            return None;
        }
        let oldest = self.on_offer.first_entry()?;
        let (offered_at, _) = *oldest.key();
        if now.saturating_duration_since(offered_at) < TIME_WAIT_LEAST {
            return None;
        }
        let offer = oldest.remove();
        self.free.push_back(offer.slot);
        Some(offer)
    }

    /// Leaves only `count` slots free.
    #[cfg(test)]
    pub(super) fn keep_free(&mut self, count: usize) {
        self.free.truncate(count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{FEW_SLOTS, FlowSlots, Offer, TIME_WAIT_LEAST};

    /// With so many flows that are over, a millisecond after each other from `since` on.
    fn full_of_ended(since: Instant, count: u32) -> FlowSlots {
        let mut slots = FlowSlots::new(count);
        for number in 0..count {
            let (slot, serial) = slots.take().expect("a slot");
            let at = since + Duration::from_millis(number.into());
            let tuples = Default::default();
            slots.offer(
                at,
                Offer {
                    slot,
                    serial,
                    tuples,
                },
            );
        }
        assert_eq!(slots.take(), None);
        slots
    }

    #[test]
    fn the_flow_that_is_over_for_longest_gives_up_its_slot() {
        let since = Instant::now();
        let mut slots = full_of_ended(since, 3);
        let now = since + TIME_WAIT_LEAST + Duration::from_millis(1);
        let given_up: Vec<_> = std::iter::from_fn(|| slots.give_up(now))
            .map(|offer| offer.slot)
            .collect();
        assert_eq!(given_up, [0, 1]);
        assert_eq!(slots.take(), Some((0, 4)));
    }

    #[test]
    fn none_gives_up_its_slot_before_a_repetition_can_have_come() {
        let since = Instant::now();
        let mut slots = full_of_ended(since, 3);
        let now = since + TIME_WAIT_LEAST - Duration::from_millis(1);
        assert_eq!(slots.give_up(now), None);
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn none_gives_up_its_slot_while_there_are_others() {
        let since = Instant::now();
        let mut slots = full_of_ended(since, 1);
        slots.free.extend(1..=FEW_SLOTS as u32);
        let now = since + 2 * TIME_WAIT_LEAST;
        assert_eq!(slots.give_up(now), None);
        slots.take().expect("a slot");
        assert_eq!(slots.give_up(now).map(|offer| offer.slot), Some(0));
        // It is used after all others.
        let last = std::iter::from_fn(|| slots.take()).last();
        assert_eq!(last.map(|(slot, _)| slot), Some(0));
    }

    #[test]
    fn a_slot_that_is_given_back_is_not_on_offer() {
        let since = Instant::now();
        let mut slots = full_of_ended(since, 2);
        slots.give_back(0, 1, Some(since));
        let given_up = slots.give_up(since + 2 * TIME_WAIT_LEAST);
        assert_eq!(given_up.map(|offer| offer.slot), Some(1));
        assert_eq!(slots.give_up(since + 2 * TIME_WAIT_LEAST), None);
        assert_eq!(slots.free, [0, 1]);
    }
}
