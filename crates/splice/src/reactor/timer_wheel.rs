//! Deadlines of many tasks, few of which are ever reached.
//!
//! A hierarchical timer wheel: level `n` has 64 slots of 64^n ticks each. A deadline is in the
//! level whose span it fits, and moves down as its time comes near. So setting, moving and
//! cancelling a deadline costs a few writes, however many there are. A task has one deadline. Its
//! node is in `nodes` at the task's index and is linked into a slot, so a deadline needs no
//! allocation.

use std::time::{Duration, Instant};

/// One tick: fine enough for repeated looks, and few enough to walk.
const TICK_MS: u64 = 1;
const SLOT_BITS: u32 = 6;
const SLOTS: usize = 1 << SLOT_BITS;
/// 64^5 ms are twelve days. A later deadline waits in the last slot and is inserted again.
const LEVELS: usize = 5;
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    due_tick: u64,
    /// The node's list: `level * SLOTS + slot`, or `NONE` if the task has no deadline.
    list: u32,
    previous: u32,
    next: u32,
}

const IDLE: Node = Node {
    due_tick: 0,
    list: NONE,
    previous: NONE,
    next: NONE,
};

pub(crate) struct TimerWheel {
    origin: Instant,
    /// All ticks up to this one have expired.
    now_tick: u64,
    occupied: [u64; LEVELS],
    heads: Box<[u32; LEVELS * SLOTS]>,
    nodes: Vec<Node>,
}

