//! What the connections of a listener share: where they go, how, and what is counted.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use serde::Serialize;
use splice::{Address, EngineChoice, EngineName, Limits, Options, PeerNames};
use splice_route::{Conditions, DestinationRule};

use crate::access_log::AccessLog;
use crate::backend::{Backend, Backends, Control};
use crate::client_limit::ClientLimit;
use crate::connection_limit::ConnectionLimit;
use crate::plan::ListenerPlan;
use crate::rate_limited_warning::RateLimitedWarning;
use crate::roster::Roster;
use crate::sessions::Sessions;
use crate::tally::{OfListener, Tallies};

/// What all listeners of the process share.
pub(crate) struct Process {
    /// Tells this process from all others in unique ids.
    random: u64,
    pub(crate) next_id: AtomicU64,
    /// Connections that the end of the process cut short.
    pub(crate) cut_short: AtomicU64,
    /// Sessions of datagrams that it did.
    pub(crate) cut_short_sessions: AtomicU64,
    /// It cuts those that are left, so that nobody is told of empty servers any more.
    is_over: AtomicBool,
    pub(crate) control: Control,
    pub(crate) backends: Backends,
    /// Counts the connections of all listeners.
    pub(crate) connections: Arc<ConnectionLimit>,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) tallies: Tallies,
    services: Mutex<Vec<Weak<Service>>>,
    /// The listeners of datagrams by their names, and what counts their sessions.
    session_counts: Mutex<Vec<(String, Weak<ConnectionLimit>)>>,
}

impl Process {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            // The standard library seeds each of them at random.
            random: RandomState::new().hash_one(std::process::id()),
            next_id: AtomicU64::new(0),
            cut_short: AtomicU64::new(0),
            cut_short_sessions: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            control: Control::default(),
            backends: Backends::default(),
            connections: ConnectionLimit::none(),
            sessions: Arc::default(),
            tallies: Tallies::default(),
            services: Mutex::default(),
            session_counts: Mutex::default(),
        })
    }
}

impl Process {
    /// What is left is cut from now on.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.backends.end();
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// What names the connection `id` of this process everywhere and for ever.
    pub(crate) fn unique_id(&self, id: u64) -> String {
        format!("{:016x}-{id:x}", self.random)
    }

    /// The listeners that there are, and former ones as long as they have connections.
    pub(crate) fn services(&self) -> Vec<Arc<Service>> {
        let services = self.services.lock();
        let services = services.unwrap_or_else(PoisonError::into_inner);
        services.iter().filter_map(Weak::upgrade).collect()
    }

    /// Has the sessions of a listener of datagrams told under its name.
    pub(crate) fn tell_sessions(&self, listener: &str, sessions: &Arc<ConnectionLimit>) {
        let counts = self.session_counts.lock();
        let mut counts = counts.unwrap_or_else(PoisonError::into_inner);
        let new = Arc::downgrade(sessions);
        counts.retain(|(_, other)| other.strong_count() > 0 && !other.ptr_eq(&new));
        counts.push((listener.into(), new));
    }

    /// What counts the sessions of listeners of datagrams, by their names.
    pub(crate) fn session_counts(&self) -> Vec<(String, Arc<ConnectionLimit>)> {
        let counts = self.session_counts.lock();
        let counts = counts.unwrap_or_else(PoisonError::into_inner);
        let alive = counts.iter();
        alive
            .filter_map(|(name, limit)| Some((name.clone(), limit.upgrade()?)))
            .collect()
    }

    fn add(&self, service: &Arc<Service>) {
        let services = self.services.lock();
        let mut services = services.unwrap_or_else(PoisonError::into_inner);
        services.retain(|former| former.strong_count() > 0);
        services.push(Arc::downgrade(service));
    }
}

/// A listener's, shared by its connections of all threads.
pub(crate) struct Service {
    pub(crate) process: Arc<Process>,
    terms: RwLock<Arc<Terms>>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    pub(crate) client_limit: Arc<ClientLimit>,
    pub(crate) connections: Arc<Roster>,
    pub(crate) counts: Counts,
    pub(crate) warnings: Warnings,
}

/// What a reload replaces as a whole. A connection keeps the terms that it was accepted under.
pub(crate) struct Terms {
    pub(crate) plan: Arc<ListenerPlan>,
    pub(crate) options: Options,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) routes: Vec<Route>,
    /// A route needs the address that the client has connected to.
    pub(crate) asks_for_local_address: bool,
    /// Where its sessions are counted.
    pub(crate) tallies: OfListener,
}

/// A route whose backend has been found.
pub(crate) struct Route {
    pub(crate) conditions: Conditions,
    pub(crate) destination: Destination,
}

/// Where the bytes of a client go.
#[derive(Clone)]
pub(crate) enum Destination {
    Backend {
        backend: Arc<Backend>,
        fallback: Option<Arc<Backend>>,
    },
    /// Where the client asks for, if a rule allows it.
    Requested(Arc<[DestinationRule]>),
    /// Back to the client.
    Client,
    Reset,
}

