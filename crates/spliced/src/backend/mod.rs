//! A group of servers: which one a connection goes to, and which are usable.

mod check;
mod control;
mod health;
mod maglev;
mod queue;
mod resolution;
mod server;
pub(crate) mod srv;
mod watch;

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::io::Errno;
use serde_json::{Value, json};
use splice::Waker;
use splice_route::Arrival;

pub(crate) use self::control::Control;
use self::maglev::Maglev;
use self::queue::Queue;
pub(crate) use self::queue::Ticket;
pub(crate) use self::resolution::Resolution;
use self::server::Server;
use crate::outgoing::Outgoing;
use crate::plan::{BackendPlan, Balance, HashKey, OnRemove, ServerAddress, ServerPlan};
use crate::roster::Seat;
use crate::socket_address::SocketAddress;
use crate::target::Target;

/// Shared by all threads.
pub(crate) struct Backend {
    name: String,
    plan: RwLock<Arc<BackendPlan>>,
    outgoing: Outgoing,
    control: Control,
    state: Mutex<State>,
    pub(crate) queue: Arc<Queue>,
}

#[derive(Default)]
struct State {
    entries: Vec<Entry>,
    /// The addresses that listeners with routes to this backend are bound to.
    listening: Vec<SocketAddress>,
    /// The names whose SRV records are asked for.
    srv_names: Vec<String>,
    /// For consistent hashing: the table, and the servers that it was made for.
    table: Option<(Vec<Arc<Server>>, Maglev)>,
}

/// A new plan for a backend, with everything that could fail already done.
pub(crate) struct Change {
    plan: Arc<BackendPlan>,
    /// Servers that are new.
    added: Vec<Arc<Server>>,
}

struct Entry {
    server: Arc<Server>,
    /// How far the server is due, for smooth weighted round-robin as in nginx: each turn adds the weight
    /// of every server to it and takes the sum from the one that is picked.
    due: i64,
}

/// What decides between servers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PickKey<'a> {
    pub(crate) client: Option<IpAddr>,
    pub(crate) server_name: Option<&'a str>,
}

/// The servers that a connection has tried.
#[derive(Default)]
pub(crate) struct Tried(Vec<Arc<Server>>);

impl Tried {
    pub(crate) fn add(&mut self, lease: &Lease) {
        self.0.push(Arc::clone(&lease.server));
    }

    fn has(&self, server: &Arc<Server>) -> bool {
        self.0.iter().any(|tried| Arc::ptr_eq(tried, server))
    }
}

pub(crate) enum Pick {
    Server(Lease),
    /// Every usable server is at its limit. The waker is called when it is worth picking again.
    Queued(Ticket),
    QueueFull,
    /// With the reason.
    NoneLeft(String),
}

/// One connection at one server, which it counts until it is dropped.
pub(crate) struct Lease {
    server: Arc<Server>,
    backend: Arc<Backend>,
}

impl Lease {
    pub(crate) fn addresses(&self) -> Arc<[SocketAddress]> {
        self.server.target.addresses()
    }

    /// The server has accepted the connection.
    pub(crate) fn connected(&self) {
        self.server.passed(&self.backend.name);
    }

    /// None of its addresses could be connected to.
    pub(crate) fn failed(&self, why: &str) {
        self.server.failed(&self.backend.name, why);
    }

    pub(crate) fn reset_before_first_byte(&self) {
        let why = "it resets connections before its first byte";
        self.server.failed(&self.backend.name, why);
    }

    /// Has the connection closed when the server is cut.
    pub(crate) fn sit(&self, waker: Waker) -> Seat {
        self.server.roster.enter(waker)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.server.open.fetch_sub(1, Ordering::Release);
        self.backend.queue.call_next();
    }
}

