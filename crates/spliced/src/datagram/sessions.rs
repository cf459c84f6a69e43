//! The sessions of one thread: found by client or by number, and ordered by standing and last use.
//!
//! ```text
//!      the client sends again after an answer
//! new ───────────────────────────────────────▶ assured
//!  └────────────────────┬──────────────────────┘  ▲
//!                       ▼ all expected answers    │ the client sends again
//!                    finished ────────────────────┘
//! ```
//!
//! Whoever forges a source address sees no answer. So a session becomes assured only if its client sends again after
//! an answer, and at the bound those that are not assured make room.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use slab::Slab;
use splice_route::Prefix;

use super::queue::{Place, Placed, Queue};
use super::sender::Sender;
use super::session::{Session, Standing};
use crate::plan::DatagramTerms;

/// How long a session with all its answers waits for another datagram: a duplicate of the answer, or the next
/// question of the same socket.
const FINISHED: Duration = Duration::from_secs(2);

/// The part of all sessions that those that are not assured may always have, one in so many. It keeps new clients from
/// displacing each other at once when all other sessions are assured.
const SHARE_OF_NEW: usize = 8;

#[derive(Default)]
pub(crate) struct Sessions {
    slots: Slab<Slot>,
    by_client: HashMap<(usize, Sender), usize>,
    /// The one that was used last.
    last: Option<usize>,
    /// By standing.
    queues: [Queue; 3],
    /// Those of each client, if its sessions are limited.
    of_clients: HashMap<Prefix, usize>,
    clients: Slab<Queue>,
}

struct Slot {
    session: Session,
    standing: Standing,
    by_standing: Place,
    /// Its client's addresses, and their list.
    client: Option<(Prefix, usize)>,
    of_client: Place,
}

const BY_STANDING: usize = 0;
const OF_CLIENT: usize = 1;

impl Placed<BY_STANDING> for Slot {
    fn place(&mut self) -> &mut Place {
        &mut self.by_standing
    }
}

