//! The sessions that are alive: who is connected with whom, by which engine, and how much has passed.
//!
//! ```text
//! accepted ──enter──▶ in the registry ──Entry is dropped: it has ended, and was logged──▶ over
//! ```
//!
//! Nothing here is asked for per byte. A session says what changes in it a few times in its life ([`Session`]); its
//! bytes are read where the loop, or a BPF program, counts them. The reader is another thread than the loops: it holds
//! a lock that they need for [`CHUNK`] sessions at most.
//!
//! A relay whose threads keep their sessions to themselves, as that of datagrams does, is asked by a [`Survey`].

mod about;
mod engines;
mod filter;
mod logged;
mod row;
mod session;
mod survey;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use serde_json::{Value, json};
use splice::Waker;
use tokio::sync::oneshot;

pub(crate) use self::about::About;
pub(crate) use self::engines::Engines;
pub(crate) use self::logged::words;
pub(crate) use self::row::{Answer, End, Own, Row, Units};
pub(crate) use self::session::Session;
pub(crate) use self::survey::{Asked, Inbox, Survey};
use crate::session_filter::SessionFilter;
pub(crate) use crate::session_phase::Phase;

/// Why a session has ended that somebody has asked to end.
pub(crate) const KILLED: &str = "ended by an operator";

/// Threads that accept at the same time seldom meet at one lock.
const SHARDS: usize = 16;

/// So many sessions are copied under one lock: microseconds.
const CHUNK: usize = 256;

/// The sessions of a process.
#[derive(Default)]
pub(crate) struct Sessions {
    /// By the id, in the shard of its remainder.
    shards: [Mutex<BTreeMap<u64, Entered>>; SHARDS],
}

/// How far somebody has come who looks at all sessions, some at a time.
#[derive(Debug, Default)]
pub(crate) struct Place {
    shard: usize,
    /// The first id of which nothing is known.
    from: u64,
}

struct Entered {
    session: Arc<Session>,
    /// Reaches the connection, and the pair that it becomes.
    waker: Waker,
}

/// A session's place among the others, given back on drop.
pub(crate) struct Entry {
    sessions: Arc<Sessions>,
    id: u64,
}

impl Sessions {
    /// Adds a session, which `waker` closes.
    pub(crate) fn enter(self: &Arc<Self>, session: &Arc<Session>, waker: Waker) -> Entry {
        let id = session.id();
        let session = Arc::clone(session);
        self.shard(id).insert(id, Entered { session, waker });
        Entry {
            sessions: Arc::clone(self),
            id,
        }
    }

    /// A question that is put to these sessions, and then to the threads that keep theirs to themselves.
    pub(crate) fn survey(
        &self,
        about: About,
        answer: oneshot::Sender<Result<Value>>,
    ) -> Arc<Survey> {
        let survey = Survey::new(about, answer);
        survey.add(self);
        survey
    }

    /// Calls `each` with every session, some at a time and without a lock. One that is accepted or ends meanwhile may be
    /// missing.
    fn visit(&self, mut each: impl FnMut(&[Arc<Session>])) {
        let mut place = Place::default();
        while self.visit_some(&mut place, &mut each) {}
    }

    /// Goes on with [`CHUNK`] sessions at most. Returns whether there may be more.
    pub(crate) fn visit_some(
        &self,
        place: &mut Place,
        each: &mut impl FnMut(&[Arc<Session>]),
    ) -> bool {
        let Some(shard) = self.shards.get(place.shard) else {
            return false;
        };
        let some: Vec<_> = {
            let entered = lock(shard);
            let next = entered.range(place.from..).take(CHUNK);
            next.map(|(_, entered)| Arc::clone(&entered.session))
                .collect()
        };
        match some.last() {
            Some(last) => {
                place.from = last.id() + 1;
                each(&some);
            }
            None => {
                *place = Place {
                    shard: place.shard + 1,
                    from: 0,
                }
            }
        }
        true
    }

    fn get(&self, id: u64) -> Result<Arc<Session>, NoSession> {
        let shard = self.shard(id);
        let entered = shard.get(&id).ok_or(NoSession(id))?;
        Ok(Arc::clone(&entered.session))
    }

    /// Ends a session: both of its peers get a reset.
    ///
    /// # Errors
    /// If there is none with this id.
    fn kill(&self, id: u64) -> Result<(), NoSession> {
        let shard = self.shard(id);
        let entered = shard.get(&id).ok_or(NoSession(id))?;
        entered.session.kill();
        entered.waker.close();
        Ok(())
    }

