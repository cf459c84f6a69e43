//! A plan as it runs: its threads, listeners and backends, and the change to another plan.
//!
//! A change is prepared as a whole: logs are opened, servers made, engines loaded and new addresses bound.
//! If one of these fails, everything stays as it was. Then comes what others have to change, such as the
//! bypasses of a reload. What follows cannot fail, unless a loop has, which ends the process.

mod access_logs;
mod announcement;
mod circles;
mod conflict;
mod datagrams;
mod drain;
mod removal;
mod terms;

use std::collections::BTreeMap;
use std::iter;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use serde_json::Value;
use splice::{EngineChoice, Forward, Waker};
use tokio::sync::oneshot;

use self::access_logs::AccessLogs;
use self::announcement::announce;
pub(crate) use self::announcement::log_missing_engines;
use self::conflict::{Held, explain};
use self::datagrams::Datagrams;
use self::drain::Drain;
use self::terms::{PlannedBackends, check_engine, key, largest_segment, terms};
use crate::access_log::AccessLog;
use crate::access_log_args::LogPlace;
use crate::backend::Backend;
use crate::datagram::{self, DatagramService};
use crate::file_lock::LockWait;
use crate::forwarding::Forwarding;
use crate::listener::{ListeningSockets, change_access};
use crate::plan::{ListenerPlan, OnRemove, Plan};
use crate::plural::counted;
use crate::refusal;
use crate::service::{Process, Service, Terms};
use crate::sessions::About;
use crate::socket_address::SocketAddress;
use crate::target::Target;
use crate::worker::Worker;

pub(crate) struct Deployment {
    pub(crate) process: Arc<Process>,
    workers: Vec<Worker>,
    /// By [`key`].
    listeners: BTreeMap<String, Listening>,
    datagrams: Datagrams,
    access_logs: AccessLogs,
    lock_wait: Arc<LockWait>,
    /// Listeners that were removed, and when their connections are cut. As long as one of these is left, or
    /// the backlog is not accepted, somebody holds the service.
    draining: Vec<(Instant, Weak<Service>)>,
    /// Those of former listeners, or of former terms, and when they are cut; `None`: never.
    former_forwardings: Vec<(Option<Instant>, Arc<Forwarding>)>,
}

/// So many connections can be forwarded at the same time: 344 bytes of the kernel's memory each.
const ROOM_FOR_FORWARDED: u32 = 65_536;

struct Listening {
    service: Arc<Service>,
    /// The addresses that the sockets are bound to.
    addresses: Vec<SocketAddress>,
    wakers: Vec<Waker>,
    forwarding: Option<Arc<Forwarding>>,
    /// Removes the file of a UNIX socket when it is dropped. `None` once it is drained.
    sockets: Option<ListeningSockets>,
    drain: Arc<Drain>,
}

/// So many of them, in words.
pub(crate) fn connections(count: u64) -> String {
    counted(count, "connection")
}

/// A listener that is about to be added.
struct Bound {
    service: Arc<Service>,
    sockets: ListeningSockets,
}

impl Deployment {
    /// Starts the threads; nothing listens yet. `may_have_connections`: there may be listeners of connections.
    ///
    /// # Errors
    /// If a thread or its loop cannot be created.
    pub(crate) fn new(
        threads: Option<u16>,
        may_have_connections: bool,
        busy_poll: Option<Duration>,
        on_failure: impl Fn(Error) + Clone + Send + Sync + 'static,
    ) -> Result<Self> {
        let threads = threads.map_or_else(
            || thread::available_parallelism().map_or(1, usize::from),
            usize::from,
        );
        // Without listeners of connections one is enough: `stop_listening` needs it to report that they are closed.
        let loops = if may_have_connections { threads } else { 1 };
        let workers = (0..loops).map(|_| Worker::start(busy_poll, on_failure.clone()));
        let workers = workers.collect::<Result<_>>()?;
        let process = Process::new();
        Ok(Self {
            datagrams: Datagrams::new(&process, threads, on_failure),
            process,
            workers,
            listeners: BTreeMap::new(),
            access_logs: AccessLogs::default(),
            lock_wait: Arc::default(),
            draining: Vec::new(),
            former_forwardings: Vec::new(),
        })
    }