impl TimerWheel {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            now_tick: 0,
            occupied: [0; LEVELS],
            heads: Box::new([NONE; LEVELS * SLOTS]),
            nodes: Vec::new(),
        }
    }

    /// Sets the deadline of task `index` and replaces an earlier one.
    pub(crate) fn set(&mut self, index: usize, deadline: Instant) {
        self.cancel(index);
        if self.nodes.len() <= index {
            self.nodes.resize(index + 1, IDLE);
        }
        // Rounded up, since a deadline never fires early.
        let since = deadline.saturating_duration_since(self.origin);
        let due = since.as_nanos().div_ceil(u128::from(TICK_MS) * 1_000_000) as u64;
        self.nodes[index].due_tick = due.max(self.now_tick + 1);
        self.link(index as u32);
    }

    /// Removes the deadline of task `index`, if it has one.
    pub(crate) fn cancel(&mut self, index: usize) {
        if self.nodes.get(index).is_some_and(|node| node.list != NONE) {
            self.unlink(index as u32);
        }
    }

    /// When the loop must look again: never after the first deadline, and earlier only to move a
    /// deadline down a level. `None` without deadlines.
    pub(crate) fn next(&self) -> Option<Instant> {
        let tick = (0..LEVELS).filter_map(|level| self.first_in(level)).min()?;
        Some(self.origin + Duration::from_millis(tick * TICK_MS))
    }

    /// Removes the deadlines that have passed at `now`, and reports their tasks.
    pub(crate) fn expire(&mut self, now: Instant, mut expired: impl FnMut(usize)) {
        let until = now.saturating_duration_since(self.origin).as_millis() as u64 / TICK_MS;
        while self.now_tick < until {
            // Skip empty slots instead of walking each tick of a long sleep.
            let next = (0..LEVELS).filter_map(|level| self.first_in(level)).min();
            self.now_tick = match next {
                Some(tick) if tick <= until => tick,
                _ => {
                    self.now_tick = until;
                    return;
                }
            };
            for level in (0..LEVELS).rev() {
                let span_bits = SLOT_BITS * level as u32;
                if self.now_tick & ((1 << span_bits) - 1) != 0 {
                    continue;
                }
                let slot = (self.now_tick >> span_bits) as usize % SLOTS;
                let mut index = std::mem::replace(&mut self.heads[level * SLOTS + slot], NONE);
                self.occupied[level] &= !(1 << slot);
                while index != NONE {
                    let node = &mut self.nodes[index as usize];
                    let following = node.next;
                    let due = node.due_tick <= self.now_tick;
                    *node = Node {
                        due_tick: node.due_tick,
                        ..IDLE
                    };
                    if due {
                        expired(index as usize);
                    } else {
                        self.link(index);
                    }
                    index = following;
                }
            }
        }
    }

    /// The tick at which the first occupied slot of a level begins.
    fn first_in(&self, level: usize) -> Option<u64> {
        if self.occupied[level] == 0 {
            return None;
        }
        let span_bits = SLOT_BITS * level as u32;
        let position = self.now_tick >> span_bits;
        // The current slot is one revolution ahead: its own time has expired.
        let turned = self.occupied[level].rotate_right((position as u32 + 1) % SLOTS as u32);
        Some((position + 1 + u64::from(turned.trailing_zeros())) << span_bits)
    }

    fn link(&mut self, index: u32) {
        let due = self.nodes[index as usize].due_tick;
        let ahead = due.saturating_sub(self.now_tick).max(1);
        let level = ((63 - ahead.leading_zeros()) / SLOT_BITS).min(LEVELS as u32 - 1);
        let span_bits = SLOT_BITS * level;
        let furthest = (self.now_tick >> span_bits) + SLOTS as u64 - 1;
        let slot = (due >> span_bits).min(furthest) as usize % SLOTS;
        let list = level as usize * SLOTS + slot;
        let head = self.heads[list];
        let node = &mut self.nodes[index as usize];
        node.list = list as u32;
        node.previous = NONE;
        node.next = head;
        if head != NONE {
            self.nodes[head as usize].previous = index;
        }
        self.heads[list] = index;
        self.occupied[level as usize] |= 1 << slot;
    }

    fn unlink(&mut self, index: u32) {
        let Node {
            list,
            previous,
            next,
            ..
        } = self.nodes[index as usize];
        let list = list as usize;
        match previous {
            NONE => self.heads[list] = next,
            _ => self.nodes[previous as usize].next = next,
        }
        if next != NONE {
            self.nodes[next as usize].previous = previous;
        }
        if self.heads[list] == NONE {
            self.occupied[list / SLOTS] &= !(1 << (list % SLOTS));
        }
        self.nodes[index as usize].list = NONE;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn at(origin: Instant, ms: u64) -> Instant {
        origin + Duration::from_millis(ms)
    }

    #[test]
    fn an_empty_wheel_has_no_deadline() {
        assert_eq!(TimerWheel::new(Instant::now()).next(), None);
    }

    #[test]
    fn a_sleep_of_days_does_not_walk_its_ticks() {
        let origin = Instant::now();
        let mut wheel = TimerWheel::new(origin);
        wheel.set(3, at(origin, 40 * 24 * 3600 * 1000));
        let mut looks = 0;
        let mut fired = Vec::new();
        while let Some(next) = wheel.next() {
            looks += 1;
            wheel.expire(next, |index| fired.push(index));
        }
        assert_eq!(fired, [3]);
        assert!(looks < 16, "{looks} looks");
    }

    proptest! {
        /// Compared with a sorted map: each deadline fires once, never early, and no later than the
        /// first look after it. A loop that sleeps until `next` is never late.
        #[test]
        fn deadlines_fire_as_in_a_sorted_map(steps in prop::collection::vec(
            (0usize..20, prop_oneof![0u64..200, 0u64..70_000, 0u64..40_000_000], 0u64..5_000, 0u8..8), 1..200)) {
            let origin = Instant::now();
            let mut wheel = TimerWheel::new(origin);
            let mut model: BTreeMap<usize, u64> = BTreeMap::new();
            let mut now = 0;
            for (index, ahead, sleep, action) in steps {
                match action {
                    0 => { wheel.cancel(index); model.remove(&index); }
                    1 => now += sleep * 1000,
                    2..4 => now += sleep,
                    _ => {
                        wheel.set(index, at(origin, now + ahead));
                        model.insert(index, (now + ahead).max(wheel.now_tick + 1));
                    }
                }
                if let Some(first) = model.values().min() {
                    let next = wheel.next().expect("a deadline is set");
                    prop_assert!(next <= at(origin, *first));
                } else {
                    prop_assert_eq!(wheel.next(), None);
                }
                let mut fired = Vec::new();
                wheel.expire(at(origin, now), |index| fired.push(index));
                fired.sort_unstable();
                let due: Vec<_> =
                    model.iter().filter(|(_, tick)| **tick <= now).map(|(index, _)| *index).collect();
                prop_assert_eq!(&fired, &due);
                model.retain(|_, tick| *tick > now);
            }
        }
    }
}
