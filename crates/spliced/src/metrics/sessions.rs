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
use crate::tally::{DatagramTally, Tallies, Tally};

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
    /// So many of them lose segments.
    lost: u64,
}

impl Look {
    /// Looks at some sessions more. Returns whether there may be others.
    pub(super) fn go_on(&mut self, sessions: &Sessions) -> bool {
        let alive = &mut self.alive;
        sessions.visit_some(&mut self.place, &mut |some| {
            for session in some {
                let (tally, engine, is_lost) = session.account();
                let address = Arc::as_ptr(&tally).addr();
                let new = Alive {
                    _tally: tally,
                    count: 0,
                    lost: 0,
                };
                let alive = alive.entry((address, engine)).or_insert(new);
                alive.count += 1;
                alive.lost += u64::from(is_lost);
            }
        })
    }

    pub(super) fn families(self, tallies: &Tallies) -> Vec<Family> {
        let all = tallies.all();
        // Sessions go on meanwhile. The last step is read first, so that none has more of them than the one before it.
        let ended = ended(&all);
        let answering = answering(&all);
        let connecting = connecting(&all);
        let deciding = deciding(&all);
        let opened = opened_by_listener(&all);
        vec![
            opened,
            self.active(&all),
            self.losing(&all),
            ended,
            moved(&all),
            datagrams(&all),
            dropped(&all),
            promotions(&all),
            deciding,
            connecting,
            answering,
            accept_errors(&all),
        ]
    }

    fn active(&self, all: &[Arc<Tally>]) -> Family {
        let mut family = Family::gauge(
            "spliced_sessions_active",
            "Sessions that are alive, by the engine that has them now (none: before the join).",
        );
        for tally in all {
            for engine in EngineName::ALL.map(Some).into_iter().chain([None]) {
                let labels = labels(tally, &[("engine", word(engine))]);
                family.add(labels, self.count(tally, engine));
            }
        }
        family
    }

    fn losing(&self, all: &[Arc<Tally>]) -> Family {
        let family = Family::gauge(
            "spliced_sessions_losing_segments",
            "Sessions of segment that lose segments now, since the network stack has no way for them.",
        );
        with_backend(all).fold(family, |family, tally| {
            let lost = self.alive(tally, Some(EngineName::Segment));
            family.with(labels(tally, &[]), lost.map_or(0, |alive| alive.lost))
        })
    }

    fn count(&self, tally: &Arc<Tally>, engine: Option<EngineName>) -> u64 {
        let alone = self.alive(tally, engine).map_or(0, |alive| alive.count);
        match engine {
            // Their threads keep them to themselves.
            Some(EngineName::Copy) => alone + tally.datagrams().map_or(0, DatagramTally::alive),
            _ => alone,
        }
    }

    fn alive(&self, tally: &Arc<Tally>, engine: Option<EngineName>) -> Option<&Alive> {
        self.alive.get(&(Arc::as_ptr(tally).addr(), engine))
    }
}

fn opened() -> Family {
    Family::counter(
        "spliced_sessions_opened",
        "Clients that were accepted, by listener.",
    )
}

fn opened_by_listener(all: &[Arc<Tally>]) -> Family {
    let mut by_listener = BTreeMap::<_, u64>::new();
    for tally in all {
        *by_listener.entry(&tally.listener).or_default() += tally.count_opened();
    }
    by_listener
        .into_iter()
        .fold(opened(), |family, (listener, count)| {
            family.with(vec![("listener", listener.to_string())], count)
        })
}

fn ended(all: &[Arc<Tally>]) -> Family {
    let mut family = Family::counter(
        "spliced_sessions_ended",
        "Sessions that have ended, by the engine that moved their last bytes and by how they ended.",
    );
    for tally in all {
        for (engine, ending, count) in tally.endings() {
            let how = [("engine", word(engine)), ("outcome", ending.word())];
            family.add(labels(tally, &how), count);
        }
    }
    family
}

fn moved(all: &[Arc<Tally>]) -> Family {
    let mut family = Family::counter(
        "spliced_moved",
        "Bytes of clients and targets that were moved, whoever moves them.",
    )
    .in_unit(Unit::Bytes);
    for tally in all {
        for (direction, bytes) in DIRECTIONS.into_iter().zip(tally.bytes()) {
            family.add(labels(tally, &[("direction", direction)]), bytes);
        }
    }
    family
}

fn datagrams(all: &[Arc<Tally>]) -> Family {
    let mut family = Family::counter(
        "spliced_datagrams",
        "Datagrams of clients and targets that were passed on.",
    );
    for (tally, counts) in of_datagrams(all) {
        for (direction, passed) in DIRECTIONS.into_iter().zip(counts.passed()) {
            family.add(labels(tally, &[("direction", direction)]), passed);
        }
    }
    family
}

fn dropped(all: &[Arc<Tally>]) -> Family {
    let mut family = Family::counter(
        "spliced_dropped_datagrams",
        "Datagrams of clients and targets that were dropped, by the reason.",
    );
    for (tally, counts) in of_datagrams(all) {
        for (to, direction) in DIRECTIONS.into_iter().enumerate() {
            for (why, count) in counts.all_dropped(to) {
                let how = [("direction", direction), ("reason", why.word())];
                family.add(labels(tally, &how), count);
            }
        }
    }
    family
}

