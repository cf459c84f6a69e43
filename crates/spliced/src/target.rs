//! Where connections go, and its name resolution, which never blocks a loop.
//!
//! ```text
//!             an answer                       an answer has become old and a client comes
//! Unresolved ───────────▶ Resolved ──────────────────────────────▶ sought anew
//!   │    ▲                    ▲                                          │
//!   └────┘ no answer:         └──────────────────────────────────────────┘
//!          after a pause                 an answer, or none: the last one stays
//! ```
//!
//! A place that is the relay itself is left out of each answer (`itself.rs`).

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use splice::{Address, SegmentSize};

use crate::itself;
use crate::place::Place;

/// How long an answer of the resolver is used: long enough that a busy relay asks seldom, short
/// enough that a target which moves is followed before its users complain.
const ANSWER_KEPT: Duration = Duration::from_secs(5);

/// How soon a name that has never had an answer is asked for again: the least time that glibc's
/// resolver waits for a server (`options timeout:1` of resolv.conf(5)). The pauses double up to
/// [`ANSWER_KEPT`], which is how often a busy relay asks for a name that resolves.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Where connections go. A name is resolved anew when the last answer has become old.
pub(crate) struct Target {
    pub(crate) address: Address,
    known: Mutex<Known>,
    /// Asks for a new answer; never set where the answer cannot change.
    questions: OnceLock<mpsc::Sender<()>>,
    /// Where the relay listens, once it does.
    listening: OnceLock<Vec<Place>>,
}

#[derive(Default)]
struct Known {
    places: Arc<[Place]>,
    /// Places that were left out, since the relay itself listens there.
    itself: Vec<Place>,
    /// `None` until the first answer.
    resolved_at: Option<Instant>,
    /// A new answer is being sought.
    sought: bool,
}

impl Target {
    /// Resolves `address`. A name is resolved by a thread of its own, whose first answer this waits for,
    /// at most for `at_most`; one without an answer is told and asked for again until there is one.
    ///
    /// # Errors
    /// Where `address` is not a name and stands for nothing.
    pub(crate) fn new(address: Address, at_most: Duration) -> Result<Arc<Self>> {
        let target = Arc::new(Self {
            address,
            known: Mutex::default(),
            questions: OnceLock::new(),
            listening: OnceLock::new(),
        });
        if !target.is_name() {
            let places = Place::resolve(&target.address)?;
            target.take(places);
            return Ok(target);
        }
        let first_try = target.seek(Some(Duration::ZERO))?;
        if first_try.recv_timeout(at_most).is_err() {
            tracing::warn!(
                "the name in {} has no answer yet; clients are reset until it has",
                target.address
            );
        }
        Ok(target)
    }

    /// Starts the thread that seeks answers, the first one after `pause`. It tells of each try.
    fn seek(self: &Arc<Self>, pause: Option<Duration>) -> Result<Receiver<()>> {
        let (questions, receiver) = mpsc::channel();
        let (tried, tries) = mpsc::channel();
        let target = Arc::clone(self);
        thread::Builder::new()
            .name("resolver".into())
            .spawn(move || target.answer_all(&receiver, &tried, pause))
            .context("cannot start the resolver's thread")?;
        let _ = self.questions.set(questions);
        Ok(tries)
    }

    /// The places to try: the last ones known. When they have become old this call has them sought
    /// anew and does not wait: a name server that is slow or gone must not stop a target that has
    /// not moved.
    pub(crate) fn places(&self) -> Arc<[Place]> {
        let mut known = self.lock();
        if let Some(questions) = self.questions.get()
            && !known.sought
            && known
                .resolved_at
                .is_some_and(|at| at.elapsed() >= ANSWER_KEPT)
        {
            // The thread holds the receiver for as long as the process lives.
            known.sought = questions.send(()).is_ok();
        }
        Arc::clone(&known.places)
    }

    /// What keeps a client from its target where there are no [`places`](Self::places).
    pub(crate) fn why_nowhere(&self) -> String {
        match self.lock().itself.first() {
            Some(place) => format!("{place} is this relay itself"),
            None => "its name does not resolve".into(),
        }
    }

