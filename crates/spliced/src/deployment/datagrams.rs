//! The listeners of datagrams, whose threads are their own.

mod listening;

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Error, Result};
use serde_json::Value;
use splice::{Address, SocketName};

use super::conflict::{Held, explain};
use super::drain::Drain;
use super::terms::PlannedBackends;
use crate::access_log::AccessLog;
use crate::access_log_args::LogPlace;
use crate::datagram::{
    DatagramService, Group, Hold, Listeners, Route, Routes, ServiceTerms, Worker, threads_of,
};
use crate::listener::{AccessChange, SocketFile};
use crate::plan::{Action, DatagramListenerPlan, OnRemove, Plan};
use crate::service::Process;
use crate::sessions::Survey;
use crate::socket_address::SocketAddress;

pub(super) struct Datagrams {
    process: Arc<Process>,
    /// Of a UDP listener.
    threads: usize,
    on_failure: Arc<dyn Fn(Error) + Send + Sync>,
    /// By [`key`].
    listening: BTreeMap<String, Listening>,
    /// Those that were removed, and when their sessions are cut; `None`: they were, or never are.
    former: Vec<(Option<Instant>, Listening)>,
}

pub(super) struct Listening {
    plan: Arc<DatagramListenerPlan>,
    service: Arc<DatagramService>,
    workers: Vec<Worker>,
    /// Removes the file of a UNIX socket when it is dropped.
    socket_file: Option<SocketFile>,
    pub(super) drain: Arc<Drain>,
}

/// What a plan comes to, with everything that could fail already done.
pub(super) struct Prepared {
    terms: Vec<(Arc<DatagramListenerPlan>, ServiceTerms)>,
    /// New ones.
    bound: BTreeMap<String, Listeners>,
    /// Former ones that come back with their sessions.
    returning: BTreeMap<String, Returning>,
}

/// A former listener whose threads stay until this is dropped.
struct Returning {
    service: Arc<DatagramService>,
    _holds: Vec<Hold>,
}

/// What a listener is known by from one plan to the next, as that of streams.
fn key(plan: &DatagramListenerPlan) -> String {
    match &plan.listen {
        SocketName::Udp(Address::Inet { port: 0, .. }) => format!("{} {}", plan.listen, plan.name),
        address => address.to_string(),
    }
}

/// Whether it has a socket in the file system.
fn has_file(plan: &DatagramListenerPlan) -> bool {
    matches!(plan.listen, SocketName::UnixDatagram(Address::UnixPath(_)))
}

impl Prepared {
    /// The terms of each listener, and the addresses that it is bound to, or about to be.
    pub(super) fn listening<'a>(
        &'a self,
        now: &'a Datagrams,
    ) -> impl Iterator<Item = (&'a ServiceTerms, &'a [SocketAddress])> {
        self.terms.iter().map(|(plan, terms)| {
            let key = key(plan);
            let service = now.listening.get(&key).map(|listening| &listening.service);
            let returning = self.returning.get(&key).map(|former| &former.service);
            let addresses = match (self.bound.get(&key), service.or(returning)) {
                (Some(listeners), _) => &listeners.addresses[..],
                (None, Some(service)) => service.addresses(),
                (None, None) => &[],
            };
            (terms, addresses)
        })
    }
}

impl Datagrams {
    pub(super) fn new(
        process: &Arc<Process>,
        threads: usize,
        on_failure: impl Fn(Error) + Send + Sync + 'static,
    ) -> Self {
        Self {
            process: Arc::clone(process),
            threads,
            on_failure: Arc::new(on_failure),
            listening: BTreeMap::new(),
            former: Vec::new(),
        }
    }