fn of_datagrams(all: &[Arc<Tally>]) -> impl Iterator<Item = (&Arc<Tally>, &DatagramTally)> {
    all.iter()
        .filter_map(|tally| Some((tally, tally.datagrams()?)))
}

fn promotions(all: &[Arc<Tally>]) -> Family {
    let mut family = Family::counter(
        "spliced_promotions",
        "Sessions for which an engine in the kernel was considered, by what has come of it.",
    );
    for tally in all {
        for (promotion, count) in tally.all_promotions() {
            family.add(labels(tally, &[("result", promotion.word())]), count);
        }
    }
    family
}

fn deciding(all: &[Arc<Tally>]) -> Family {
    let family = Family::histogram(
        "spliced_decide_duration",
        "From the accept of a client until its backend is found.",
    );
    with_backend(all).fold(family, |family, tally| {
        family.with(labels(tally, &[]), tally.deciding.read())
    })
}

fn connecting(all: &[Arc<Tally>]) -> Family {
    let family = Family::histogram(
        "spliced_connect_duration",
        "From the backend until a server is connected, with the queue and all attempts.",
    );
    with_backend(all).fold(family, |family, tally| {
        family.with(labels(tally, &[]), tally.connecting.read())
    })
}

fn answering(all: &[Arc<Tally>]) -> Family {
    let family = Family::histogram(
        "spliced_first_byte_duration",
        "From the connection to a server until the first byte of its payload goes on to the client.",
    );
    with_backend(all).fold(family, |family, tally| {
        family.with(labels(tally, &[]), tally.answering.read())
    })
}

fn accept_errors(all: &[Arc<Tally>]) -> Family {
    let mut family = Family::counter(
        "spliced_accept_errors",
        "Failures to accept a client, by the reason.",
    );
    for tally in all.iter().filter(|tally| tally.backend.is_empty()) {
        for (why, count) in tally.all_not_accepted() {
            let listener = tally.listener.to_string();
            let labels = vec![("listener", listener), ("reason", why.word().into())];
            family.add(labels, count);
        }
    }
    family
}

/// As the bytes of a tally.
const DIRECTIONS: [&str; 2] = ["client_to_target", "target_to_client"];

fn with_backend(all: &[Arc<Tally>]) -> impl Iterator<Item = &Arc<Tally>> {
    all.iter().filter(|tally| !tally.backend.is_empty())
}

/// Listener and backend, and `others`.
fn labels(tally: &Tally, others: &[(&'static str, &'static str)]) -> Labels {
    let names = [("listener", &tally.listener), ("backend", &tally.backend)];
    let names = names.map(|(label, name)| (label, name.to_string()));
    let others = others.iter().map(|(label, word)| (*label, (*word).into()));
    names.into_iter().chain(others).collect()
}

fn word(engine: Option<EngineName>) -> &'static str {
    engine.map_or("none", EngineName::as_str)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::iter;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::super::family::Value;
    use super::*;
    use crate::tally::Ending;

    /// Many listeners make a reading long.
    const LISTENERS: usize = 200;

    fn sum(family: &Family) -> u64 {
        let values = family.samples.iter().map(|sample| match &sample.value {
            Value::Whole(value) => *value,
            Value::Distributed(all) => all.buckets.iter().map(|(_, count)| count).sum(),
            Value::Real(_) => panic!("none of these is one"),
        });
        values.sum()
    }

    #[test]
    fn no_step_of_sessions_is_read_more_often_than_the_one_before_it() {
        let tallies = Tallies::default();
        let names = (0..LISTENERS).map(|number| number.to_string());
        let listeners = names.map(|name| tallies.of_listener(&name, iter::once("b")));
        let listeners: Vec<_> = listeners.collect();
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    for listener in &listeners {
                        let tally = listener.with("b");
                        listener.without_backend().opened(1);
                        tally.deciding.add(Duration::ZERO);
                        tally.connecting.add(Duration::ZERO);
                        tally.answering.add(Duration::ZERO);
                        tally.ended(None, Ending::EndOfStream);
                    }
                }
            });
            let (mut last, mut read) = (0, Vec::new());
            // The other thread has had its turn in between.
            for _ in 0..50 {
                let by_name = loop {
                    let families = Look::default().families(&tallies);
                    let sums = families.iter().map(|family| (family.name, sum(family)));
                    let by_name: BTreeMap<_, _> = sums.collect();
                    if by_name["spliced_sessions_opened"] > last {
                        break by_name;
                    }
                };
                last = by_name["spliced_sessions_opened"];
                let steps = [
                    "spliced_sessions_ended",
                    "spliced_first_byte_duration",
                    "spliced_connect_duration",
                    "spliced_decide_duration",
                    "spliced_sessions_opened",
                ];
                read.push(steps.map(|name| by_name[name]));
            }
            // A test that fails has to end, too.
            is_over.store(true, Ordering::Relaxed);
            let wrong = read.iter().find(|counts| !counts.is_sorted());
            assert_eq!(wrong, None);
        });
    }
}