    /// Tells where the relay listens; from now on no place leads there. Returns a place that was left
    /// out where no other is known.
    ///
    /// # Errors
    /// Where no thread can be started, which an address needs that may come to this host later.
    pub(crate) fn keep_off(self: &Arc<Self>, listening: &[Place]) -> Result<Option<Place>> {
        let _ = self.listening.set(listening.to_vec());
        let (places, is_resolved) = {
            let known = self.lock();
            (known.places.to_vec(), known.resolved_at.is_some())
        };
        if !is_resolved {
            return Ok(None);
        }
        let may_lead_back = |place: &Place| itself::may_lead_to(place, listening);
        if !self.is_name() && places.iter().any(may_lead_back) {
            self.seek(None)?;
        }
        self.take(places);
        let known = self.lock();
        if known.places.is_empty() {
            return Ok(known.itself.first().cloned());
        }
        for place in &known.itself {
            tracing::warn!("the target's address {place} is this relay itself; it is left out");
        }
        Ok(None)
    }

    /// What fits on the way to all the places that are known now; `None` without a way there, which
    /// the first connection is going to tell.
    pub(crate) fn segment_size(&self) -> Option<SegmentSize> {
        let places = Arc::clone(&self.lock().places);
        let size = |place: &Place| match place {
            Place::Inet(address) => SegmentSize::on_the_way_to(*address).ok(),
            Place::Unix(_) => None,
        };
        places.iter().filter_map(size).min()
    }

    fn is_name(&self) -> bool {
        Place::needs_resolver(&self.address)
    }

    /// Takes an answer: the places that are not the relay itself.
    fn take(&self, found: Vec<Place>) {
        loop {
            let listening = self.listening.get();
            let own = listening.map_or(&[][..], Vec::as_slice);
            // Outside of the lock, since it asks the kernel.
            let (itself, places): (Vec<_>, Vec<_>) = found
                .iter()
                .cloned()
                .partition(|place| itself::leads_to(place, own));
            let mut known = self.lock();
            if listening.is_none() && self.listening.get().is_some() {
                continue;
            }
            *known = Known {
                places: places.into(),
                itself,
                resolved_at: Some(Instant::now()),
                sought: false,
            };
            return;
        }
    }

    /// The thread's life: seeks an answer after `pause` until there is one, then another each time that
    /// it is asked for. What goes wrong is told once until an answer comes.
    fn answer_all(
        &self,
        questions: &Receiver<()>,
        tried: &mpsc::Sender<()>,
        mut pause: Option<Duration>,
    ) {
        let mut told = false;
        loop {
            let waited = match pause {
                Some(pause) => questions.recv_timeout(pause),
                None => questions.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            if waited == Err(RecvTimeoutError::Disconnected) {
                return;
            }
            let answer = Place::resolve(&self.address);
            let resolved_before = self.lock().resolved_at.is_some();
            match answer {
                Ok(places) => {
                    if told {
                        let places: Vec<_> = places.iter().map(Place::to_string).collect();
                        tracing::info!("{} resolves now: {}", self.address, places.join(", "));
                    }
                    self.take(places);
                    (pause, told) = (None, false);
                }
                Err(error) => {
                    let otherwise = if resolved_before {
                        "going on with its last known addresses"
                    } else {
                        pause = Some(next_pause(pause));
                        "clients are reset until it can"
                    };
                    if !std::mem::replace(&mut told, true) {
                        tracing::warn!("{error:#}; {otherwise}");
                    }
                    let mut known = self.lock();
                    known.sought = false;
                    known.resolved_at = resolved_before.then(Instant::now);
                }
            }
            let _ = tried.send(());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change is made of assignments alone, so a panic cannot leave one half made.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn next_pause(before: Option<Duration>) -> Duration {
    match before {
        Some(pause) if !pause.is_zero() => (pause * 2).min(ANSWER_KEPT),
        _ => FIRST_RETRY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pauses_double_and_have_a_bound() {
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
