//! Who is in the mesh: names, addresses, and since when nothing has gone to or come from a member.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use splice::mesh::MemberCounters;

/// What is known of a member beside what the mesh knows.
#[derive(Debug)]
pub(super) struct Person {
    pub(super) from: Option<SocketAddr>,
    pub(super) name: Option<String>,
    pub(super) since: Instant,
    /// How many frames it had sent and got, and when that was seen first.
    last: (u64, Instant),
}

#[derive(Debug, Default)]
pub(super) struct Present {
    people: BTreeMap<u64, Person>,
    names: BTreeMap<String, u64>,
}

impl Present {
    pub(super) fn enter(&mut self, id: u64, from: Option<SocketAddr>, name: Option<String>) {
        let since = Instant::now();
        if let Some(name) = &name {
            self.names.insert(name.clone(), id);
        }
        let last = (0, since);
        self.people.insert(
            id,
            Person {
                from,
                name,
                since,
                last,
            },
        );
    }

    pub(super) fn leave(&mut self, id: u64) -> Option<Person> {
        let person = self.people.remove(&id)?;
        if let Some(name) = &person.name {
            self.names.remove(name);
        }
        Some(person)
    }

    pub(super) fn has(&self, id: u64) -> bool {
        self.people.contains_key(&id)
    }

    pub(super) fn named(&self, name: &str) -> Option<u64> {
        self.names.get(name).copied()
    }

    /// Who has neither sent nor got a frame for `time`.
    pub(super) fn idle(
        &mut self,
        time: Duration,
        counters: impl Fn(u64) -> Option<MemberCounters>,
    ) -> Vec<u64> {
        let now = Instant::now();
        let mut idle = Vec::new();
        for (id, person) in &mut self.people {
            let Some(counters) = counters(*id) else {
                continue;
            };
            let frames = counters.sent_frames
                + counters.unknown_frames
                + counters.full_frames
                + counters.passed_frames
                + counters.received_frames;
            if frames != person.last.0 {
                person.last = (frames, now);
            } else if now.saturating_duration_since(person.last.1) >= time {
                idle.push(*id);
            }
        }
        idle
    }
}
