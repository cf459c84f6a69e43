//! A plan as it runs: its threads, listeners and backends, and the change to another plan.
//!
//! A change is prepared as a whole: logs are opened, servers made, engines loaded and new addresses bound.
//! If one of these fails, everything stays as it was. What follows cannot fail, unless a loop has, which
//! ends the process.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result, anyhow};
use serde_json::{Value, json};
use splice::{Address, EngineChoice, EngineName, Kind, SegmentSize, Waker};

use crate::access_log::AccessLog;
use crate::backend::{Backend, Change};
use crate::firewall;
use crate::listener::{InUse, ListeningSockets};
use crate::plan::{Action, ListenerPlan, OnRemove, Plan, RoutePlan, ServerAddress};
use crate::refusal;
use crate::service::{Destination, Process, Route, Service, Terms};
use crate::socket_address::SocketAddress;
use crate::worker::Worker;

pub(crate) struct Deployment {
    pub(crate) process: Arc<Process>,
    workers: Vec<Worker>,
    /// By [`key`].
    listeners: BTreeMap<String, Listening>,
    backends: BTreeMap<String, Arc<Backend>>,
    access_logs: BTreeMap<PathBuf, AccessLog>,
    /// Logs that only connections from before a reload write to.
    former_logs: Vec<(PathBuf, AccessLog)>,
    /// Listeners that were removed, and when their connections are cut. As long as one of these is left, or
    /// the backlog is not accepted, somebody holds the service.
    draining: Vec<(Instant, Weak<Service>)>,
}

struct Listening {
    service: Arc<Service>,
    /// The addresses that the sockets are bound to.
    addresses: Vec<SocketAddress>,
    wakers: Vec<Waker>,
    /// Removes the file of a UNIX socket when it is dropped.
    _sockets: ListeningSockets,
}

/// A listener that is about to be added.
struct Bound {
    service: Arc<Service>,
    sockets: ListeningSockets,
}

impl Deployment {
    /// Starts the threads; nothing listens yet.
    ///
    /// # Errors
    /// If a thread or its loop cannot be created.
    pub(crate) fn new(
        threads: Option<u16>,
        busy_poll: Option<Duration>,
        on_failure: impl Fn(Error) + Clone + Send + 'static,
    ) -> Result<Self> {
        let threads = threads.map_or_else(
            || thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        );
        let workers = (0..threads).map(|_| Worker::start(busy_poll, on_failure.clone()));
        Ok(Self {
            process: Process::new(),
            workers: workers.collect::<Result<_>>()?,
            listeners: BTreeMap::new(),
            backends: BTreeMap::new(),
            access_logs: BTreeMap::new(),
            former_logs: Vec::new(),
            draining: Vec::new(),
        })
    }

    /// Changes to `plan`. `before_binding` is called before there is anything to undo.
    ///
    /// # Errors
    /// If the plan cannot work here. Then everything stays as it was.
    pub(crate) fn apply(&mut self, plan: &Plan, before_binding: impl FnOnce()) -> Result<()> {
        plan.listeners
            .iter()
            .try_for_each(|listener| check_engine(plan, listener))?;
        let to_bind = self.addresses_to_bind(plan)?;
        let backends = self.backends_of(plan)?;
        let access_logs = self.open_access_logs(plan)?;
        let terms: Vec<_> = plan
            .listeners
            .iter()
            .map(|listener| terms(listener, &backends, &access_logs))
            .collect();
        self.prepare_engines(&terms)?;
        before_binding();
        let mut bound = BTreeMap::new();
        for (listener, addresses) in to_bind {
            let key = key(&listener);
            let Some(terms) = terms.iter().find(|terms| self::key(&terms.plan) == key) else {
                continue;
            };
            let sockets = self
                .bind(terms, addresses)
                .map_err(|error| self.explain_conflict(error, plan))?;
            bound.insert(key, sockets);
        }
        for terms in &terms {
            self.check_targets(terms, &bound, &backends)?;
        }

        self.commit(terms, bound, backends, access_logs);
        Ok(())
    }

