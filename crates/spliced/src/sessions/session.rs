//! One session, as its connection tells it and others read it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use splice::{Attempt, EngineName, Observer, Outcome};

use super::engines::Carried;
use crate::backend::Backend;
use crate::plan::{Action, ListenerPlan};
use crate::session_phase::Phase;
use crate::socket_address::SocketAddress;
use crate::tally::{Ending, Promotion, Tally};

/// One session. The thread of its connection writes, any thread reads.
pub(crate) struct Session {
    id: u64,
    listener: Arc<ListenerPlan>,
    accepted_at: Instant,
    /// Up to the pair, which knows more.
    phase: AtomicU8,
    killed: AtomicBool,
    /// Of the bytes to the target, and of those to the client, what its tallies have.
    accounted_bytes: [AtomicU64; 2],
    /// Of the attempts to give it to an engine in the kernel, those that its tally has: a bit each.
    accounted_attempts: AtomicU16,
    /// Its tally has the time to the first byte of the server.
    accounted_answer: AtomicBool,
    facts: Mutex<Facts>,
}

/// What becomes known of a session. It changes a few times in its life.
pub(crate) struct Facts {
    pub(crate) client: Option<SocketAddress>,
    /// Who has connected, if the client's address came in a PROXY header and is another one.
    pub(crate) peer: Option<SocketAddress>,
    /// What names the connection in the logs of all proxies, escaped.
    pub(crate) unique_id: Option<Box<str>>,
    /// What the client asks for: hostile text.
    pub(crate) server_name: Option<Arc<str>>,
    /// The number of the route that took it, from 1.
    pub(crate) route: Option<usize>,
    pub(crate) backend: Option<Arc<Backend>>,
    /// The server that was picked last, as the configuration names it.
    pub(crate) server: Option<Arc<str>>,
    /// The destination that the client has asked for: hostile text, but a name or an address.
    pub(crate) asked: Option<String>,
    /// The server that was reached.
    pub(crate) target: Option<SocketAddress>,
    /// The address from which it was.
    pub(crate) source: Option<SocketAddress>,
    /// When that was.
    pub(crate) reached_at: Option<Instant>,
    /// Bytes of the client that are passed on before the pair.
    pub(crate) passed_on_bytes: u64,
    pub(crate) pair: Option<Observer>,
    /// Why `auto` never tries the pair with `segment`.
    pub(crate) never_spliced: Option<&'static str>,
    /// Where its bytes and its end are counted.
    pub(crate) tally: Arc<Tally>,
}