impl Backend {
    /// Starts to resolve and to check its servers. Waits for names up to the connect timeout.
    ///
    /// # Errors
    /// If an address cannot be used, or a thread cannot be started.
    pub(crate) fn new(plan: Arc<BackendPlan>, control: &Control) -> Result<Arc<Self>> {
        let backend = Arc::new(Self {
            name: plan.name.clone(),
            plan: RwLock::new(Arc::clone(&plan)),
            outgoing: Outgoing::default(),
            control: control.clone(),
            state: Mutex::default(),
            queue: Arc::default(),
        });
        let deadline = Instant::now() + plan.connect_timeout;
        for server in &plan.servers {
            backend.add(server, &plan, deadline)?;
        }
        Ok(backend)
    }

    /// Adds a server, unless there is one of this address.
    fn add(
        self: &Arc<Self>,
        server: &ServerPlan,
        plan: &BackendPlan,
        deadline: Instant,
    ) -> Result<()> {
        let address = match &server.address {
            ServerAddress::Address(address) => address.clone(),
            ServerAddress::Srv(name) => {
                srv::watch(self, name);
                return Ok(());
            }
        };
        let at_most = deadline.saturating_duration_since(Instant::now());
        let server = Server::new(address, None, server.weight, server.backup, plan, at_most)?;
        self.take_in(server, plan);
        Ok(())
    }

    /// Uses a server from now on.
    fn take_in(self: &Arc<Self>, server: Arc<Server>, plan: &BackendPlan) {
        let listening = self.lock().listening.clone();
        server.target.keep_off(&listening);
        if plan.health.is_some() {
            watch::start(self, &server);
        }
        let mut state = self.lock();
        state.entries.push(Entry { server, due: 0 });
        state.table = None;
    }

    /// Makes the servers that are new in `plan`. Nothing of the backend changes. Waits for names up to the
    /// connect timeout.
    ///
    /// # Errors
    /// If an address cannot be used, or a thread cannot be started.
    pub(crate) fn prepare(&self, plan: &Arc<BackendPlan>) -> Result<Change> {
        let deadline = Instant::now() + plan.connect_timeout;
        let mut added = Vec::new();
        for server in &plan.servers {
            let ServerAddress::Address(address) = &server.address else {
                continue;
            };
            if self.find(&address.to_string()).is_some() {
                continue;
            }
            let at_most = deadline.saturating_duration_since(Instant::now());
            let (address, weight) = (address.clone(), server.weight);
            added.push(Server::new(
                address,
                None,
                weight,
                server.backup,
                plan,
                at_most,
            )?);
        }
        let plan = Arc::clone(plan);
        Ok(Change { plan, added })
    }

    /// The targets of its servers after `change`.
    pub(crate) fn targets(&self, change: Option<&Change>) -> Vec<Arc<Target>> {
        let state = self.lock();
        let known = state.entries.iter().map(|entry| &entry.server);
        let stays =
            |server: &&Arc<Server>| change.is_none_or(|change| !is_gone(&change.plan, server));
        let added = change.iter().flat_map(|change| &change.added);
        let servers = known.filter(stays).chain(added);
        servers.map(|server| Arc::clone(&server.target)).collect()
    }