    pub(crate) fn threads(&self) -> usize {
        self.workers.len()
    }

    /// Makes what was prepared the state of things.
    fn commit(
        &mut self,
        terms: Vec<Terms>,
        mut bound: BTreeMap<String, ListeningSockets>,
        backends: BTreeMap<String, (Arc<Backend>, Option<Change>)>,
        access_logs: BTreeMap<PathBuf, AccessLog>,
    ) {
        let mut of_backends = BTreeMap::new();
        for (name, (backend, change)) in backends {
            let leads_here = |terms: &&Terms| {
                let mut led_to = terms.backends();
                led_to.any(|other| Arc::ptr_eq(other, &backend))
            };
            let addresses: Vec<_> = terms
                .iter()
                .filter(leads_here)
                .flat_map(|terms| self.listening_on(&terms.plan, &bound))
                .cloned()
                .collect();
            if let Some(change) = change {
                backend.update(change);
            }
            backend.keep_off(&addresses);
            of_backends.insert(name, backend);
        }
        let before = std::mem::replace(&mut self.backends, of_backends);
        self.keep_logs(access_logs);
        let keys: Vec<_> = terms.iter().map(|terms| key(&terms.plan)).collect();
        self.remove_listeners(&keys);
        for (key, terms) in iter::zip(keys, terms) {
            match (bound.remove(&key), self.listeners.get(&key)) {
                (Some(sockets), _) => {
                    let service = Service::new(&self.process, terms);
                    self.add(key, Bound { service, sockets });
                }
                (None, Some(listening)) => listening.service.set_terms(terms),
                (None, None) => {}
            }
        }
        // Only now no route leads to them.
        for (name, backend) in before {
            if !self.backends.contains_key(&name) {
                backend.retire();
            }
        }
    }

    /// Replaces the logs. Connections that were accepted before may still write to those that are gone,
    /// which have to be reopened and finished, too.
    fn keep_logs(&mut self, access_logs: BTreeMap<PathBuf, AccessLog>) {
        let before = std::mem::replace(&mut self.access_logs, access_logs);
        for (path, log) in before {
            if !self.access_logs.contains_key(&path) {
                self.former_logs.push((path, log));
            }
        }
    }