    /// Changes to `plan`. `before_binding` is called before there is anything to undo, and `last` when nothing but it
    /// can fail any more.
    ///
    /// # Errors
    /// If the plan cannot work here, or `last` fails. Then everything stays as it was.
    pub(crate) fn apply(
        &mut self,
        plan: &Plan,
        before_binding: impl FnOnce(),
        last: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        plan.listeners
            .iter()
            .try_for_each(|listener| check_engine(plan, listener))?;
        let to_bind = self.addresses_to_bind(plan)?;
        let backends = self.backends_of(plan)?;
        let access_logs = self.access_logs.open(plan)?;
        let terms: Vec<_> = plan
            .listeners
            .iter()
            .map(|listener| terms(listener, &backends, &access_logs))
            .collect();
        // Before the programs are loaded, which decides on the room.
        if terms.iter().any(|terms| terms.plan.from_syn) {
            Forward::make_room(ROOM_FOR_FORWARDED);
        }
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
                .map_err(|error| explain(error, self.held(plan)))?;
            bound.insert(key, sockets);
        }
        for terms in &terms {
            self.check_targets(terms, &bound, &backends)?;
        }
        let datagrams = self.datagrams.prepare(plan, &backends, &access_logs)?;
        for (terms, listening) in datagrams.listening(&self.datagrams) {
            for backend in terms.routes.backends() {
                refusal::of_itself(backend.name(), &targets(backend, &backends), listening)?;
            }
        }
        self.refuse_circles(plan, &bound, &datagrams, &backends)?;
        self.change_file_access(&terms, &datagrams, last)?;