    /// Ends those that all `filters` take. Returns how many there were.
    fn kill_all(&self, filters: &[SessionFilter]) -> u64 {
        let mut count = 0;
        self.each_row(filters, |row| {
            // It may have ended meanwhile.
            count += u64::from(self.kill(row.id).is_ok());
        });
        count
    }

    fn shard(&self, id: u64) -> MutexGuard<'_, BTreeMap<u64, Entered>> {
        lock(&self.shards[id as usize % SHARDS])
    }
}

/// The answer to whoever ends a session, or so many.
fn ending(what: impl Into<Value>) -> Value {
    json!({ "ending": what.into() })
}

/// No session is alive that has this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoSession(pub(crate) u64);

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "there is no session {}; 'spliced sessions' lists those that there are",
            self.0
        )
    }
}

impl std::error::Error for NoSession {}

impl Drop for Entry {
    fn drop(&mut self) {
        // Freed without the lock.
        let entered = self.sessions.shard(self.id).remove(&self.id);
        drop(entered);
    }
}

fn lock(shard: &Mutex<BTreeMap<u64, Entered>>) -> MutexGuard<'_, BTreeMap<u64, Entered>> {
    // Only a panic of the allocator could leave it half changed, and that ends the process.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use splice::{Address, Context, EventLoop, Readiness, Step, Task};

    use super::*;
    use crate::plan::{Action, ListenerPlan};

    /// Ends when it is closed.
    struct Connection;

    impl Task for Connection {
        fn start(&mut self, _: &mut Context<'_>) -> Step {
            Step::Wait
        }

        fn ready(&mut self, _: &mut Context<'_>, _: u8, _: Readiness) -> Step {
            Step::Wait
        }
    }

    fn session(id: u64) -> Arc<Session> {
        let address: Address = "127.0.0.1:80".parse().expect("an address");
        let plan = ListenerPlan::of_one(address, Action::Reset);
        Session::new(id, Arc::new(plan), None, &Arc::default())
    }

    fn ids(sessions: &Sessions) -> Vec<u64> {
        let mut ids = Vec::new();
        sessions.visit(|some| ids.extend(some.iter().map(|session| session.id())));
        ids.sort_unstable();
        ids
    }

    #[test]
    fn a_session_is_there_from_its_entry_to_its_end() {
        let mut event_loop = EventLoop::new().expect("a loop");
        let sessions = Arc::<Sessions>::default();
        let mut enter = |id| sessions.enter(&session(id), event_loop.spawn(Box::new(Connection)));
        let entries: Vec<_> = (1..=40).map(&mut enter).collect();
        assert_eq!(ids(&sessions), (1..=40).collect::<Vec<_>>());
        // In another order than they came.
        let (odd, even): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.id % 2 == 1);
        drop(odd);
        assert_eq!(
            ids(&sessions),
            (1..=20).map(|half| 2 * half).collect::<Vec<_>>()
        );
        drop(even);
        assert!(ids(&sessions).is_empty());
    }

    /// However many there are, the locks that accepting needs are free while sessions are told of.
    #[test]
    fn whoever_reads_ten_thousand_sessions_keeps_nobody_waiting() {
        const COUNT: u64 = 10_000;
        let mut event_loop = EventLoop::new().expect("a loop");
        let sessions = Arc::<Sessions>::default();
        let waker = event_loop.spawn(Box::new(Connection));
        let mut entries: Vec<_> = (1..=COUNT)
            .map(|id| sessions.enter(&session(id), waker.clone()))
            .collect();
        let mut seen = 0;
        sessions.visit(|some| {
            assert!(some.len() <= CHUNK);
            seen += some.len();
            for shard in &sessions.shards {
                assert!(shard.try_lock().is_ok(), "a lock is held");
            }
            for session in some {
                assert!(session.try_facts().is_some(), "a lock is held");
            }
            // Others come and go.
            entries.pop();
            let new = COUNT + seen as u64;
            entries.insert(0, sessions.enter(&session(new), waker.clone()));
        });
        assert!(seen as u64 > COUNT / 2, "{seen}");
    }

    #[test]
    fn a_kill_ends_the_session_with_that_id() {
        let mut event_loop = EventLoop::new().expect("a loop");
        let sessions = Arc::<Sessions>::default();
        let [first, second] = [1, 17].map(session);
        let entries = [&first, &second]
            .map(|one| sessions.enter(one, event_loop.spawn(Box::new(Connection))));
        assert_eq!(sessions.kill(33), Err(NoSession(33)));
        assert_eq!(sessions.kill(17), Ok(()));
        for _ in 0..3 {
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
        }
        assert_eq!(event_loop.tasks(), 1);
        assert!(second.is_killed() && !first.is_killed());
        drop(entries);
        assert_eq!(sessions.kill(1), Err(NoSession(1)));
    }
}
