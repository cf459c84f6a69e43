//! The target of a relay, and its name resolution, which never blocks a loop.
//!
//! ```text
//!             an answer                    the answer grows old and a client connects
//! Unresolved ───────────▶ Resolved ──────────────────────────────▶ Refreshing
//!   │    ▲ ▲                  ▲                                        │ │
//!   └────┘ │                  └────────────────────────────────────────┘ │
//!  no answer:                   an answer, or none: the last one is kept │
//!  after a   └──────────────────────────────────────────────────────────┘
//!  pause                no answer, and the last one is too old
//! ```
//!
//! `answer_age.rs` has what the age of an answer means for a connection. An address that is the relay itself is left
//! out of each answer (`own_address.rs`).

mod answer_age;
mod moved;
mod own_address;

use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use splice::Address;

use self::answer_age::{AnswerAge, Use};
pub(crate) use self::moved::Moved;
use self::moved::Moves;
use self::own_address::may_lead_to;
pub(crate) use self::own_address::{Meeting, is_from_listener, leads_to};
pub(crate) use self::own_address::{follow_routes, is_on_this_host, is_own};
use crate::race::Preference;
use crate::socket_address::SocketAddress;

/// The first pause before an unresolved name is asked for again: the least time that glibc's resolver
/// waits for a server (`options timeout:1` of resolv.conf(5)).
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The pauses double up to this, which is about how often a busy relay asks for a name that resolves.
const LAST_RETRY: Duration = Duration::from_secs(5);

/// How often a name is asked for whose users cannot wait: twice before its answer is too old.
const KEPT_CURRENT_EVERY: Duration = Duration::from_secs(30);

/// Where connections go. A name is resolved again when the last answer is stale.
pub(crate) struct Target {
    pub(crate) address: Address,
    /// Its users send datagrams, and cannot wait for an answer.
    is_of_datagrams: bool,
    known: Mutex<Known>,
    /// Asks the resolver's thread for a new answer; unset if the answer cannot change.
    questions: OnceLock<mpsc::Sender<()>>,
    follower: OnceLock<Follower>,
}

/// Is told of each attempt to resolve a name, and what has moved.
type Follower = Box<dyn Fn(Option<Moved>) + Send + Sync>;

#[derive(Default)]
struct Known {
    /// As the resolver has sorted them.
    answer: Vec<SocketAddress>,
    /// Those in the order in which to try them.
    addresses: Arc<[SocketAddress]>,
    /// Which of them answers.
    preference: Preference,
    /// Addresses that were left out, since the relay itself listens there.
    own: Vec<SocketAddress>,
    age: AnswerAge,
    moves: Moves,
    /// It is asked for even if nobody connects.
    is_kept_current: bool,
    /// The addresses that the relay listens on, once it does.
    listening: Arc<[SocketAddress]>,
    /// Who waits for the question under way, by a number that grows.
    waiting: BTreeMap<u64, Waker>,
    next_number: u64,
}

/// What a connection learns.
pub(crate) enum Lookup {
    /// The addresses, in the order in which to try them; none if the name does not resolve.
    Known(Arc<[SocketAddress]>),
    /// The answer is under way, and whoever asked is woken when it is there. If there is a time, it is worth asking
    /// again then, too.
    Awaited(Question, Option<Instant>),
}

/// Somebody waits for an answer, until this is dropped.
#[derive(Debug)]
pub(crate) struct Question {
    target: Weak<Target>,
    number: u64,
}

/// What can be expected of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prospect {
    /// It has addresses, or will soon.
    Good,
    /// The answer has been under way for some time.
    Slow,
    None,
}

impl Target {
    /// Resolves `address`. A name is resolved by a thread of its own. This waits up to `at_most` for its
    /// first answer, if that is given; the thread warns if there is none, and asks again until there is one.
    ///
    /// # Errors
    /// If `address` is not a name and cannot be used as it is.
    pub(crate) fn new(address: Address, at_most: Option<Duration>) -> Result<Arc<Self>> {
        Self::of(address, false, at_most)
    }