        self.commit(terms, bound, datagrams, backends, access_logs);
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
        datagrams: datagrams::Prepared,
        backends: PlannedBackends,
        access_logs: BTreeMap<LogPlace, AccessLog>,
    ) {
        let mut of_backends = BTreeMap::new();
        for (name, (backend, change)) in backends {
            let leads_here = |terms: &&Terms| {
                let mut led_to = terms.backends();
                led_to.any(|other| Arc::ptr_eq(other, &backend))
            };
            let of_streams = terms
                .iter()
                .filter(leads_here)
                .flat_map(|terms| self.listening_on(&terms.plan, &bound));
            let of_datagrams = datagrams.listening(&self.datagrams);
            let of_datagrams = of_datagrams.filter(|(terms, _)| {
                let mut led_to = terms.routes.backends();
                led_to.any(|other| Arc::ptr_eq(other, &backend))
            });
            let of_datagrams = of_datagrams.flat_map(|(_, listening)| listening);
            let addresses: Vec<_> = of_streams.chain(of_datagrams).cloned().collect();
            if let Some(change) = change {
                backend.update(change);
            }
            backend.keep_off(&addresses);
            of_backends.insert(name, backend);
        }
        let gone = self.process.backends.replace(of_backends);
        self.access_logs.replace(access_logs);
        let keys: Vec<_> = terms.iter().map(|terms| key(&terms.plan)).collect();
        self.remove_listeners(&keys);
        for (key, terms) in iter::zip(keys, terms) {
            match (bound.remove(&key), self.listeners.get(&key)) {
                (Some(sockets), _) => {
                    let service = Service::new(&self.process, terms);
                    self.add(key, Bound { service, sockets });
                }
                (None, Some(_)) => self.set_terms(&key, terms),
                (None, None) => {}
            }
        }
        self.datagrams.commit(datagrams);
        self.process.tallies.forget_unused();
        // Only now no route leads to them.
        gone.iter().for_each(Backend::retire);
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

    /// The addresses of listeners that `plan` has no more.
    fn held<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = Held<'a>> {
        let stays = |key: &String| plan.listeners.iter().any(|plan| self::key(plan) == *key);
        let going = self.listeners.iter();
        let going = going.filter(move |(key, one)| !stays(key) && one.sockets.is_some());
        going.map(|(_, listening)| Held {
            name: listening.service.terms().plan.name.clone(),
            addresses: &listening.addresses,
            is_former: false,
        })
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
    fn backends_of(&self, plan: &Plan) -> Result<PlannedBackends> {
        let backend = |plan: &Arc<crate::plan::BackendPlan>| {
            let backend = match self.process.backends.get(&plan.name) {
                Some(backend) => {
                    let change = backend.prepare(plan)?;
                    (backend, Some(change))
                }
                None => (Backend::new(Arc::clone(plan), &self.process.control)?, None),
            };
            Ok((plan.name.clone(), backend))
        };
        plan.backends.iter().map(backend).collect()
    }

    fn bind(&self, terms: &Terms, addresses: Vec<SocketAddress>) -> Result<ListeningSockets> {
        let largest_segment = terms
            .translates_segments()
            .then(|| largest_segment(terms))
            .flatten();
        let typed = &terms.plan.address;
        let threads = self.workers.len();
        let sockets = ListeningSockets::bind(
            typed,
            addresses,
            threads,
            largest_segment,
            terms.plan.file_access,
            &self.lock_wait,
        )?;
        sockets.set_peer_timeouts(terms.plan.peer_timeouts)?;
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
        backends: &PlannedBackends,
    ) -> Result<()> {
        let listening = self.listening_on(&terms.plan, bound);
        for backend in terms.backends() {
            let targets = targets(backend, backends);
            refusal::of_itself(backend.name(), &targets, listening)?;
            if terms.translates_segments() {
                let addresses: Vec<_> = targets
                    .iter()
                    .flat_map(|target| target.last_known().to_vec())
                    .collect();
                refusal::of_families(&addresses, listening)?;
            }
        }
        Ok(())
    }

    /// Changes who may connect to the UNIX listeners that stay, and does `last`.
    fn change_file_access(
        &self,
        terms: &[Terms],
        datagrams: &datagrams::Prepared,
        last: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut changes = self.datagrams.changes_of_access(datagrams)?;
        for terms in terms {
            let Some(listening) = self.listeners.get(&key(&terms.plan)) else {
                continue;
            };
            // It binds with the access of its plan when it listens again.
            let Some(sockets) = &listening.sockets else {
                continue;
            };
            let before = listening.service.terms().plan.file_access;
            let wanted = terms.plan.file_access;
            if before != wanted {
                changes.extend(sockets.change_of_access(before, wanted)?);
            } else if let Some(why) = sockets.why_unreachable() {
                tracing::warn!("listener {}: {why}", terms.plan.name);
            }
        }
        change_access(&changes, last)
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

    /// Listens on what was bound.
    fn add(&mut self, key: String, bound: Bound) {
        let Bound {
            service,
            mut sockets,
        } = bound;
        let wakers = self.listen(&service, &mut sockets);
        let forwarding = Forwarding::start(&service, &sockets.addresses);
        let listening = Listening {
            service,
            forwarding,
            addresses: sockets.addresses.clone(),
            wakers,
            sockets: Some(sockets),
            drain: Drain::listening(),
        };
        self.listeners.insert(key, listening);
    }

    /// Accepts from now on. A loop that has failed ends the process, so it may miss its part.
    fn listen(&self, service: &Arc<Service>, sockets: &mut ListeningSockets) -> Vec<Waker> {
        let by_thread = std::mem::take(&mut sockets.by_thread);
        let mut wakers = Vec::new();
        for (worker, of_thread) in iter::zip(&self.workers, by_thread) {
            for socket in of_thread {
                wakers.extend(worker.listen(socket, sockets.shared, Arc::clone(service)));
            }
        }
        announce(&service.terms(), &sockets.addresses);
        wakers
    }

    /// Changes a listener to the terms of a reload.
    fn set_terms(&mut self, key: &str, terms: Terms) {
        let Some(listening) = self.listeners.get_mut(key) else {
            return;
        };
        let service = &listening.service;
        service.set_terms(terms);
        let terms = service.terms();
        match &listening.forwarding {
            Some(forwarding) if forwarding.reload(&terms) => {}
            Some(forwarding) => {
                forwarding.close();
                let time = match terms.plan.on_remove {
                    OnRemove::Drain(time) => time,
                    OnRemove::Reset => Duration::ZERO,
                };
                let at = Instant::now().checked_add(time);
                self.former_forwardings.push((at, Arc::clone(forwarding)));
                listening.forwarding = None;
            }
            None if listening.sockets.is_some() => {
                listening.forwarding = Forwarding::start(service, &listening.addresses);
            }
            None => {}
        }
    }

    pub(crate) fn reopen_access_logs(&self) {
        self.access_logs.reopen();
    }

    /// Has the listeners accept their backlogs and close, and calls `closed` for each thread on which
    /// they have. Returns the number of threads.
    pub(crate) fn stop_listening(&mut self, closed: impl Fn() + Clone + Send + 'static) -> usize {
        for listening in self.listeners.values() {
            listening.wakers.iter().for_each(Waker::close);
            listening.forwarding.iter().for_each(|one| one.close());
            if listening.sockets.is_some() {
                listening.drain.begin_to_end();
            }
        }
        self.datagrams.drain_all();
        // A loop reads its messages in order, so these come after the listeners have closed.
        for worker in &self.workers {
            worker.when_reached(closed.clone());
        }
        self.workers.len()
    }

    /// Whether there is a listener of connections.
    pub(crate) fn has_connections(&self) -> bool {
        !self.listeners.is_empty()
    }

    /// How many sessions of datagrams there are.
    pub(crate) fn datagram_sessions(&self) -> usize {
        self.datagrams.sessions()
    }

    /// Puts a question about sessions to all who have some.
    pub(crate) fn ask(&self, about: About, answer: oneshot::Sender<Result<Value>>) {
        let survey = self.process.sessions.survey(about, answer);
        self.datagrams.ask(&survey);
    }

    /// Closes the sockets' files. Returns the threads, and the logs that are still to be written.
    pub(crate) fn into_threads(self) -> Threads {
        Threads {
            loops: self.workers,
            of_datagrams: self.datagrams.into_threads(),
            access_logs: self.access_logs.into_all(),
        }
    }
}

/// What a deployment leaves to whoever ends it.
pub(crate) struct Threads {
    pub(crate) loops: Vec<Worker>,
    pub(crate) of_datagrams: Vec<(Arc<DatagramService>, Vec<datagram::Worker>)>,
    pub(crate) access_logs: Vec<AccessLog>,
}

/// The targets of a backend after the change of `backends`.
fn targets(backend: &Backend, backends: &PlannedBackends) -> Vec<Arc<Target>> {
    let planned = backends.get(backend.name());
    backend.targets(planned.and_then(|(_, change)| change.as_ref()))
}
