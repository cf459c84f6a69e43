//! Where connections go, and its name resolution, which never blocks a loop.

use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use splice::{Address, SegmentSize};

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
    /// A new answer is being sought.
    sought: bool,
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
                sought: false,
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

    /// The places to try: the last ones known. When they have become old this call has them sought
    /// anew and does not wait: a name server that is slow or gone must not stop a target that has
    /// not moved.
    pub(crate) fn places(&self) -> Arc<[Place]> {
        let mut known = self.lock();
        if let Some(questions) = &self.questions
            && !known.sought
            && known.resolved_at.elapsed() >= ANSWER_KEPT
        {
            // The thread holds the receiver for as long as the process lives.
            known.sought = questions.send(()).is_ok();
        }
        Arc::clone(&known.places)
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

    fn answer(&self) {
        let answer = Place::resolve(&self.address);
        let mut known = self.lock();
        known.resolved_at = Instant::now();
        known.sought = false;
        match answer {
            Ok(places) => known.places = places.into(),
            Err(error) => tracing::warn!("{error:#}; going on with its last known addresses"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Every change is a single assignment, so a panic cannot leave one half made.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
