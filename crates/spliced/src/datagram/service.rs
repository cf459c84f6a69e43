//! What the threads of a listener have in common.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError, RwLock, Weak};

use rustix::io::Errno;
use splice_route::Prefix;

use super::control::Control;
use super::counters::Counters;
use super::outcome::words;
use super::plan::shown;
use super::routes::Routes;
use crate::access_log::AccessLog;
use crate::client_limit::ClientLimit;
use crate::connection_limit::ConnectionLimit;
use crate::plan::DatagramTerms;
use crate::plural::counted;
use crate::rate_limited_warning::RateLimitedWarning;
use crate::service::Process;
use crate::socket_address::SocketAddress;

/// A listener's, shared by its threads.
pub(crate) struct DatagramService {
    pub(crate) process: Arc<Process>,
    terms: RwLock<Arc<ServiceTerms>>,
    /// That the sockets of each thread are bound to.
    addresses: Vec<SocketAddress>,
    /// Counts the sessions that are open.
    pub(crate) sessions: Arc<ConnectionLimit>,
    /// Sockets of sessions that have ended, which are kept for late answers.
    pub(crate) resting: AtomicUsize,
    /// Sessions so far.
    pub(crate) made: AtomicU64,
    total: Mutex<Counters>,
    threads: Mutex<Vec<Weak<Control>>>,
    /// Whoever has it may end sessions that are beyond a bound.
    displacing: Mutex<()>,
    pub(crate) full: RateLimitedWarning,
    pub(crate) short: RateLimitedWarning,
    pub(crate) dropped: RateLimitedWarning,
    pub(crate) failed: RateLimitedWarning,
    pub(crate) too_big: RateLimitedWarning,
    untold: Once,
    pub(crate) clients: Arc<ClientLimit>,
}

/// What a reload replaces as a whole. A session keeps those that it was opened under.
pub(crate) struct ServiceTerms {
    pub(crate) name: String,
    pub(crate) sessions: DatagramTerms,
    pub(crate) routes: Routes,
    pub(crate) access_log: Option<AccessLog>,
}

impl DatagramService {
    pub(crate) fn new(
        process: &Arc<Process>,
        terms: ServiceTerms,
        addresses: Vec<SocketAddress>,
    ) -> Arc<Self> {
        let most = terms.most_sessions();
        let service = Arc::new(Self {
            process: Arc::clone(process),
            terms: RwLock::new(Arc::new(terms)),
            addresses,
            sessions: ConnectionLimit::within(&process.connections, most),
            resting: AtomicUsize::new(0),
            made: AtomicU64::new(0),
            total: Mutex::default(),
            threads: Mutex::default(),
            displacing: Mutex::default(),
            full: RateLimitedWarning::of(
                "clients that displaced others, since as many sessions were open as may be",
            ),
            short: RateLimitedWarning::of(
                "clients that displaced others, since no descriptor was free",
            ),
            dropped: RateLimitedWarning::of("datagrams of clients that were dropped"),
            failed: RateLimitedWarning::of("sessions that their targets ended"),
            too_big: RateLimitedWarning::of("datagrams that were too big for their path"),
            untold: Once::new(),
            clients: Arc::default(),
        });
        service.tell();
        service
    }

    /// The terms for a session that begins now.
    pub(crate) fn terms(&self) -> Arc<ServiceTerms> {
        // Set whole, so a panic cannot leave them half changed.
        Arc::clone(&self.terms.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the terms for sessions from now on. The threads are to be told.
    pub(crate) fn set_terms(&self, terms: ServiceTerms) {
        self.sessions.set_most(terms.most_sessions());
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(terms);
        self.tell();
    }

    fn tell(&self) {
        self.process
            .tell_sessions(&self.terms().name, &self.sessions);
    }

    /// Says that no client is told of an error.
    pub(crate) fn warn_untold(&self, errno: Errno) {
        if !matches!(errno, Errno::PERM | Errno::ACCESS) {
            return tracing::debug!("a client cannot be told by ICMP: {}", words(errno));
        }
        self.untold.call_once(|| {
            tracing::warn!(
                "the clients of {} are not told by ICMP when their target fails, since CAP_NET_RAW is missing",
                self.terms().name
            );
        });
    }

    pub(crate) fn addresses(&self) -> &[SocketAddress] {
        &self.addresses
    }

    /// The addresses with the kind of their sockets.
    pub(crate) fn shown_addresses(&self) -> Vec<String> {
        self.addresses.iter().map(shown).collect()
    }

    /// The id of a new session.
    pub(crate) fn next_id(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed);
        self.process.next_id.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a thread, which is told of what others want.
    pub(crate) fn add_thread(&self, control: &Arc<Control>) {
        let mut threads = self.lock_threads();
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(control));
    }

    /// The threads that there are.
    pub(crate) fn threads(&self) -> Vec<Arc<Control>> {
        let threads = self.lock_threads();
        threads.iter().filter_map(Weak::upgrade).collect()
    }

    /// As long as that lives, no other thread ends sessions since there are too many: none ends more than are too many.
    pub(crate) fn displacing(&self) -> MutexGuard<'_, ()> {
        self.displacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread beside `own` that has the most sessions, if one has some.
    pub(crate) fn fullest_beside(&self, own: &Arc<Control>) -> Option<Arc<Control>> {
        let others = self.threads().into_iter();
        let others = others.filter(|other| !Arc::ptr_eq(other, own) && other.sessions() > 0);
        others.max_by_key(|other| other.sessions())
    }

    /// Has all threads beside `own` look whether they have sessions of `client`, which has too many.
    pub(crate) fn tell_crowded(&self, own: &Arc<Control>, client: Prefix) {
        let others = self.threads().into_iter();
        let others = others.filter(|other| !Arc::ptr_eq(other, own) && other.sessions() > 0);
        others.for_each(|other| other.tell_crowded(client));
    }

    fn lock_threads(&self) -> MutexGuard<'_, Vec<Weak<Control>>> {
        // A panic cannot leave a list of threads half changed.
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a thread has moved, at its end.
    pub(crate) fn add(&self, counters: &Counters) {
        self.total
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .add(counters);
    }

    /// Logs what all threads have moved.
    pub(crate) fn log_total(&self) {
        let total = self.total.lock().unwrap_or_else(PoisonError::into_inner);
        tracing::info!(
            "listener {}: {}, {} of them displaced; to the target {}; to the clients {}",
            self.terms().name,
            counted(total.sessions, "session"),
            total.displaced,
            total.to_target,
            total.to_client
        );
    }
}

impl ServiceTerms {
    fn most_sessions(&self) -> Option<u32> {
        u32::try_from(self.sessions.max_sessions).ok()
    }
}