    /// The addresses that a listener is bound to, or about to be.
    fn listening_on<'a>(
        &'a self,
        listener: &ListenerPlan,
        bound: &'a BTreeMap<String, ListeningSockets>,
    ) -> &'a [SocketAddress] {
        let key = key(listener);
        match (bound.get(&key), self.listeners.get(&key)) {
            (Some(sockets), _) => &sockets.addresses,
            (None, Some(listening)) => &listening.addresses,
            (None, None) => &[],
        }
    }

    /// Says so if an address is in use by a listener of this process that `plan` has no more.
    fn explain_conflict(&self, error: Error, plan: &Plan) -> Error {
        let Some(InUse(address)) = error.downcast_ref() else {
            return error;
        };
        let stays = |key: &String| plan.listeners.iter().any(|plan| self::key(plan) == *key);
        let collides = |own: &SocketAddress| match (own.inet(), address.inet()) {
            (Some(own), Some(new)) => {
                let has_all = own.ip().is_unspecified() || new.ip().is_unspecified();
                own.port() == new.port() && (has_all || own.ip() == new.ip())
            }
            _ => own == address,
        };
        let going = self
            .listeners
            .iter()
            .find(|(key, listening)| !stays(key) && listening.addresses.iter().any(collides));
        match going {
            Some((_, listening)) => anyhow!(
                "cannot listen on {address}: listener {} of this process holds it until this change is \
                 made; remove that listener in a reload of its own first, or restart",
                listening.service.terms().plan.name
            ),
            None => error,
        }
    }

    /// The addresses of listeners that are new, resolved.
    fn addresses_to_bind(
        &self,
        plan: &Plan,
    ) -> Result<Vec<(Arc<ListenerPlan>, Vec<SocketAddress>)>> {
        let new = plan
            .listeners
            .iter()
            .filter(|listener| !self.listeners.contains_key(&key(listener)));
        new.map(|listener| {
            let addresses = SocketAddress::to_listen(&listener.address)?;
            Ok((Arc::clone(listener), addresses))
        })
        .collect()
    }

    /// The backends, and how those that are there already will change.
    fn backends_of(&self, plan: &Plan) -> Result<BTreeMap<String, (Arc<Backend>, Option<Change>)>> {
        let backend = |plan: &Arc<crate::plan::BackendPlan>| {
            let backend = match self.backends.get(&plan.name) {
                Some(backend) => (Arc::clone(backend), Some(backend.prepare(plan)?)),
                None => (Backend::new(Arc::clone(plan), &self.process.control)?, None),
            };
            Ok((plan.name.clone(), backend))
        };
        plan.backends.iter().map(backend).collect()
    }

    fn open_access_logs(&self, plan: &Plan) -> Result<BTreeMap<PathBuf, AccessLog>> {
        let mut logs = BTreeMap::new();
        for path in plan.listeners.iter().flat_map(|plan| &plan.access_log) {
            if logs.contains_key(path) {
                continue;
            }
            let mut former = self.former_logs.iter();
            let known = self.access_logs.get(path).or_else(|| {
                let (_, log) = former.find(|(of_log, _)| of_log == path)?;
                Some(log)
            });
            let log = match known {
                Some(log) => log.clone(),
                None => AccessLog::open(path)?,
            };
            logs.insert(path.clone(), log);
        }
        Ok(logs)
    }

    fn bind(&self, terms: &Terms, addresses: Vec<SocketAddress>) -> Result<ListeningSockets> {
        let largest_segment = terms
            .translates_segments()
            .then(|| largest_segment(terms))
            .flatten();
        let typed = &terms.plan.address;
        let threads = self.workers.len();
        let sockets = ListeningSockets::bind(typed, addresses, threads, largest_segment)?;
        if let Some(time) = terms.plan.busy_poll {
            sockets.set_busy_poll(time)?;
        }
        Ok(sockets)
    }

    /// Refuses servers that clients could not be joined with.
    fn check_targets(
        &self,
        terms: &Terms,
        bound: &BTreeMap<String, ListeningSockets>,
        backends: &BTreeMap<String, (Arc<Backend>, Option<Change>)>,
    ) -> Result<()> {
        let listening = self.listening_on(&terms.plan, bound);
        for backend in terms.backends() {
            let change = backends
                .get(backend.name())
                .and_then(|(_, change)| change.as_ref());
            let targets = backend.targets(change);
            refusal::of_itself(backend.name(), &targets, listening)?;
            if terms.translates_segments() {
                let addresses: Vec<_> = targets
                    .iter()
                    .flat_map(|target| target.addresses().to_vec())
                    .collect();
                refusal::of_families(&addresses, listening)?;
            }
        }
        Ok(())
    }

    /// Loads the engines. A plan that asks for one by name is refused if it cannot be used; `auto` does
    /// without.
    fn prepare_engines(&self, terms: &[Terms]) -> Result<()> {
        for terms in terms {
            let engine = terms.options.engine;
            if engine == EngineChoice::Auto && !terms.may_promote() {
                continue;
            }
            for worker in &self.workers {
                let prepared = worker.prepare(engine);
                if engine != EngineChoice::Auto {
                    prepared?;
                }
            }
        }
        Ok(())
    }

    /// Listens on what was bound. A loop that has failed ends the process, so it may miss its part.
    fn add(&mut self, key: String, bound: Bound) {
        let Bound {
            service,
            mut sockets,
        } = bound;
        let by_thread = std::mem::take(&mut sockets.by_thread);
        let mut wakers = Vec::new();
        for (worker, of_thread) in iter::zip(&self.workers, by_thread) {
            for socket in of_thread {
                wakers.extend(worker.listen(socket, sockets.shared, Arc::clone(&service)));
            }
        }
        announce(&service.terms(), &sockets.addresses);
        let listening = Listening {
            service,
            addresses: sockets.addresses.clone(),
            wakers,
            _sockets: sockets,
        };
        self.listeners.insert(key, listening);
    }

    fn remove_listeners(&mut self, kept: &[String]) {
        let now = Instant::now();
        self.listeners.retain(|key, listening| {
            if kept.contains(key) {
                return true;
            }
            listening.wakers.iter().for_each(Waker::close);
            let service = &listening.service;
            let time = match service.terms().plan.on_remove {
                OnRemove::Drain(time) => time,
                OnRemove::Reset => Duration::ZERO,
            };
            if let Some(at) = now.checked_add(time) {
                self.draining.push((at, Arc::downgrade(service)));
            }
            for address in &listening.addresses {
                tracing::info!("no longer listening on {address}");
            }
            false
        });
    }

    /// Cuts what has been removed and had its time, and returns when the next one is due.
    pub(crate) fn cut_what_is_due(&mut self, now: Instant) -> Option<Instant> {
        self.former_logs.retain(|(_, log)| !log.is_over());
        self.draining
            .retain(|(at, service)| match service.upgrade() {
                Some(service) if *at <= now => {
                    service.connections.cut();
                    false
                }
                service => service.is_some(),
            });
        self.draining.iter().map(|(at, _)| *at).min()
    }

    /// What runs, and what has been counted.
    pub(crate) fn status(&self) -> Value {
        let listener = |listening: &Listening| {
            let service = &listening.service;
            json!({
                "name": service.terms().plan.name,
                "addresses": listening.addresses.iter().map(SocketAddress::to_string).collect::<Vec<_>>(),
                "connections": service.connection_limit.count(),
                "counts": service.counts,
            })
        };
        json!({
            "connections": self.process.connections.count(),
            "listeners": self.listeners.values().map(listener).collect::<Vec<_>>(),
            "backends": self.backends.values().map(|backend| backend.snapshot()).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn reopen_access_logs(&self) {
        if self.access_logs.is_empty() && self.former_logs.is_empty() {
            tracing::info!("there is no access log to reopen");
        }
        let former = self.former_logs.iter().map(|(_, log)| log);
        self.access_logs
            .values()
            .chain(former)
            .for_each(AccessLog::reopen);
    }

    /// Has the listeners accept their backlogs and close, and calls `closed` for each thread on which
    /// they have. Returns the number of threads.
    pub(crate) fn stop_listening(&self, closed: impl Fn() + Clone + Send + 'static) -> usize {
        let listeners = self.listeners.values();
        listeners
            .flat_map(|listening| &listening.wakers)
            .for_each(Waker::close);
        // A loop reads its messages in order, so these come after the listeners have closed.
        for worker in &self.workers {
            worker.when_reached(closed.clone());
        }
        self.workers.len()
    }

    /// Closes the sockets' files. Returns the threads, and the logs that are still to be written.
    pub(crate) fn into_threads(self) -> (Vec<Worker>, Vec<AccessLog>) {
        let former = self.former_logs.into_iter().map(|(_, log)| log);
        let logs = self.access_logs.into_values().chain(former);
        (self.workers, logs.collect())
    }
}

/// What a listener is known by from one plan to the next: its address as it was typed. Port 0 stands for
/// another port each time, so there the name counts as well.
fn key(listener: &ListenerPlan) -> String {
    match &listener.address {
        Address::Inet { port: 0, .. } => format!("{} {}", listener.address, listener.name),
        address => address.to_string(),
    }
}

/// Refuses an engine that cannot do what the plan asks for.
fn check_engine(plan: &Plan, listener: &ListenerPlan) -> Result<()> {
    let EngineChoice::Only(engine) = listener.engine else {
        return Ok(());
    };
    let echoes = |route: &RoutePlan| matches!(route.action, Action::Echo);
    if listener.routes.iter().any(echoes) {
        engine.can_echo()?;
    }
    let servers = plan
        .backends
        .iter()
        .filter(|backend| {
            listener
                .routes
                .iter()
                .any(|route| leads_to(route, &backend.name))
        })
        .flat_map(|backend| &backend.servers)
        .filter_map(|server| match &server.address {
            ServerAddress::Address(address) => Some(address),
            ServerAddress::Srv(_) => None,
        });
    let mut addresses = iter::once(&listener.address).chain(servers);
    if addresses.any(|address| !matches!(address, Address::Inet { .. })) {
        engine.can_take(Kind::Unix)?;
    }
    Ok(())
}

fn leads_to(route: &RoutePlan, backend: &str) -> bool {
    matches!(&route.action, Action::Backend { name, fallback }
        if name == backend || fallback.as_deref() == Some(backend))
}

fn terms(
    plan: &Arc<ListenerPlan>,
    backends: &BTreeMap<String, (Arc<Backend>, Option<Change>)>,
    access_logs: &BTreeMap<PathBuf, AccessLog>,
) -> Terms {
    let backend = |name: &String| backends.get(name).map(|(backend, _)| Arc::clone(backend));
    let destination = |action: &Action| match action {
        Action::Backend { name, fallback } => match backend(name) {
            Some(found) => Destination::Backend {
                backend: found,
                fallback: fallback.as_ref().and_then(backend),
            },
            None => Destination::Reset,
        },
        Action::Requested(rules) => Destination::Requested(rules.as_slice().into()),
        Action::Echo => Destination::Client,
        Action::Reset => Destination::Reset,
    };
    let route = |route: &RoutePlan| Route {
        conditions: route.conditions.clone(),
        destination: destination(&route.action),
    };
    let routes = plan.routes.iter().map(route).collect();
    let log = plan.access_log.as_ref();
    let access_log = log.and_then(|path| access_logs.get(path)).cloned();
    Terms::new(Arc::clone(plan), routes, access_log)
}

/// The largest segment that fits on the paths to all known servers; `None` if none is reachable, which
/// the first connection reports.
fn largest_segment(terms: &Terms) -> Option<SegmentSize> {
    let addresses = terms.backends().flat_map(|backend| backend.addresses());
    let sizes = addresses.filter_map(|address| match address {
        SocketAddress::Inet(address) => SegmentSize::on_the_way_to(address).ok(),
        SocketAddress::Unix(_) => None,
    });
    sizes.min()
}

/// Logs what a listener does from now on, and what the packet filters mean for it.
fn announce(terms: &Terms, listening: &[SocketAddress]) {
    if terms.may_bypass_filters() {
        if terms.options.bypass_firewall {
            tracing::info!("spliced connections bypass the packet filters of this host");
        } else {
            let servers: Vec<_> = terms
                .backends()
                .flat_map(|backend| backend.addresses())
                .collect();
            firewall::log_what_is_kept_back(listening, &servers);
        }
    }
    let what = match &terms.routes[..] {
        [
            Route {
                destination: Destination::Client,
                ..
            },
        ] => "echoing every byte".into(),
        [
            Route {
                destination: Destination::Backend { backend, .. },
                conditions,
            },
        ] if *conditions == splice_route::Conditions::default() => {
            format!("relaying to {}", backend.name())
        }
        [_] => "1 route".into(),
        routes => format!("{} routes", routes.len()),
    };
    let plan = &terms.plan;
    let name = match plan.name == plan.address.to_string() {
        true => String::new(),
        false => format!("{}: ", plan.name),
    };
    for address in listening {
        tracing::info!("{name}listening on {address}, {what}");
    }
}

/// Logs why engines are missing, which `auto` goes on without. The log level is asked first, since
/// some probes take tens of milliseconds.
pub(crate) fn log_missing_engines() {
    if tracing::enabled!(tracing::Level::DEBUG) {
        let probes = EngineName::ALL.iter().map(|engine| engine.probe());
        for refusal in probes.filter_map(Result::err) {
            tracing::debug!("{refusal}");
        }
    }
}
