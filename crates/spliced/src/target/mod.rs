//! The target of a relay, and its name resolution, which never blocks a loop.
//!
//! ```text
//!             an answer                    the answer is stale and a client connects
//! Unresolved ───────────▶ Resolved ──────────────────────────────▶ Refreshing
//!   │    ▲                    ▲                                          │
//!   └────┘ no answer:         └──────────────────────────────────────────┘
//!          after a pause                 an answer, or none: the last answer is kept
//! ```
//!
//! An address that is the relay itself is left out of each answer (`own_address.rs`).

mod own_address;

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use splice::Address;

use self::own_address::may_lead_to;
pub(crate) use self::own_address::{Meeting, leads_to};
pub(crate) use self::own_address::{follow_routes, is_own};
use crate::socket_address::SocketAddress;

/// How long an answer of the resolver is fresh: a busy relay asks seldom, and still follows a target
/// that moves before its users complain.
const ANSWER_KEPT: Duration = Duration::from_secs(5);

/// The first pause before an unresolved name is asked for again: the least time that glibc's resolver
/// waits for a server (`options timeout:1` of resolv.conf(5)). The pauses double up to
/// [`ANSWER_KEPT`], which is how often a busy relay asks for a name that resolves.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// Where connections go. A name is resolved again when the last answer is stale.
pub(crate) struct Target {
    pub(crate) address: Address,
    known: Mutex<Known>,
    /// Asks the resolver's thread for a new answer; unset if the answer cannot change.
    questions: OnceLock<mpsc::Sender<()>>,
}

#[derive(Default)]
struct Known {
    addresses: Arc<[SocketAddress]>,
    /// Addresses that were left out, since the relay itself listens there.
    own: Vec<SocketAddress>,
    /// `None` until the first answer.
    resolved_at: Option<Instant>,
    /// The resolver's thread has been asked for a new answer.
    refreshing: bool,
    /// The addresses that the relay listens on, once it does.
    listening: Arc<[SocketAddress]>,
}

impl Target {
    /// Resolves `address`. A name is resolved by a thread of its own. This waits up to `at_most` for its
    /// first answer; the thread warns if there is none, and asks again until there is one.
    ///
    /// # Errors
    /// If `address` is not a name and cannot be used as it is.
    pub(crate) fn new(address: Address, at_most: Duration) -> Result<Arc<Self>> {
        let target = Arc::new(Self {
            address,
            known: Mutex::default(),
            questions: OnceLock::new(),
        });
        if !target.is_name() {
            let addresses = SocketAddress::resolve(&target.address)?;
            target.take(addresses);
            return Ok(target);
        }
        let first_try = target.start_resolver(Some(Duration::ZERO))?;
        if first_try.recv_timeout(at_most).is_err() {
            tracing::warn!(
                "the name in {} has no answer yet; clients are reset until it has",
                target.address
            );
        }
        Ok(target)
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

    /// The addresses to try: those of the last answer. If it is stale, this asks for a new one and does not
    /// wait, since a slow or dead name server must not stop a target that has not moved.
    pub(crate) fn addresses(&self) -> Arc<[SocketAddress]> {
        let mut known = self.lock();
        if let Some(questions) = self.questions.get()
            && !known.refreshing
            && known
                .resolved_at
                .is_some_and(|at| at.elapsed() >= ANSWER_KEPT)
        {
            // The thread keeps the receiver as long as the process lives.
            known.refreshing = questions.send(()).is_ok();
        }
        Arc::clone(&known.addresses)
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
            (
                known.found(),
                known.own.clone(),
                known.resolved_at.is_some(),
            )
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
        self.take(found);
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

    /// Stores an answer without the addresses of the relay itself.
    fn take(&self, found: Vec<SocketAddress>) {
        loop {
            let listening = Arc::clone(&self.lock().listening);
            // Without the lock, since this makes system calls.
            let (own, addresses): (Vec<_>, Vec<_>) = found
                .iter()
                .cloned()
                .partition(|address| leads_to(address, &listening));
            let mut known = self.lock();
            if !Arc::ptr_eq(&listening, &known.listening) {
                continue;
            }
            *known = Known {
                addresses: addresses.into(),
                own,
                resolved_at: Some(Instant::now()),
                refreshing: false,
                listening,
            };
            return;
        }
    }

    /// Resolves the name. Logs a failure once until the next answer. Returns the pause before the next
    /// attempt; `None` if it waits to be asked.
    fn resolve_again(&self, pause: Option<Duration>, warned: &mut bool) -> Option<Duration> {
        let answer = SocketAddress::resolve(&self.address);
        let resolved_before = self.lock().resolved_at.is_some();
        match answer {
            Ok(addresses) => {
                let told: Vec<_> = addresses.iter().map(SocketAddress::to_string).collect();
                self.take(addresses);
                // Only now, so that whoever reads it can rely on it.
                if std::mem::take(warned) {
                    tracing::info!("{} resolves now: {}", self.address, told.join(", "));
                }
                None
            }
            Err(error) => {
                let (otherwise, pause) = if resolved_before {
                    ("going on with its last known addresses", pause)
                } else {
                    ("clients are reset until it can", Some(next_pause(pause)))
                };
                if !std::mem::replace(warned, true) {
                    tracing::warn!("{error:#}; {otherwise}");
                }
                let mut known = self.lock();
                known.refreshing = false;
                known.resolved_at = resolved_before.then(Instant::now);
                pause
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
        self.addresses.iter().chain(&self.own).cloned().collect()
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
    let mut warned = false;
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
        pause = target.resolve_again(pause, &mut warned);
        let _ = tried.send(());
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