    /// Binds what is new in `plan`, and keeps former listeners that come back from ending.
    ///
    /// # Errors
    /// If an address cannot be bound. Then everything is as it was.
    pub(super) fn prepare(
        &mut self,
        plan: &Plan,
        backends: &PlannedBackends,
        access_logs: &BTreeMap<LogPlace, AccessLog>,
    ) -> Result<Prepared> {
        let (mut bound, mut returning) = (BTreeMap::new(), BTreeMap::new());
        for listener in &plan.datagram_listeners {
            let key = key(listener);
            if self.listening.contains_key(&key) {
                continue;
            }
            if let Some(former) = self.hold(listener, &key) {
                returning.insert(key, former);
                continue;
            }
            self.forget_over();
            let listeners = self.bind(listener);
            let listeners = listeners.map_err(|error| explain(error, self.held(plan)))?;
            bound.insert(key, listeners);
        }
        let terms = plan.datagram_listeners.iter();
        let terms = terms.map(|plan| {
            let terms = self.terms(plan, backends, access_logs);
            (Arc::clone(plan), terms)
        });
        Ok(Prepared {
            terms: terms.collect(),
            bound,
            returning,
        })
    }

    /// The addresses that listeners have which are to go, or that were removed and still have sessions.
    fn held<'a>(&'a self, plan: &'a Plan) -> impl Iterator<Item = Held<'a>> {
        let stays = |key: &String| {
            let mut listeners = plan.datagram_listeners.iter();
            listeners.any(|listener| self::key(listener) == *key)
        };
        let going = self.listening.iter().filter(move |(key, _)| !stays(key));
        let going = going.map(|(_, listening)| (listening, false));
        let former = self.former.iter().map(|(_, former)| (former, true));
        going.chain(former).map(|(listening, is_former)| Held {
            name: listening.plan.name.clone(),
            addresses: listening.service.addresses(),
            is_former,
        })
    }

    fn bind(&self, plan: &DatagramListenerPlan) -> Result<Listeners> {
        let listen = &plan.listen;
        let threads = threads_of(listen, || self.threads);
        Listeners::bind(listen, &plan.terms, threads, plan.file_access)
    }

    /// The former listener that comes back as this one, if it has its sockets still. A socket file was removed with its
    /// listener.
    fn hold(&self, plan: &DatagramListenerPlan, key: &str) -> Option<Returning> {
        if has_file(plan) {
            return None;
        }
        let former = self.former.iter().map(|(_, former)| former);
        let mut former = former.filter(|former| self::key(&former.plan) == key);
        former.find_map(|former| {
            let holds: Option<Vec<_>> = former.workers.iter().map(Worker::hold).collect();
            Some(Returning {
                service: Arc::clone(&former.service),
                _holds: holds.filter(|holds| !holds.is_empty())?,
            })
        })
    }

    /// Waits until the threads have ended of former listeners without sessions, which may still have their addresses.
    fn forget_over(&mut self) {
        let ends = |(_, former): &mut (Option<Instant>, Listening)| {
            former.workers.iter().all(Worker::ends)
        };
        for (_, former) in self.former.extract_if(.., ends) {
            former.end();
        }
    }

    fn terms(
        &self,
        plan: &Arc<DatagramListenerPlan>,
        backends: &PlannedBackends,
        access_logs: &BTreeMap<LogPlace, AccessLog>,
    ) -> ServiceTerms {
        let backend = |name: &String| backends.get(name).map(|(backend, _)| Arc::clone(backend));
        let routes = plan.routes.iter().filter_map(|route| match &route.action {
            Action::Backend { name, fallback } => Some(Route {
                clients: route.conditions.clients.clone(),
                backend: backend(name)?,
                fallback: fallback.as_ref().and_then(backend),
            }),
            _ => None,
        });
        let routes: Vec<_> = routes.collect();
        let backends = routes
            .iter()
            .flat_map(|route| iter::once(&route.backend).chain(&route.fallback));
        let names = backends.map(|backend| backend.name());
        let tallies = self.process.tallies.of_listener(&plan.name, names);
        // So that what alerts ask for is told before it has happened.
        tallies.each(|tally| {
            tally.of_datagrams();
        });
        let log = plan.access_log.place.as_ref();
        let log = log.and_then(|place| access_logs.get(place));
        ServiceTerms {
            name: plan.name.clone(),
            sessions: plan.terms.clone(),
            routes: Routes { routes, tallies },
            access_log: log.map(|log| log.with(&plan.access_log)),
        }
    }

