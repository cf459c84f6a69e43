//! The sessions of one thread: found by client or by number, and ordered by their last use.

use std::collections::HashMap;
use std::time::Instant;

use slab::Slab;

use super::sender::Sender;
use super::session::Session;

/// Sessions in a list from the one that was used longest ago to the one that was used last.
#[derive(Default)]
pub(crate) struct Sessions {
    slots: Slab<Slot>,
    by_client: HashMap<(usize, Sender), usize>,
    oldest: Option<usize>,
    newest: Option<usize>,
}

struct Slot {
    session: Session,
    older: Option<usize>,
    newer: Option<usize>,
}

impl Sessions {
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of the session of `client` at a listener.
    pub(crate) fn find(&self, listener: usize, client: &Sender) -> Option<usize> {
        // The one that was used last is often the next one as well.
        if let Some(newest) = self.newest {
            let session = &self.slots[newest].session;
            if session.listener == listener && session.client == *client {
                return Some(newest);
            }
        }
        self.by_client.get(&(listener, client.clone())).copied()
    }

    pub(crate) fn get(&self, number: usize) -> Option<&Session> {
        self.slots.get(number).map(|slot| &slot.session)
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut Session> {
        self.slots.get_mut(number).map(|slot| &mut slot.session)
    }

    /// Every number is below it.
    pub(crate) fn numbers(&self) -> usize {
        self.slots.capacity()
    }

    /// The number that the next session has.
    pub(crate) fn next_number(&self) -> usize {
        self.slots.vacant_key()
    }

    /// Adds a session as the one that was used last.
    pub(crate) fn insert(&mut self, session: Session) -> usize {
        let key = (session.listener, session.client.clone());
        let number = self.slots.insert(Slot {
            session,
            older: None,
            newer: None,
        });
        self.by_client.insert(key, number);
        self.append(number);
        number
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<Session> {
        if !self.slots.contains(number) {
            return None;
        }
        self.unlink(number);
        let session = self.slots.remove(number).session;
        let key = (session.listener, session.client.clone());
        self.by_client.remove(&key);
        Some(session)
    }

    /// Makes a session the one that was used last.
    pub(crate) fn touch(&mut self, number: usize) {
        if self.newest != Some(number) {
            self.unlink(number);
            self.append(number);
        }
    }

    /// The session that was used longest ago.
    pub(crate) fn oldest(&self) -> Option<(usize, &Session)> {
        let number = self.oldest?;
        Some((number, &self.slots[number].session))
    }

    /// Calls `act` with those that were used at `since` or later.
    pub(crate) fn each_used_since(&mut self, since: Instant, act: impl Fn(&mut Session)) {
        for (_, slot) in &mut self.slots {
            if slot.session.used >= since {
                act(&mut slot.session);
            }
        }
    }

    fn append(&mut self, number: usize) {
        let older = self.newest.replace(number);
        let slot = &mut self.slots[number];
        slot.older = older;
        slot.newer = None;
        match older {
            Some(older) => self.slots[older].newer = Some(number),
            None => self.oldest = Some(number),
        }
    }

    fn unlink(&mut self, number: usize) {
        let Slot { older, newer, .. } = self.slots[number];
        match older {
            Some(older) => self.slots[older].newer = newer,
            None => self.oldest = newer,
        }
        match newer {
            Some(newer) => self.slots[newer].older = older,
            None => self.newest = older,
        }
    }
}