impl Session {
    pub(crate) fn new(
        id: u64,
        listener: Arc<ListenerPlan>,
        client: Option<SocketAddress>,
        tally: &Arc<Tally>,
    ) -> Arc<Self> {
        tally.opened(1);
        Arc::new(Self {
            id,
            listener,
            accepted_at: Instant::now(),
            phase: AtomicU8::new(Phase::Deciding as u8),
            killed: AtomicBool::new(false),
            accounted_bytes: Default::default(),
            accounted_attempts: AtomicU16::new(0),
            accounted_answer: AtomicBool::new(false),
            facts: Mutex::new(Facts {
                client,
                ..Facts::counted_in(tally)
            }),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn listener(&self) -> &str {
        &self.listener.name
    }

    /// Its bytes go back to the client.
    pub(super) fn is_echo(&self) -> bool {
        let mut routes = self.listener.routes.iter();
        routes.any(|route| matches!(route.action, Action::Echo))
    }

    /// Its sockets keep messages apart.
    pub(super) fn keeps_messages(&self) -> bool {
        self.listener.address.keeps_messages()
    }

    pub(crate) fn accepted_at(&self) -> Instant {
        self.accepted_at
    }

    /// The connection is in this phase now.
    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// The phase before the pair.
    pub(super) fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Deciding,
            1 => Phase::Queued,
            _ => Phase::Connecting,
        }
    }

    pub(super) fn kill(&self) {
        self.killed.store(true, Ordering::Relaxed);
    }

    /// Whether somebody has asked for its end.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }

    /// The engine that has the pair, and why segments of it get lost now, if they do.
    pub(super) fn engine(&self) -> Carried {
        let Some(pair) = self.facts().pair.clone() else {
            return Carried::default();
        };
        let (engine, why) = pair.engine();
        let is_spliced = matches!(engine, EngineName::Segment | EngineName::Sockmap);
        let was_refused = !is_spliced && pair.attempts().any(is_refusal);
        Carried {
            engine: Some(engine),
            lost: pair.why_lost(),
            refused: was_refused.then(|| why.into_owned()),
        }
    }

    /// Adds what has moved since the last time to its tally. Returns that, the engine that has the pair, and whether
    /// segments of it get lost now.
    ///
    /// Whoever adds it first has taken it from all others, however old what they have read is.
    pub(crate) fn account(&self) -> (Arc<Tally>, Option<EngineName>, bool) {
        let (tally, passed_on, pair, reached_at) = {
            let facts = self.facts();
            (
                Arc::clone(&facts.tally),
                facts.passed_on_bytes,
                facts.pair.clone(),
                facts.reached_at,
            )
        };
        let moved = pair.as_ref().map(Observer::counters).unwrap_or_default();
        self.account_up_to(&tally, [moved.a_to_b + passed_on, moved.b_to_a]);
        self.account_attempts(&tally, pair.as_ref());
        self.account_answer(&tally, pair.as_ref(), reached_at);
        let is_lost = pair.as_ref().is_some_and(|pair| pair.why_lost().is_some());
        let engine = pair.map(|pair| pair.engine().0);
        (tally, engine, is_lost)
    }

    /// Its end is counted, and what has moved until then.
    pub(crate) fn ended(&self, outcome: Option<&Outcome>, ending: Ending) {
        let facts = self.facts();
        let moved = outcome.map(|outcome| outcome.moved).unwrap_or_default();
        let bytes = [moved.a_to_b + facts.passed_on_bytes, moved.b_to_a];
        self.account_up_to(&facts.tally, bytes);
        self.account_attempts(&facts.tally, facts.pair.as_ref());
        self.account_answer(&facts.tally, facts.pair.as_ref(), facts.reached_at);
        facts
            .tally
            .ended(outcome.map(|outcome| outcome.engine), ending);
    }

    fn account_up_to(&self, tally: &Tally, bytes: [u64; 2]) {
        let before = [0, 1]
            .map(|to: usize| self.accounted_bytes[to].fetch_max(bytes[to], Ordering::Relaxed));
        tally.moved([0, 1].map(|to: usize| bytes[to].saturating_sub(before[to])));
    }

    fn account_attempts(&self, tally: &Tally, pair: Option<&Observer>) {
        let attempts = pair.into_iter().flat_map(Observer::attempts);
        for promotion in attempts.map(Promotion::from) {
            let bit = 1 << promotion as u8;
            if self.accounted_attempts.fetch_or(bit, Ordering::Relaxed) & bit == 0 {
                tally.promoted(promotion);
            }
        }
    }

    fn account_answer(&self, tally: &Tally, pair: Option<&Observer>, reached_at: Option<Instant>) {
        if self.accounted_answer.load(Ordering::Relaxed) {
            return;
        }
        if let Some(reached_at) = reached_at
            && let Some(first) = pair.and_then(Observer::first_moved_at)
            && !self.accounted_answer.swap(true, Ordering::Relaxed)
        {
            // A loop knows the time at which its turn began.
            tally
                .answering
                .add(first.saturating_duration_since(reached_at));
        }
    }

    #[cfg(test)]
    pub(super) fn try_facts(&self) -> Option<MutexGuard<'_, Facts>> {
        self.facts.try_lock().ok()
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, Facts> {
        // Each change is a single step.
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Facts {
    /// Nothing is known yet.
    fn counted_in(tally: &Arc<Tally>) -> Self {
        Self {
            client: None,
            peer: None,
            unique_id: None,
            server_name: None,
            route: None,
            backend: None,
            server: None,
            asked: None,
            target: None,
            source: None,
            reached_at: None,
            passed_on_bytes: 0,
            pair: None,
            never_spliced: None,
            tally: Arc::clone(tally),
        }
    }

    /// Where the client is to go: the server that was reached, or what it has asked for, or the backend.
    pub(crate) fn wanted(&self) -> String {
        match (&self.target, &self.asked, &self.backend) {
            (Some(address), ..) => address.to_string(),
            (None, Some(asked), _) => asked.clone(),
            (None, None, Some(backend)) => backend.name().into(),
            (None, None, None) => String::new(),
        }
    }

    /// Why a pair has its engine, and not a faster one.
    pub(crate) fn why_engine(&self, engine: EngineName, why: &str) -> String {
        match self.never_spliced {
            Some(never) if engine != EngineName::Segment => {
                format!("{why}; segment is not tried: {never}")
            }
            _ => why.into(),
        }
    }

    pub(crate) fn client_name(&self) -> String {
        let client = self.client.as_ref().map(SocketAddress::to_string);
        client.unwrap_or_default()
    }
}

/// Whether an engine in the kernel was in question for a pair, and something was in its way.
fn is_refusal(attempt: Attempt) -> bool {
    match attempt {
        Attempt::Taken | Attempt::Declined => false,
        Attempt::GivenBackByNetwork
        | Attempt::GivenBackByFilters
        | Attempt::GivenBack
        | Attempt::Network
        | Attempt::Sockets
        | Attempt::Filters
        | Attempt::Unavailable => true,
        // Those that this version does not know.
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use splice::Address;

    use super::*;

    #[test]
    fn what_has_been_counted_is_not_counted_again_by_whoever_has_read_it_before() {
        let address: Address = "127.0.0.1:80".parse().expect("an address");
        let plan = ListenerPlan::of_one(address, Action::Reset);
        let tally = Arc::<Tally>::default();
        let session = Session::new(1, Arc::new(plan), None, &tally);
        for (bytes, counted) in [
            ([5, 0], [5, 0]),
            ([100, 7], [100, 7]),
            // Somebody who is slow.
            ([60, 7], [100, 7]),
            ([60, 9], [100, 9]),
            ([100, 9], [100, 9]),
            ([101, 9], [101, 9]),
        ] {
            session.account_up_to(&tally, bytes);
            assert_eq!(tally.bytes(), counted);
        }
        session.facts().passed_on_bytes = 103;
        session.ended(None, Ending::NoServer);
        session.account();
        assert_eq!(tally.bytes(), [103, 9]);
        assert_eq!(tally.count_opened(), 1);
    }
}
