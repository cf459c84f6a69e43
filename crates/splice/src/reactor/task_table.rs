//! The table of a loop's tasks. Each task has a slot with a generation, so that an event of a
//! finished task cannot reach the next task in the same slot.

use std::collections::VecDeque;

use slab::Slab;

use super::task::Task;
use super::token::{GENERATION_BITS, Key};

struct Slot {
    generation: u32,
    /// In `waiting` already.
    queued: bool,
    /// `None` while the task runs.
    task: Option<Box<dyn Task>>,
}

#[derive(Default)]
pub(super) struct TaskTable {
    slab: Slab<Slot>,
    next_generation: u32,
    /// The tasks that are runnable in the next turn.
    waiting: VecDeque<Key>,
}

impl TaskTable {
    pub(super) fn insert(&mut self, task: Box<dyn Task>) -> Key {
        let generation = self.next_generation;
        self.next_generation = (generation + 1) % (1 << GENERATION_BITS);
        let index = self.slab.insert(Slot {
            generation,
            queued: false,
            task: Some(task),
        });
        key(index, generation)
    }

    /// Takes a task out of its slot to run or close it. `None` if the task has ended or already
    /// runs.
    pub(super) fn take(&mut self, key: Key) -> Option<Box<dyn Task>> {
        self.get_mut(key)?.task.take()
    }

    /// After [`take`](Self::take): only the caller that has taken the task out removes its slot.
    pub(super) fn put_back(&mut self, key: Key, task: Box<dyn Task>, waits: bool) {
        let slot = &mut self.slab[key.index as usize];
        slot.task = Some(task);
        if waits && !slot.queued {
            slot.queued = true;
            self.waiting.push_back(key);
        }
    }

    /// After [`take`](Self::take).
    pub(super) fn remove(&mut self, key: Key) {
        self.slab.remove(key.index as usize);
    }

    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn next_waiting(&mut self) -> Option<Key> {
        let key = self.waiting.pop_front()?;
        if let Some(slot) = self.get_mut(key) {
            slot.queued = false;
        }
        Some(key)
    }

    pub(super) fn key_at(&self, index: usize) -> Option<Key> {
        Some(key(index, self.slab.get(index)?.generation))
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        let slots = self.slab.iter();
        slots
            .map(|(index, slot)| key(index, slot.generation))
            .collect()
    }

    /// All tasks except the one that runs.
    pub(super) fn iter(&self) -> impl Iterator<Item = &dyn Task> {
        let slots = self.slab.iter();
        slots.filter_map(|(_, slot)| slot.task.as_deref())
    }

    pub(super) fn len(&self) -> usize {
        self.slab.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slab.is_empty()
    }

    fn get_mut(&mut self, key: Key) -> Option<&mut Slot> {
        let slot = self.slab.get_mut(key.index as usize)?;
        (slot.generation == key.generation).then_some(slot)
    }
}

fn key(index: usize, generation: u32) -> Key {
    Key {
        index: index as u32,
        generation,
    }
}
