//! Where connections go, and its name resolution, which never blocks a loop.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use splice::{Address, Waker};

use crate::place::Place;

/// How long an answer of the resolver is used: long enough that a busy relay asks seldom, short
/// enough that a target which moves is followed before its users complain.
const ANSWER_KEPT: Duration = Duration::from_secs(5);

/// Where connections go. A name is resolved anew when the last answer has become old.
pub(crate) struct Target {
    pub(crate) address: Address,
    known: Mutex<Known>,
    /// `None` where there is nothing to resolve.
    questions: Option<mpsc::Sender<()>>,
}

struct Known {
    places: Arc<[Place]>,
    resolved_at: Instant,
    /// Connections that wait for the answer to come; not empty while one is being sought.
    waiting: Vec<Waker>,
}

/// What is known of a target's places.
pub(crate) enum Lookup {
    Known(Arc<[Place]>),
    /// The task will be woken to ask again.
    Sought,
}

impl Target {
    /// Resolves `address` for the first time, which may block, and starts the thread that does it
    /// from then on.
    pub(crate) fn new(address: Address) -> Result<Arc<Self>> {
        let places = Place::resolve(&address)?;
        let is_name = matches!(&address, Address::Inet { host, .. }
            if !host.is_empty() && host.parse::<std::net::IpAddr>().is_err());
        let (sender, receiver) = mpsc::channel();
        let target = Arc::new(Self {
            address,
            known: Mutex::new(Known {
                places: places.into(),
                resolved_at: Instant::now(),
                waiting: Vec::new(),
            }),
            questions: is_name.then_some(sender),
        });
        if is_name {
            let for_thread = Arc::clone(&target);
            thread::Builder::new()
                .name("resolver".into())
                .spawn(move || receiver.iter().for_each(|()| for_thread.answer()))
                .context("cannot start the resolver's thread")?;
        }
        Ok(target)
    }

    /// The places to try. `waker` belongs to the task that asks; it is woken when they become
    /// known.
    pub(crate) fn lookup(&self, waker: impl FnOnce() -> Waker) -> Lookup {
        let mut known = self.lock();
        let Some(questions) = &self.questions else {
            return Lookup::Known(Arc::clone(&known.places));
        };
        if known.resolved_at.elapsed() < ANSWER_KEPT {
            return Lookup::Known(Arc::clone(&known.places));
        }
        known.waiting.push(waker());
        // The thread holds the target, and so the receiver, for as long as the process lives.
        if known.waiting.len() == 1 && questions.send(()).is_err() {
            known.waiting.clear();
            return Lookup::Known(Arc::clone(&known.places));
        }
        Lookup::Sought
    }

    fn answer(&self) {
        let answer = Place::resolve(&self.address);
        let mut known = self.lock();
        known.resolved_at = Instant::now();
        match answer {
            Ok(places) => known.places = places.into(),
            // A resolver that fails for a moment must not stop a target that has not moved.
            Err(error) => tracing::warn!("{error:#}; going on with its last known addresses"),
        }
        let waiting = std::mem::take(&mut known.waiting);
        drop(known);
        waiting.iter().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change is a single assignment, so a panic cannot leave one half made.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
