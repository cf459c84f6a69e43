//! A plan as it runs: its threads, listeners and backends, and the change to another plan.
//!
//! A change is prepared as a whole: logs are opened, backends made, new addresses bound and engines
//! loaded. If one of these fails, everything stays as it was. What follows cannot fail.

use std::collections::BTreeMap;
use std::iter;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use serde_json::{Value, json};
use splice::{Address, EngineChoice, EngineName, Kind, SegmentSize, Waker};

use crate::access_log::AccessLog;
use crate::backend::Backend;
use crate::firewall;
use crate::listener::ListeningSockets;
use crate::plan::{Action, ListenerPlan, OnRemove, Plan, RoutePlan, ServerAddress};
use crate::refusal;
use crate::service::{Destination, Process, Route, Service, Terms};
use crate::socket_address::SocketAddress;
use crate::worker::Worker;

pub(crate) struct Deployment {
    pub(crate) process: Arc<Process>,
    workers: Vec<Worker>,
    /// By their address as it was typed.
    listeners: BTreeMap<String, Listening>,
    backends: BTreeMap<String, Arc<Backend>>,
    access_logs: BTreeMap<PathBuf, AccessLog>,
    /// What was removed and may still have connections, and when they are cut.
    draining: Vec<(Instant, Arc<Service>)>,
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
        let mut backends = self.backends_of(plan)?;
        let access_logs = self.open_access_logs(plan)?;
        let terms: Vec<_> = plan
            .listeners
            .iter()
            .map(|listener| terms(listener, &backends, &access_logs))
            .collect();
        before_binding();
        let mut bound = BTreeMap::new();
        for (typed, addresses) in to_bind {
            let Some(terms) = terms.iter().find(|terms| terms.plan.address == typed) else {
                continue;
            };
            let sockets = self.bind(terms, addresses)?;
            bound.insert(typed.to_string(), sockets);
        }
        for terms in &terms {
            self.check_targets(terms, &bound)?;
        }
        self.prepare_engines(&terms)?;

        for listener in &plan.backends {
            if let Some(backend) = self.backends.get(&listener.name) {
                backend.update(Arc::clone(listener))?;
            }
        }
        self.access_logs = access_logs;
        self.remove_listeners(plan);
        for terms in terms {
            let typed = terms.plan.address.to_string();
            match (bound.remove(&typed), self.listeners.get(&typed)) {
                (Some(sockets), _) => {
                    let service = Service::new(&self.process, terms);
                    self.add(typed, Bound { service, sockets })?;
                }
                (None, Some(listening)) => listening.service.set_terms(terms),
                (None, None) => {}
            }
        }
        std::mem::swap(&mut self.backends, &mut backends);
        for (name, backend) in backends {
            if !self.backends.contains_key(&name) {
                backend.retire();
            }
        }
        Ok(())
    }

    /// The addresses of listeners that are new, resolved.
    fn addresses_to_bind(&self, plan: &Plan) -> Result<Vec<(Address, Vec<SocketAddress>)>> {
        let new = plan
            .listeners
            .iter()
            .map(|listener| &listener.address)
            .filter(|address| !self.listeners.contains_key(&address.to_string()));
        new.map(|address| Ok((address.clone(), SocketAddress::to_listen(address)?)))
            .collect()
    }

    fn backends_of(&self, plan: &Plan) -> Result<BTreeMap<String, Arc<Backend>>> {
        let backend = |plan: &Arc<crate::plan::BackendPlan>| {
            let backend = match self.backends.get(&plan.name) {
                Some(backend) => Arc::clone(backend),
                None => Backend::new(Arc::clone(plan), &self.process.control)?,
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
            let log = match self.access_logs.get(path) {
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
    ) -> Result<()> {
        let typed = terms.plan.address.to_string();
        let listening = match (bound.get(&typed), self.listeners.get(&typed)) {
            (Some(sockets), _) => &sockets.addresses,
            (None, Some(listening)) => &listening.addresses,
            (None, None) => return Ok(()),
        };
        for backend in terms.backends() {
            refusal::of_itself(backend, listening)?;
            if terms.translates_segments() {
                refusal::of_families(&backend.addresses(), listening)?;
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

    fn add(&mut self, typed: String, bound: Bound) -> Result<()> {
        let Bound {
            service,
            mut sockets,
        } = bound;
        let by_thread = std::mem::take(&mut sockets.by_thread);
        let mut wakers = Vec::new();
        for (worker, of_thread) in iter::zip(&self.workers, by_thread) {
            for socket in of_thread {
                wakers.push(worker.listen(socket, sockets.shared, Arc::clone(&service))?);
            }
        }
        announce(&service.terms(), &sockets.addresses);
        let listening = Listening {
            service,
            addresses: sockets.addresses.clone(),
            wakers,
            _sockets: sockets,
        };
        self.listeners.insert(typed, listening);
        Ok(())
    }

    fn remove_listeners(&mut self, plan: &Plan) {
        let stays = |typed: &str| {
            let mut addresses = plan.listeners.iter().map(|plan| plan.address.to_string());
            addresses.any(|address| address == typed)
        };
        let now = Instant::now();
        self.listeners.retain(|typed, listening| {
            if stays(typed) {
                return true;
            }
            listening.wakers.iter().for_each(Waker::close);
            let service = &listening.service;
            let time = match service.terms().plan.on_remove {
                OnRemove::Drain(time) => time,
                OnRemove::Reset => Duration::ZERO,
            };
            if let Some(at) = now.checked_add(time) {
                self.draining.push((at, Arc::clone(service)));
            }
            tracing::info!("no longer listening on {typed}");
            false
        });
    }

    /// Cuts what has been removed and had its time, and returns when the next one is due.
    pub(crate) fn cut_what_is_due(&mut self, now: Instant) -> Option<Instant> {
        self.draining.retain(|(at, service)| {
            if *at <= now {
                service.connections.cut();
            }
            *at > now && service.connection_limit.count() > 0
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
        if self.access_logs.is_empty() {
            tracing::info!("there is no access log to reopen");
        }
        self.access_logs.values().for_each(AccessLog::reopen);
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
        (self.workers, self.access_logs.into_values().collect())
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
    backends: &BTreeMap<String, Arc<Backend>>,
    access_logs: &BTreeMap<PathBuf, AccessLog>,
) -> Terms {
    let backend = |name: &String| backends.get(name).map(Arc::clone);
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