    /// The changes of who may send to the socket files that stay.
    ///
    /// # Errors
    /// If one cannot be made.
    pub(super) fn changes_of_access(&self, prepared: &Prepared) -> Result<Vec<AccessChange<'_>>> {
        let mut changes = Vec::new();
        for (plan, _) in &prepared.terms {
            let listening = self.listening.get(&key(plan));
            // A drained one binds with the access of its plan when it listens again.
            let Some((listening, file)) =
                listening.and_then(|it| Some((it, it.socket_file.as_ref()?)))
            else {
                continue;
            };
            let (before, wanted) = (listening.plan.file_access, plan.file_access);
            if before != wanted {
                changes.push(file.change(before, wanted)?);
            } else if !file.is_in_place() {
                tracing::warn!("listener {}: {}", plan.name, file.words_if_gone());
            }
        }
        Ok(changes)
    }

    /// Makes what was prepared the state of things.
    pub(super) fn commit(&mut self, prepared: Prepared) {
        let Prepared {
            terms,
            mut bound,
            returning,
        } = prepared;
        let keys: Vec<_> = terms.iter().map(|(plan, _)| key(plan)).collect();
        self.remove(&keys);
        for (key, (plan, terms)) in iter::zip(keys, terms) {
            if let Some(listeners) = bound.remove(&key) {
                let addresses = listeners.addresses.clone();
                let service = DatagramService::new(&self.process, terms, addresses);
                let mut listening = Listening {
                    plan,
                    service,
                    workers: Vec::new(),
                    socket_file: None,
                    drain: Drain::listening(),
                };
                self.listen(&mut listening, listeners);
                self.listening.insert(key, listening);
            } else if let Some(former) = returning.get(&key) {
                self.take_back(&former.service, key, plan, terms);
            } else if let Some(listening) = self.listening.get_mut(&key) {
                listening.set_terms(plan, terms);
            }
        }
    }

    /// A former listener is one again, with its sessions.
    fn take_back(
        &mut self,
        service: &Arc<DatagramService>,
        key: String,
        plan: Arc<DatagramListenerPlan>,
        terms: ServiceTerms,
    ) {
        let is_it =
            |(_, former): &(Option<Instant>, Listening)| Arc::ptr_eq(&former.service, service);
        let Some(place) = self.former.iter().position(is_it) else {
            return;
        };
        let (_, mut listening) = self.former.swap_remove(place);
        listening.set_terms(plan, terms);
        listening.workers.iter().for_each(|worker| {
            worker.resume();
        });
        listening.drain.end();
        listening.tell_listening();
        self.listening.insert(key, listening);
    }

    /// Starts the threads of a listener. One that cannot be started ends the process.
    fn listen(&self, listening: &mut Listening, listeners: Listeners) {
        listening.socket_file = listeners.socket_file;
        let group: Arc<Group> = Arc::default();
        for sockets in listeners.sockets {
            let on_failure = Arc::clone(&self.on_failure);
            let ended = move |result: Result<()>| {
                if let Err(error) = result {
                    on_failure(error);
                }
            };
            match Worker::start(sockets, Arc::clone(&listening.service), &group, ended) {
                Ok(worker) => listening.workers.push(worker),
                Err(error) => (self.on_failure)(error),
            }
        }
        listening.tell_listening();
    }

    fn remove(&mut self, kept: &[String]) {
        let now = Instant::now();
        let all = std::mem::take(&mut self.listening).into_iter();
        let (staying, gone): (Vec<_>, Vec<_>) = all.partition(|(key, _)| kept.contains(key));
        self.listening = staying.into_iter().collect();
        for (_, mut listening) in gone {
            listening.workers.iter().for_each(Worker::leave);
            listening.socket_file = None;
            let time = match listening.plan.on_remove {
                OnRemove::Drain(time) => time,
                OnRemove::Reset => Duration::ZERO,
            };
            for address in listening.service.shown_addresses() {
                tracing::info!("no longer listening on {address}");
            }
            self.former.push((now.checked_add(time), listening));
        }
    }

    /// Cuts what has been removed and had its time, and returns when the next one is due.
    pub(super) fn cut_what_is_due(&mut self, now: Instant) -> Option<Instant> {
        let is_over = |(_, former): &mut (Option<Instant>, Listening)| {
            former.workers.iter().all(Worker::is_over)
        };
        for (_, former) in self.former.extract_if(.., is_over) {
            former.end();
        }
        for (at, former) in &mut self.former {
            if at.is_some_and(|at| at <= now) {
                *at = None;
                former.tell_cut();
                former.workers.iter().for_each(Worker::cut);
            }
        }
        self.former.iter().filter_map(|(at, _)| *at).min()
    }

    /// No listener takes clients any more, since the process ends.
    pub(super) fn drain_all(&mut self) {
        for listening in self.all_mut() {
            listening.socket_file = None;
            listening.drain.begin_to_end();
            listening.workers.iter().for_each(Worker::drain);
        }
    }

    /// Of each listener the threads, which may still have sessions, and what they have in common.
    pub(super) fn into_threads(self) -> Vec<(Arc<DatagramService>, Vec<Worker>)> {
        let former = self.former.into_iter().map(|(_, former)| former);
        let all = self.listening.into_values().chain(former);
        all.map(|listening| (listening.service, listening.workers))
            .collect()
    }

    /// How many sessions there are.
    pub(super) fn sessions(&self) -> usize {
        let former = self.former.iter().map(|(_, former)| former);
        let all = self.listening.values().chain(former);
        all.map(|listening| listening.service.sessions.count())
            .sum()
    }

    /// Puts a question to every thread.
    pub(super) fn ask(&self, survey: &Arc<Survey>) {
        let former = self.former.iter().map(|(_, former)| former);
        for listening in self.listening.values().chain(former) {
            for worker in &listening.workers {
                worker.asker()(survey);
            }
        }
    }

    pub(super) fn told(&self) -> impl Iterator<Item = Value> {
        self.listening.values().map(Listening::told)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.listening.values().map(|it| it.plan.name.as_str())
    }

    /// The listener `name`, and where what is needed to bind it again.
    pub(super) fn named(&mut self, name: &str) -> Option<&mut Listening> {
        self.listening.values_mut().find(|it| it.plan.name == name)
    }

    /// Has the listener `name` take clients again.
    ///
    /// # Errors
    /// If an address cannot be bound.
    pub(super) fn undrain(&mut self, name: &str) -> Result<()> {
        let is_it = |(_, it): &(&String, &Listening)| it.plan.name == name;
        let Some(key) = self
            .listening
            .iter()
            .find(is_it)
            .map(|(key, _)| key.clone())
        else {
            return Ok(());
        };
        let Some(mut listening) = self.listening.remove(&key) else {
            return Ok(());
        };
        let undrained = self.listen_again(&mut listening);
        if undrained.is_ok() {
            listening.drain.end();
        }
        self.listening.insert(key, listening);
        undrained
    }

    fn listen_again(&self, listening: &mut Listening) -> Result<()> {
        // With its file gone, nobody reaches a socket any more. Its sessions go on beside the new one.
        if !has_file(&listening.plan) {
            let resumed = listening.workers.iter().all(Worker::resume);
            if resumed && !listening.workers.is_empty() {
                return Ok(());
            }
            // None has a session any more.
            listening.workers.drain(..).for_each(Worker::join);
        }
        // Those that it had, also if port 0 was asked for.
        let addresses = listening.service.addresses().to_vec();
        let listen = &listening.plan.listen;
        let terms = listening.service.terms();
        let threads = threads_of(listen, || self.threads);
        let access = listening.plan.file_access;
        let listeners = Listeners::at(listen, addresses, &terms.sessions, threads, access)?;
        listening.workers.retain(|worker| !worker.is_over());
        self.listen(listening, listeners);
        Ok(())
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Listening> {
        let former = self.former.iter_mut().map(|(_, former)| former);
        self.listening.values_mut().chain(former)
    }
}
