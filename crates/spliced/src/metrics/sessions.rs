//! The sessions: how many there are, how they have ended, and what they have moved.
//!
//! Those that are alive are looked at some at a time, and what they have moved since the last look is added to their
//! tallies. What the kernel moves is read where it is counted, so no loop wakes up.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use prometheus_client::registry::Unit;
use splice::EngineName;

use super::family::{Family, Labels};
use crate::sessions::{Place, Sessions};
use crate::tally::{Tallies, Tally};

/// A look at all sessions.
#[derive(Debug, Default)]
pub(super) struct Look {
    place: Place,
    /// Those that are alive, by the address of their tally and by their engine.
    alive: HashMap<(usize, Option<EngineName>), Alive>,
}

#[derive(Debug)]
struct Alive {
    /// Held, so that no other tally gets its address.
    _tally: Arc<Tally>,
    count: u64,
}

impl Look {
    /// Looks at some sessions more. Returns whether there may be others.
    pub(super) fn go_on(&mut self, sessions: &Sessions) -> bool {
        let alive = &mut self.alive;
        sessions.visit_some(&mut self.place, &mut |some| {
            for session in some {
                let (tally, engine) = session.account();
                let address = Arc::as_ptr(&tally).addr();
                let new = Alive {
                    _tally: tally,
                    count: 0,
                };
                alive.entry((address, engine)).or_insert(new).count += 1;
            }
        })
    }

    pub(super) fn families(self, tallies: &Tallies) -> Vec<Family> {
        let mut opened = opened();
        let mut active = Family::gauge(
            "spliced_sessions_active",
            "Sessions that are alive, by the engine that has them now (none: before the join).",
        );
        let mut ended = Family::counter(
            "spliced_sessions_ended",
            "Sessions that have ended, by the engine that moved their last bytes and by how they ended.",
        );
        let mut moved = Family::counter(
            "spliced_moved",
            "Bytes of clients and targets that were moved, whoever moves them.",
        )
        .in_unit(Unit::Bytes);
        let mut promotions = Family::counter(
            "spliced_promotions",
            "Sessions for which an engine in the kernel was considered, by what has come of it.",
        );
        let mut not_accepted = Family::counter(
            "spliced_accept_errors",
            "Failures to accept a client, by the reason.",
        );
        let all = tallies.all();
        let mut by_listener = BTreeMap::<_, u64>::new();
        for tally in &all {
            for engine in EngineName::ALL.map(Some).into_iter().chain([None]) {
                let mut labels = labels(tally);
                labels.push(("engine", word(engine).into()));
                active.add(labels, self.count(tally, engine));
            }
            *by_listener.entry(&tally.listener).or_default() += tally.count_opened();
            for (direction, bytes) in DIRECTIONS.into_iter().zip(tally.bytes()) {
                let mut labels = labels(tally);
                labels.push(("direction", direction.into()));
                moved.add(labels, bytes);
            }
            for (engine, ending, count) in tally.endings() {
                let mut labels = labels(tally);
                labels.push(("engine", word(engine).into()));
                labels.push(("outcome", ending.word().into()));
                ended.add(labels, count);
            }
            for (promotion, count) in tally.all_promotions() {
                let mut labels = labels(tally);
                labels.push(("result", promotion.word().into()));
                promotions.add(labels, count);
            }
            if tally.backend.is_empty() {
                for (why, count) in tally.all_not_accepted() {
                    let listener = tally.listener.to_string();
                    let labels = vec![("listener", listener), ("reason", why.word().into())];
                    not_accepted.add(labels, count);
                }
            }
        }
        for (listener, count) in by_listener {
            opened.add(vec![("listener", listener.to_string())], count);
        }
        vec![opened, active, ended, moved, promotions, not_accepted]
    }
    fn count(&self, tally: &Arc<Tally>, engine: Option<EngineName>) -> u64 {
        let alive = self.alive.get(&(Arc::as_ptr(tally).addr(), engine));
        alive.map_or(0, |alive| alive.count)
    }
}

pub(super) fn opened() -> Family {
    Family::counter(
        "spliced_sessions_opened",
        "Clients that were accepted, by listener.",
    )
}

/// As the bytes of a tally.
const DIRECTIONS: [&str; 2] = ["client_to_target", "target_to_client"];

fn labels(tally: &Tally) -> Labels {
    vec![
        ("listener", tally.listener.to_string()),
        ("backend", tally.backend.to_string()),
    ]
}

fn word(engine: Option<EngineName>) -> &'static str {
    engine.map_or("none", EngineName::as_str)
}