impl Placed<OF_CLIENT> for Slot {
    fn place(&mut self) -> &mut Place {
        &mut self.of_client
    }
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// The number of the session of `client` at a listener.
    pub(crate) fn find(&self, listener: usize, client: &Sender) -> Option<usize> {
        // The one that was used last is often the next one as well.
        if let Some(last) = self.last {
            let session = &self.slots[last].session;
            if session.listener == listener && session.client == *client {
                return Some(last);
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

    /// Adds a session as the one that was used last. `client` are the addresses that count as its client, if their
    /// sessions are limited.
    pub(crate) fn insert(&mut self, session: Session, client: Option<Prefix>) -> usize {
        let key = (session.listener, session.client.clone());
        let client = client.map(|prefix| {
            let clients = &mut self.clients;
            let list = self.of_clients.entry(prefix);
            (
                prefix,
                *list.or_insert_with(|| clients.insert(Queue::default())),
            )
        });
        let number = self.slots.insert(Slot {
            session,
            standing: Standing::New,
            by_standing: Place::default(),
            client,
            of_client: Place::default(),
        });
        self.by_client.insert(key, number);
        self.queues[Standing::New as usize].append::<BY_STANDING, _>(&mut self.slots, number);
        if let Some((_, list)) = client {
            self.clients[list].append::<OF_CLIENT, _>(&mut self.slots, number);
        }
        self.last = Some(number);
        number
    }

    pub(crate) fn remove(&mut self, number: usize) -> Option<Session> {
        let slot = self.slots.get(number)?;
        let (standing, client) = (slot.standing, slot.client);
        self.queues[standing as usize].unlink::<BY_STANDING, _>(&mut self.slots, number);
        if let Some((prefix, list)) = client {
            self.clients[list].unlink::<OF_CLIENT, _>(&mut self.slots, number);
            if self.clients[list].length == 0 {
                self.clients.remove(list);
                self.of_clients.remove(&prefix);
            }
        }
        if self.last == Some(number) {
            self.last = None;
        }
        let session = self.slots.remove(number).session;
        let key = (session.listener, session.client.clone());
        self.by_client.remove(&key);
        Some(session)
    }

    /// Makes a session the one that was used last, with the standing that it has now.
    pub(crate) fn touch(&mut self, number: usize, terms: &DatagramTerms) {
        let slot = &mut self.slots[number];
        let (before, client) = (slot.standing, slot.client);
        let after = slot.session.standing(terms.replies);
        slot.standing = after;
        if before != after || self.queues[after as usize].newest != Some(number) {
            self.queues[before as usize].unlink::<BY_STANDING, _>(&mut self.slots, number);
            self.queues[after as usize].append::<BY_STANDING, _>(&mut self.slots, number);
        }
        if let Some((_, list)) = client
            && self.clients[list].newest != Some(number)
        {
            self.clients[list].unlink::<OF_CLIENT, _>(&mut self.slots, number);
            self.clients[list].append::<OF_CLIENT, _>(&mut self.slots, number);
        }
        self.last = Some(number);
    }

    /// Calls `act` with each.
    pub(crate) fn each(&mut self, mut act: impl FnMut(&mut Session)) {
        for (_, slot) in &mut self.slots {
            act(&mut slot.session);
        }
    }

    /// Calls `act` with those that were used at `since` or later.
    pub(crate) fn each_used_since(&mut self, since: Instant, act: impl Fn(&mut Session)) {
        for (_, slot) in &mut self.slots {
            if slot.session.used >= since {
                act(&mut slot.session);
            }
        }
    }

    /// Any session.
    pub(crate) fn any(&self) -> Option<usize> {
        self.queues.iter().find_map(|queue| queue.oldest)
    }

    /// The session that is idle first, with its standing and when that is, if a session is idle after `timeout`.
    pub(crate) fn next_idle(&self, timeout: Duration) -> Option<(usize, Standing, Instant)> {
        let each = self.queues.iter().filter_map(|queue| {
            let number = queue.oldest?;
            let Slot {
                session, standing, ..
            } = &self.slots[number];
            let timeout = match standing {
                Standing::Finished => timeout.min(FINISHED),
                _ => timeout,
            };
            // Without an end it never is.
            let at = session.used.checked_add(timeout)?;
            Some((number, *standing, at))
        });
        each.min_by_key(|(_, _, at)| *at)
    }

    /// The session that makes room for a new one, if there are `most`.
    pub(crate) fn to_displace(&self, most: usize) -> Option<usize> {
        let assured = self.queues[Standing::Assured as usize].length;
        let others = self.slots.len() - assured;
        if others.saturating_mul(SHARE_OF_NEW) >= most {
            return self.any();
        }
        // Those that are not assured have no more than their share.
        let oldest = self.queues.iter().filter_map(|queue| queue.oldest);
        oldest.min_by_key(|number| self.slots[*number].session.used)
    }

    /// Sorts the sessions anew by their clients, where `client_of` has the addresses that count as one client.
    pub(crate) fn regroup(&mut self, client_of: impl Fn(&Sender) -> Option<Prefix>) {
        self.of_clients.clear();
        self.clients.clear();
        let mut numbers: Vec<_> = self.slots.iter().map(|(number, _)| number).collect();
        numbers.sort_by_key(|number| self.slots[*number].session.used);
        for number in numbers {
            let slot = &mut self.slots[number];
            slot.of_client = Place::default();
            slot.client = None;
            if let Some(prefix) = client_of(&slot.session.client) {
                let clients = &mut self.clients;
                let list = self.of_clients.entry(prefix);
                let list = *list.or_insert_with(|| clients.insert(Queue::default()));
                slot.client = Some((prefix, list));
                self.clients[list].append::<OF_CLIENT, _>(&mut self.slots, number);
            }
        }
    }

    /// The clients whose sessions are limited.
    pub(crate) fn limited_clients(&self) -> Vec<Prefix> {
        self.of_clients.keys().copied().collect()
    }

    /// The session of a client that was used longest ago.
    pub(crate) fn oldest_of(&self, client: &Prefix) -> Option<usize> {
        let list = self.of_clients.get(client)?;
        self.clients[*list].oldest
    }
}