    /// A reload: servers that stay keep their connections, counts and health.
    pub(crate) fn update(self: &Arc<Self>, change: Change) {
        let Change { plan, added } = change;
        *self.plan.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&plan);
        // Before others go, so that there is always one to choose.
        for server in added {
            self.take_in(server, &plan);
        }
        for server in &plan.servers {
            let address = match &server.address {
                ServerAddress::Address(address) => address.to_string(),
                ServerAddress::Srv(name) => {
                    srv::watch(self, name);
                    continue;
                }
            };
            let Some(known) = self.find(&address) else {
                continue;
            };
            known.change(server.weight, server.backup, &plan);
            if plan.health.is_some() {
                watch::start(self, &known);
            }
        }
        self.remove(|server| is_gone(&plan, server), plan.on_remove);
        self.lock().table = None;
        // A limit may have been raised.
        self.queue.call_next();
    }

    /// The records of the SRV name `srv` are these servers now.
    fn take_srv(self: &Arc<Self>, srv: &str, servers: &[ServerPlan]) {
        let plan = self.plan();
        let address = |server: &ServerPlan| match &server.address {
            ServerAddress::Address(address) => Some(address.clone()),
            ServerAddress::Srv(_) => None,
        };
        let deadline = Instant::now() + plan.connect_timeout;
        let mut named = Vec::new();
        for server in servers {
            let Some(address) = address(server) else {
                continue;
            };
            named.push(address.to_string());
            match self.find(&address.to_string()) {
                // One with an address of its own keeps what its configuration says.
                Some(known) if known.srv() == Some(srv) => {
                    known.change(server.weight, server.backup, &plan);
                }
                Some(_) => {}
                None => {
                    let at_most = deadline.saturating_duration_since(Instant::now());
                    let (weight, backup) = (server.weight, server.backup);
                    match Server::new(address, Some(srv), weight, backup, &plan, at_most) {
                        Ok(server) => self.take_in(server, &plan),
                        Err(error) => tracing::warn!("backend {}: {error:#}", self.name),
                    }
                }
            }
        }
        let is_gone = |server: &Server| {
            server.srv() == Some(srv) && !named.iter().any(|name| name == server.name())
        };
        self.remove(is_gone, plan.on_remove);
        self.lock().table = None;
        self.queue.call_next();
    }

    /// Removes the servers that `gone` confirms.
    fn remove(&self, gone: impl Fn(&Server) -> bool, on_remove: OnRemove) {
        let mut state = self.lock();
        state.table = None;
        let (removed, kept) = std::mem::take(&mut state.entries)
            .into_iter()
            .partition(|entry| gone(&entry.server));
        state.entries = kept;
        drop(state);
        let servers = removed.into_iter().map(|entry| entry.server);
        self.take_out(servers.collect(), on_remove);
    }

    /// Ends the checks of these servers, and their connections as `on_remove` says.
    fn take_out(&self, servers: Vec<Arc<Server>>, on_remove: OnRemove) {
        for server in servers {
            server.remove();
            tracing::info!(
                "backend {}: server {} was removed",
                self.name,
                server.name()
            );
            self.cut_in_time(&server, on_remove);
        }
    }

    fn cut_in_time(&self, server: &Server, on_remove: OnRemove) {
        match on_remove {
            OnRemove::Reset => server.roster.cut(),
            OnRemove::Drain(time) => {
                // Without connections there is nobody to cut, and nothing to keep.
                let roster = Arc::downgrade(&server.roster);
                self.control.spawn(async move {
                    tokio::time::sleep(time).await;
                    if let Some(roster) = roster.upgrade() {
                        roster.cut();
                    }
                });
            }
        }
    }

    /// No route leads here any more. Connections that were accepted before still may: a client that is
    /// slow to say where it wants to go must not suffer from a new name of a backend.
    pub(crate) fn retire(&self) {
        let on_remove = self.plan().on_remove;
        tracing::info!("backend {} was removed", self.name);
        if on_remove == OnRemove::Reset {
            return self.remove(|_| true, on_remove);
        }
        for entry in &self.lock().entries {
            self.cut_in_time(&entry.server, on_remove);
        }
    }

    fn find(&self, name: &str) -> Option<Arc<Server>> {
        let state = self.lock();
        let mut entries = state.entries.iter();
        let found = entries.find(|entry| entry.server.name() == name)?;
        Some(Arc::clone(&found.server))
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn plan(&self) -> Arc<BackendPlan> {
        Arc::clone(&self.plan.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A socket that can be connected to a server.
    ///
    /// # Errors
    /// As [`Outgoing::socket`].
    pub(crate) fn socket(
        &self,
        address: &SocketAddress,
        arrival: &Arrival,
    ) -> Result<OwnedFd, Errno> {
        let client = arrival.client.map(|address| address.ip());
        self.outgoing.socket(&self.plan(), address, client)
    }

    /// The addresses of all servers that are known now.
    pub(crate) fn addresses(&self) -> Vec<SocketAddress> {
        let servers: Vec<_> = self
            .lock()
            .entries
            .iter()
            .map(|entry| Arc::clone(&entry.server))
            .collect();
        servers
            .iter()
            .flat_map(|server| server.target.addresses().to_vec())
            .collect()
    }

    /// How many servers a connection may still try.
    pub(crate) fn others(&self, tried: &Tried) -> usize {
        let state = self.lock();
        let now = Instant::now();
        let others = state.entries.iter().map(|entry| &entry.server);
        others
            .filter(|server| !tried.has(server) && server.is_up(now))
            .count()
    }

    /// Leaves out servers that are listeners of ours, from now on. `listening` replaces what was said
    /// before.
    pub(crate) fn keep_off(&self, listening: &[SocketAddress]) {
        self.lock().listening = listening.to_vec();
        for target in self.targets(None) {
            target.keep_off(listening);
        }
    }

    /// A server for a connection that has tried `tried`. One that comes with a ticket has waited; others
    /// queue behind those who wait.
    pub(crate) fn pick(
        self: &Arc<Self>,
        key: &PickKey<'_>,
        tried: &Tried,
        ticket: Option<Ticket>,
        waker: impl FnOnce() -> Waker,
    ) -> Pick {
        let plan = self.plan();
        let now = Instant::now();
        let mut state = self.lock();
        let usable = state.usable(tried, plan.health.is_some(), now);
        if usable.is_empty() {
            return Pick::NoneLeft(state.why_none());
        }
        let most = plan.max_connections_per_server.unwrap_or(u32::MAX);
        let free: Vec<_> = usable
            .iter()
            .copied()
            .filter(|index| state.has_room(*index, most))
            .collect();
        if free.is_empty() || (ticket.is_none() && !self.queue.is_empty()) {
            let ticket = match ticket {
                Some(ticket) => {
                    let all = state.usable(&Tried::default(), plan.health.is_some(), now);
                    ticket.stay(all.iter().any(|index| state.has_room(*index, most)), waker);
                    ticket
                }
                None => match self.queue.enter(plan.queue.most, waker) {
                    Some(ticket) => ticket,
                    None => return Pick::QueueFull,
                },
            };
            if usable.iter().any(|index| state.has_room(*index, most)) {
                self.queue.call_if_none_is();
            }
            return Pick::Queued(ticket);
        }
        let index = state.choose(&plan, &free, key, now);
        let server = Arc::clone(&state.entries[index].server);
        // Counted under the lock, so that nobody gets the same place.
        server.open.fetch_add(1, Ordering::Relaxed);
        server.total.fetch_add(1, Ordering::Relaxed);
        if let Some(ticket) = ticket {
            ticket.served();
            if usable.iter().any(|index| state.has_room(*index, most)) {
                self.queue.call_if_none_is();
            }
        }
        drop(state);
        Pick::Server(Lease {
            server,
            backend: Arc::clone(self),
        })
    }

    pub(crate) fn snapshot(&self) -> Value {
        let state = self.lock();
        json!({
            "name": self.name,
            "queued": self.queue.len(),
            "servers": state.entries.iter().map(|entry| entry.server.snapshot()).collect::<Vec<_>>(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // What a panic could leave half changed are the turns of servers, which even out.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether `plan` has a server no longer, neither its address nor the SRV name that names it.
fn is_gone(plan: &BackendPlan, server: &Server) -> bool {
    !plan.servers.iter().any(|planned| match &planned.address {
        ServerAddress::Address(address) => address.to_string() == server.name(),
        ServerAddress::Srv(srv) => server.srv() == Some(srv),
    })
}

impl State {
    /// The servers to choose from: those that are up; if there is none, the backups that are. Without
    /// checks the others are better than nothing.
    fn usable(&self, tried: &Tried, has_checks: bool, now: Instant) -> Vec<usize> {
        let that = |condition: &dyn Fn(&Server) -> bool| -> Vec<usize> {
            let entries = self.entries.iter().enumerate();
            entries
                .filter(|(_, entry)| {
                    let server = &entry.server;
                    condition(server) && !tried.has(server) && !server.target.addresses().is_empty()
                })
                .map(|(index, _)| index)
                .collect()
        };
        let up = that(&|server| !server.is_backup() && server.is_up(now));
        if !up.is_empty() {
            return up;
        }
        let backups = that(&|server| server.is_backup() && server.is_up(now));
        if !backups.is_empty() || has_checks {
            return backups;
        }
        that(&|_| true)
    }

    fn has_room(&self, index: usize, most: u32) -> bool {
        self.entries[index].server.open() < most
    }

    fn why_none(&self) -> String {
        match &self.entries[..] {
            [] => "its servers are not known yet".into(),
            [only] if only.server.target.addresses().is_empty() => only.server.target.why_nowhere(),
            _ => "no server is up".into(),
        }
    }

    fn choose(
        &mut self,
        plan: &BackendPlan,
        free: &[usize],
        key: &PickKey<'_>,
        now: Instant,
    ) -> usize {
        if let [only] = free {
            return *only;
        }
        match plan.balance {
            Balance::RoundRobin => self.next_in_turn(plan.slow_start, free, now),
            Balance::LeastConnections => {
                // Those with the same load take turns.
                let load = |index: &usize| {
                    let server = &self.entries[*index].server;
                    let share = u64::from(server.share(plan.slow_start, now).max(1));
                    (u64::from(server.open()) + 1) * 1_000_000 / share
                };
                let least = free.iter().map(load).min().unwrap_or_default();
                let ties: Vec<_> = free
                    .iter()
                    .copied()
                    .filter(|index| load(index) == least)
                    .collect();
                self.next_in_turn(plan.slow_start, &ties, now)
            }
            Balance::Consistent(hash) => self.consistent(hash, free, key),
        }
    }

    fn next_in_turn(
        &mut self,
        slow_start: Option<Duration>,
        free: &[usize],
        now: Instant,
    ) -> usize {
        let mut sum = 0;
        for index in free {
            let entry = &mut self.entries[*index];
            let share = i64::from(entry.server.share(slow_start, now));
            entry.due += share;
            sum += share;
        }
        // The first of those that are due most.
        let due = |index: &&usize| (self.entries[**index].due, std::cmp::Reverse(**index));
        let picked = free.iter().max_by_key(due).copied().unwrap_or_default();
        self.entries[picked].due -= sum;
        picked
    }

    fn consistent(&mut self, hash: HashKey, free: &[usize], key: &PickKey<'_>) -> usize {
        let bytes = match (hash, key.server_name, key.client) {
            (HashKey::ServerName, Some(name), _) => name.as_bytes().to_vec(),
            (_, _, Some(IpAddr::V4(ip))) => ip.octets().to_vec(),
            (_, _, Some(IpAddr::V6(ip))) => ip.octets().to_vec(),
            (_, _, None) => Vec::new(),
        };
        if self.table.is_none() {
            // All servers, down or not: so a server that comes back finds its clients again, and the
            // clients of one that is down are spread.
            let servers: Vec<_> = self
                .entries
                .iter()
                .map(|entry| Arc::clone(&entry.server))
                .collect();
            let named = servers
                .iter()
                .map(|server| (server.name(), server.weight()));
            self.table = Maglev::new(named).map(|table| (servers.clone(), table));
        }
        let Some((_, table)) = &self.table else {
            return free[0];
        };
        let mut order = table.servers(&bytes);
        order.find(|index| free.contains(index)).unwrap_or(free[0])
    }
}