    /// As [`new`](Self::new), of datagrams: a name is asked for even if nobody sends any, since nobody waits for an answer.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub(crate) fn of_datagrams(address: Address, at_most: Option<Duration>) -> Result<Arc<Self>> {
        Self::of(address, true, at_most)
    }

    fn of(address: Address, is_of_datagrams: bool, at_most: Option<Duration>) -> Result<Arc<Self>> {
        let target = Arc::new(Self {
            address,
            is_of_datagrams,
            known: Mutex::new(Known {
                is_kept_current: is_of_datagrams,
                ..Known::default()
            }),
            questions: OnceLock::new(),
            follower: OnceLock::new(),
        });
        if !target.is_name() {
            let addresses = SocketAddress::resolve(&target.address)?;
            target.take(addresses);
            return Ok(target);
        }
        let first_try = target.start_resolver(Some(Duration::ZERO))?;
        if at_most.is_some_and(|time| first_try.recv_timeout(time).is_err()) {
            tracing::warn!(
                "the name in {} has no answer yet; {} until it has",
                target.address,
                target.otherwise()
            );
        }
        Ok(target)
    }

    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.is_of_datagrams
    }

    /// What becomes of new clients while the name has no answer.
    fn otherwise(&self) -> &'static str {
        match self.is_of_datagrams {
            true => "datagrams of new clients are dropped",
            false => "clients are reset",
        }
    }

    /// Starts the thread that resolves the name, for the first time after `pause`. The channel reports
    /// each attempt.
    fn start_resolver(self: &Arc<Self>, pause: Option<Duration>) -> Result<Receiver<()>> {
        let (questions, receiver) = mpsc::channel();
        let (tried, tries) = mpsc::channel();
        let target = Arc::downgrade(self);
        thread::Builder::new()
            .name("resolver".into())
            .spawn(move || resolve_on_request(&target, &receiver, &tried, pause))
            .context("cannot start the thread that resolves names")?;
        let _ = self.questions.set(questions);
        Ok(tries)
    }

    /// The addresses to try, or that they are waited for: an old answer is used from `latest` on. Asks for an answer if
    /// the last one grows old.
    pub(crate) fn look_up(
        self: &Arc<Self>,
        latest: Instant,
        waker: impl FnOnce() -> Waker,
    ) -> Lookup {
        let now = Instant::now();
        let mut known = self.lock();
        self.ask(&mut known, now);
        match self.what(&known, now).at_the_latest(latest, now) {
            Use::Now => Lookup::Known(known.in_order(now)),
            Use::Never => Lookup::Known(Arc::default()),
            Use::Later(until) => {
                let number = known.next_number;
                known.next_number += 1;
                known.waiting.insert(number, waker());
                let target = Arc::downgrade(self);
                Lookup::Awaited(Question { target, number }, until)
            }
        }
    }

    /// The addresses to try, for those that cannot wait: none while the last answer is too old. Asks for another one if
    /// it grows old.
    pub(crate) fn addresses(&self) -> Arc<[SocketAddress]> {
        let now = Instant::now();
        let mut known = self.lock();
        self.ask(&mut known, now);
        match self.what(&known, now) {
            Use::Now | Use::Later(Some(_)) => known.in_order(now),
            Use::Later(None) | Use::Never => Arc::default(),
        }
    }

    /// The last answer, however old. Asks for another one if it grows old.
    pub(crate) fn last_known(&self) -> Arc<[SocketAddress]> {
        let now = Instant::now();
        let mut known = self.lock();
        self.ask(&mut known, now);
        known.in_order(now)
    }

    /// Whether it is worth a connection now. Asks for an answer if the last one grows old.
    pub(crate) fn prospect(&self) -> Prospect {
        let now = Instant::now();
        let mut known = self.lock();
        self.ask(&mut known, now);
        match self.what(&known, now) {
            Use::Now | Use::Later(Some(_)) if known.answer.is_empty() => Prospect::None,
            Use::Now | Use::Later(Some(_)) => Prospect::Good,
            Use::Later(None) if known.age.is_expected(now) => Prospect::Good,
            Use::Later(None) => Prospect::Slow,
            Use::Never => Prospect::None,
        }
    }

    /// `address`, of those in the order `tried`, has answered.
    pub(crate) fn answered(&self, address: &SocketAddress, tried: &[SocketAddress]) {
        if tried.first() == Some(address) {
            return;
        }
        let now = Instant::now();
        let mut known = self.lock();
        if known.preference.answered(address, tried, now) {
            known.sort(now);
        }
    }

    /// `address` does not answer, and whoever noticed tries no other one.
    pub(crate) fn failed(&self, address: &SocketAddress) {
        let now = Instant::now();
        let mut known = self.lock();
        let Known {
            preference, answer, ..
        } = &mut *known;
        if preference.failed(address, answer, now) {
            known.sort(now);
        }
    }

    /// Calls `follow` after each attempt to resolve the name, in the thread that does. The first one who asks for it is
    /// served.
    pub(crate) fn when_answered(&self, follow: impl Fn(Option<Moved>) + Send + Sync + 'static) {
        let _ = self.follower.set(Box::new(follow));
    }

    fn tell(&self, moved: Option<Moved>) {
        let moved = self.lock().moves.answered(moved, Instant::now());
        match (self.follower.get(), moved) {
            (Some(follow), moved) => follow(moved),
            (None, Some(moved)) => tracing::info!("{} is {moved}", self.address),
            (None, None) => {}
        }
    }

    /// Whether there is no address, and no first answer under way. Asks for nothing.
    pub(crate) fn leads_nowhere(&self) -> bool {
        let known = self.lock();
        match known.age.is_unknown() {
            true => known.age.has_failed(),
            false => known.answer.is_empty(),
        }
    }

    /// Asks the thread, if it is time to.
    fn ask(&self, known: &mut Known, now: Instant) {
        if let Some(questions) = self.questions.get()
            && known.age.wants_another(now)
            // The thread keeps the receiver as long as the process lives.
            && questions.send(()).is_ok()
        {
            known.age.asked(now);
        }
    }

    /// Only names can have moved.
    fn what(&self, known: &Known, now: Instant) -> Use {
        match self.is_name() {
            true => known.age.what(now),
            false => Use::Now,
        }
    }

    /// Why there are no [`addresses`](Self::addresses).
    pub(crate) fn why_nowhere(&self) -> String {
        match self.lock().own.first() {
            Some(address) => format!("{address} is this relay itself"),
            None => "its name does not resolve".into(),
        }
    }

    /// An address that leads to one of `listening`, if no other is known. Changes nothing.
    pub(crate) fn leads_back(&self, listening: &[SocketAddress]) -> Option<SocketAddress> {
        let found = self.lock().found();
        let leads_back = found.iter().all(|address| leads_to(address, listening));
        found.into_iter().next().filter(|_| leads_back)
    }

    /// Sets the addresses that the relay listens on, in place of those before, and leaves them out of its
    /// targets from now on.
    pub(crate) fn keep_off(self: &Arc<Self>, listening: &[SocketAddress]) {
        let (found, own_before, is_resolved) = {
            let mut known = self.lock();
            if *known.listening == *listening {
                return;
            }
            known.listening = listening.into();
            (known.found(), known.own.clone(), !known.age.is_unknown())
        };
        if !is_resolved {
            return;
        }
        let may_lead_back = |address: &SocketAddress| may_lead_to(address, listening);
        if self.questions.get().is_none()
            && found.iter().any(may_lead_back)
            && let Err(error) = self.start_resolver(None)
        {
            tracing::warn!(
                "{error:#}; if {} comes to this host, it is not noticed",
                self.address
            );
        }
        self.leave_out_own(found);
        let known = self.lock();
        for address in &known.own {
            if !own_before.contains(address) {
                tracing::warn!(
                    "the target's address {address} is this relay itself; it is left out"
                );
            }
        }
    }

    fn is_name(&self) -> bool {
        SocketAddress::needs_resolver(&self.address)
    }

    /// Stores an answer, and wakes those that wait for it.
    fn take(&self, found: Vec<SocketAddress>) {
        self.leave_out_own(found);
        let waiting = {
            let mut known = self.lock();
            known.age.answered(Instant::now());
            std::mem::take(&mut known.waiting)
        };
        waiting.into_values().for_each(Waker::wake);
    }

    /// Stores addresses without those of the relay itself.
    fn leave_out_own(&self, found: Vec<SocketAddress>) {
        loop {
            let listening = Arc::clone(&self.lock().listening);
            // Without the lock, since this makes system calls.
            let (own, answer): (Vec<_>, Vec<_>) = found
                .iter()
                .cloned()
                .partition(|address| leads_to(address, &listening));
            let mut known = self.lock();
            if !Arc::ptr_eq(&listening, &known.listening) {
                continue;
            }
            known.answer = answer;
            known.own = own;
            known.sort(Instant::now());
            return;
        }
    }

    /// Resolves the name. Logs a failure once until the next answer, and once more when the last answer is too old.
    /// Returns the pause before the next attempt; `None` if it waits to be asked.
    fn resolve_again(&self, pause: Option<Duration>, told: &mut Option<bool>) -> Option<Duration> {
        // The thread may ask by itself.
        self.lock().age.asked(Instant::now());
        match SocketAddress::resolve(&self.address) {
            Ok(addresses) => {
                let shown: Vec<_> = addresses.iter().map(SocketAddress::to_string).collect();
                let moved = Moved::between(&self.lock().found(), &addresses);
                self.take(addresses);
                // Only now, so that whoever reads it can rely on it.
                if told.take().is_some() {
                    tracing::info!("{} resolves now: {}", self.address, shown.join(", "));
                }
                self.tell(moved);
                self.lock().is_kept_current.then_some(KEPT_CURRENT_EVERY)
            }
            Err(error) => {
                let (is_usable, is_kept_current, waiting) = {
                    let mut known = self.lock();
                    let is_usable = known.age.failed(Instant::now());
                    let waiting = std::mem::take(&mut known.waiting);
                    (is_usable, known.is_kept_current, waiting)
                };
                if told.replace(is_usable) != Some(is_usable) {
                    match is_usable {
                        true => tracing::warn!(
                            "{error:#}; going on with its last known addresses until they are a minute old"
                        ),
                        false => tracing::warn!("{error:#}; {} until it can", self.otherwise()),
                    }
                }
                waiting.into_values().for_each(Waker::wake);
                self.tell(None);
                match is_usable {
                    true => is_kept_current.then_some(LAST_RETRY),
                    false => Some(next_pause(pause)),
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Changes are plain assignments, so a panic cannot leave one half done.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Known {
    /// The last answer, with the addresses that were left out.
    fn found(&self) -> Vec<SocketAddress> {
        self.answer.iter().chain(&self.own).cloned().collect()
    }

    /// As [`Preference::order`]; what was preferred may be no more.
    fn in_order(&mut self, now: Instant) -> Arc<[SocketAddress]> {
        if self.preference.has_expired(now) {
            self.preference = Preference::default();
            self.sort(now);
        }
        Arc::clone(&self.addresses)
    }

    fn sort(&mut self, now: Instant) {
        self.addresses = self.preference.order(&self.answer, now).into();
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if let Some(target) = self.target.upgrade() {
            target.lock().waiting.remove(&self.number);
        }
    }
}

/// Runs in the thread, as long as there is a target: resolves the name after `pause` until there is an
/// answer, then each time it is asked to.
fn resolve_on_request(
    target: &Weak<Target>,
    questions: &Receiver<()>,
    tried: &mpsc::Sender<()>,
    mut pause: Option<Duration>,
) {
    let mut told = None;
    loop {
        let waited = match pause {
            Some(pause) => questions.recv_timeout(pause),
            None => questions.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if waited == Err(RecvTimeoutError::Disconnected) {
            return;
        }
        let Some(target) = target.upgrade() else {
            return;
        };
        pause = target.resolve_again(pause, &mut told);
        let _ = tried.send(());
    }
}

fn next_pause(before: Option<Duration>) -> Duration {
    match before {
        Some(pause) if !pause.is_zero() => (pause * 2).min(LAST_RETRY),
        _ => FIRST_RETRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_between_attempts_double_up_to_a_bound() {
        let mut pause = Some(Duration::ZERO);
        let pauses: Vec<_> = (0..5)
            .map(|_| {
                pause = Some(next_pause(pause));
                pause.map_or(0, |pause| pause.as_secs())
            })
            .collect();
        assert_eq!(pauses, [1, 2, 4, 5, 5]);
    }
}