/// What has become of a listener's clients.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) accepted: AtomicU64,
    /// Joined with a server.
    pub(crate) joined: AtomicU64,
    /// Reset: no route takes them, or their first bytes are broken or did not come in time.
    pub(crate) without_route: AtomicU64,
    /// Reset: no server was left, or none answered.
    pub(crate) without_server: AtomicU64,
    /// Reset: the queue of a backend was full.
    pub(crate) queue_full: AtomicU64,
    /// Reset: no server became free within the time in the queue.
    pub(crate) queue_timeout: AtomicU64,
    /// Told that no rule allows their destination.
    pub(crate) denied: AtomicU64,
    /// Reset: the client has too many connections.
    pub(crate) client_connections: AtomicU64,
    /// Reset: the client opens connections too fast.
    pub(crate) client_rate: AtomicU64,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// Warnings that every connection may cause.
pub(crate) struct Warnings {
    pub(crate) shortage: RateLimitedWarning,
    pub(crate) max_connections_reached: RateLimitedWarning,
    pub(crate) target_unreachable: RateLimitedWarning,
    pub(crate) undecided: RateLimitedWarning,
    /// By what clients send before there is a route.
    pub(crate) broken_header: RateLimitedWarning,
    pub(crate) broken_request: RateLimitedWarning,
    pub(crate) client_limit: RateLimitedWarning,
    pub(crate) engine_refused: RateLimitedWarning,
}

impl Default for Warnings {
    fn default() -> Self {
        let of = RateLimitedWarning::of;
        Self {
            shortage: of("attempts to accept connections that failed"),
            max_connections_reached: of("times at which max-connections was reached"),
            target_unreachable: of("connections that were reset for want of a target"),
            undecided: of("connections that were reset for want of a route"),
            broken_header: of("connections that were reset for their PROXY header"),
            broken_request: of("connections that were reset for what the client sent first"),
            client_limit: of("connections that were reset by a limit for each client"),
            engine_refused: of("connections that their engine refused"),
        }
    }
}

impl Service {
    pub(crate) fn new(process: &Arc<Process>, terms: Terms) -> Arc<Self> {
        let most = terms.plan.max_connections;
        let service = Arc::new(Self {
            process: Arc::clone(process),
            connection_limit: ConnectionLimit::within(&process.connections, most),
            terms: RwLock::new(Arc::new(terms.counted(process))),
            client_limit: Arc::default(),
            connections: Arc::default(),
            counts: Counts::default(),
            warnings: Warnings::default(),
        });
        process.add(&service);
        service
    }

    /// The terms for a connection that begins now.
    pub(crate) fn terms(&self) -> Arc<Terms> {
        // Set whole, so a panic cannot leave them half changed.
        Arc::clone(&self.terms.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the terms for connections from now on.
    pub(crate) fn set_terms(&self, terms: Terms) {
        self.connection_limit.set_most(terms.plan.max_connections);
        let terms = Arc::new(terms.counted(&self.process));
        *self.terms.write().unwrap_or_else(PoisonError::into_inner) = terms;
    }
}

impl Terms {
    pub(crate) fn new(
        plan: Arc<ListenerPlan>,
        routes: Vec<Route>,
        access_log: Option<AccessLog>,
    ) -> Self {
        let mut options = Options {
            engine: plan.engine,
            limits: Limits {
                idle_timeout: plan.idle_timeout,
                half_close_timeout: plan.half_close_timeout,
                ..Limits::default()
            },
            bypass_firewall: plan.bypass_firewall,
            peer_names: PeerNames {
                a: "the client",
                b: "the server",
            },
            // The sockets have the plan's keep-alive and user timeout before they are joined.
            ..Options::default()
        };
        if let Some(after) = plan.splice_after {
            options.segment_after = Some(after);
        }
        if plan.rate.is_some() {
            // The rate is kept by the sockets, which segment goes past.
            options.segment_after = None;
        }
        let asks_for_local_address = routes
            .iter()
            .any(|route| route.conditions.ask_for_local_address());
        Self {
            plan,
            options,
            access_log,
            routes,
            asks_for_local_address,
            tallies: OfListener::default(),
        }
    }

    /// With the tallies that `process` has for it.
    fn counted(self, process: &Process) -> Self {
        let backends = self.backends().map(|backend| backend.name());
        let tallies = process.tallies.of_listener(&self.plan.name, backends);
        Self { tallies, ..self }
    }

    /// Every client gets back what it sends.
    pub(crate) fn echoes(&self) -> bool {
        matches!(
            &self.routes[..],
            [Route {
                destination: Destination::Client,
                ..
            }]
        )
    }

    /// The backends that the routes lead to.
    pub(crate) fn backends(&self) -> impl Iterator<Item = &Arc<Backend>> {
        self.routes.iter().flat_map(|route| {
            let (first, second) = match &route.destination {
                Destination::Backend { backend, fallback } => (Some(backend), fallback.as_ref()),
                _ => (None, None),
            };
            first.into_iter().chain(second)
        })
    }

    /// Whether `auto` may promote pairs to the kernel.
    pub(crate) fn may_promote(&self) -> bool {
        self.options.segment_after.is_some()
            && matches!(self.plan.address, Address::Inet { .. })
            && !self.echoes()
    }

    /// Whether pairs may bypass the packet filters of this host.
    pub(crate) fn may_bypass_filters(&self) -> bool {
        self.may_promote() && self.options.engine == EngineChoice::Auto
            || self.translates_segments()
    }

    /// Whether the segments of the target have to fit the client. Each connection pays one or two
    /// system calls for that, so `auto` leaves it to those who name the engine.
    pub(crate) fn translates_segments(&self) -> bool {
        self.options.engine == EngineChoice::Only(EngineName::Segment)
    }
}
