//! A group of servers: which one a connection goes to, and which are usable.

mod act;
mod availability;
mod change;
mod check;
mod client_names;
mod client_reports;
mod control;
mod datagram_check;
mod drain;
mod health;
mod history;
mod hosts;
mod immediate;
mod lease;
mod maglev;
mod membership;
mod missing;
mod order;
mod own_connection;
mod pool;
mod probe;
mod queue;
mod register;
mod removal;
mod resolution;
mod resolver;
mod server;
pub(crate) mod srv;
mod turns;
mod watch;

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Instant;

use anyhow::Result;
use rustix::io::Errno;
use serde_json::{Value, json};
use splice::Waker;
use splice_route::Arrival;

pub(crate) use self::act::{Act, Order};
use self::availability::Availability;
pub(crate) use self::change::Change;
use self::client_reports::ClientReports;
pub(crate) use self::control::Control;
use self::drain::By;
use self::health::Cause;
pub(crate) use self::lease::{Flows, Lease};
pub(crate) use self::order::{NoServer, those};
use self::pool::Pool;
pub(crate) use self::pool::{PickKey, Tried};
use self::queue::Queue;
pub(crate) use self::queue::Ticket;
pub(crate) use self::register::Backends;
pub(crate) use self::resolution::Resolution;
use self::server::Server;
use crate::outgoing::Outgoing;
use crate::plan::{BackendPlan, ServerAddress, ServerPlan, datagram_address};
use crate::rate_limited_warning::{RateLimitedWarning, more};
use crate::socket_address::SocketAddress;

/// Shared by all threads.
pub(crate) struct Backend {
    name: String,
    plan: RwLock<Arc<BackendPlan>>,
    outgoing: Outgoing,
    control: Control,
    pool: Mutex<Pool>,
    client_reports: Mutex<ClientReports>,
    shortage: RateLimitedWarning,
    availability: Mutex<Availability>,
    /// The addresses that listeners with routes to this backend are bound to.
    listening: Mutex<Vec<SocketAddress>>,
    /// The names whose SRV records are asked for.
    srv_names: Mutex<Vec<String>>,
    /// The servers that orders have removed since the last reload. Whoever changes the plan holds the lock.
    ordered_away: Mutex<BTreeSet<String>>,
    /// Who is told when an order has changed which servers get clients, until they return false.
    followers: Mutex<Vec<Follower>>,
    pub(crate) queue: Arc<Queue>,
}

/// Returns whether it goes on following.
type Follower = Box<dyn Fn() -> bool + Send + Sync>;

pub(crate) enum Pick {
    Server(Lease),
    /// Every usable server is at its limit. The waker is called when it is worth picking again.
    Queued(Ticket),
    QueueFull,
    /// With the reason.
    NoneLeft(String),
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
            pool: Mutex::default(),
            client_reports: Mutex::default(),
            shortage: RateLimitedWarning::of(
                "servers that could not be connected to for want of something on this host",
            ),
            availability: Mutex::default(),
            listening: Mutex::default(),
            srv_names: Mutex::default(),
            ordered_away: Mutex::default(),
            followers: Mutex::default(),
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
            ServerAddress::Datagrams(name) => match datagram_address(name) {
                Some(address) => address.clone(),
                None => return Ok(()),
            },
            ServerAddress::Srv(name) => {
                srv::watch(self, name);
                return Ok(());
            }
        };
        let at_most = deadline.saturating_duration_since(Instant::now());
        let server = Server::new(address, None, server, plan, Some(at_most))?;
        self.take_in(server, plan);
        Ok(())
    }

    /// Uses a server from now on.
    fn take_in(self: &Arc<Self>, server: Arc<Server>, plan: &BackendPlan) {
        // Held until it is in the pool, so that `keep_off` misses no server.
        let listening = lock(&self.listening);
        server.target.keep_off(&listening);
        self.follow_name(&server);
        if plan.health.is_some() {
            watch::start(self, &server);
        }
        self.pool().add(server);
    }

    /// The records of the SRV name `srv` are these servers now.
    fn take_srv(self: &Arc<Self>, srv: &str, servers: &[ServerPlan]) {
        let plan = self.plan();
        let is_this =
            |server: &&ServerPlan| matches!(&server.address, ServerAddress::Srv(it) if it == srv);
        let disabled = plan
            .servers
            .iter()
            .find(is_this)
            .is_some_and(|it| it.disabled);
        let address = |server: &ServerPlan| server.address.fixed().cloned();
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
                    self.change_server(&known, server);
                }
                Some(_) => {}
                None => {
                    if let Some(former) = self.find_returning(&address.to_string(), Some(srv)) {
                        self.take_back(&former, &plan);
                        self.change_server(&former, server);
                        continue;
                    }
                    let at_most = deadline.saturating_duration_since(Instant::now());
                    let server = ServerPlan {
                        disabled,
                        ..server.clone()
                    };
                    match Server::new(address, Some(srv), &server, &plan, Some(at_most)) {
                        Ok(server) => self.take_in(server, &plan),
                        Err(error) => tracing::warn!("backend {}: {error:#}", self.name),
                    }
                }
            }
        }
        let is_gone = |server: &Server| {
            server.srv() == Some(srv) && !named.iter().any(|name| name == server.name())
        };
        self.remove(is_gone, plan.on_remove, &By::Configuration);
        self.pool().weigh_again();
        self.tell_availability();
        self.queue.call_next();
    }

    fn find(&self, name: &str) -> Option<Arc<Server>> {
        let pool = self.pool();
        pool.servers().find(|server| server.name() == name).cloned()
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

    /// The last known addresses of all servers.
    pub(crate) fn addresses(&self) -> Vec<SocketAddress> {
        let servers: Vec<_> = self.pool().servers().cloned().collect();
        servers
            .iter()
            .flat_map(|server| server.target.last_known().to_vec())
            .collect()
    }

    /// Counts connections at its only server that have no sockets here; `None` if there are several.
    pub(crate) fn flows(self: &Arc<Self>) -> Option<Flows> {
        let pool = self.pool();
        let only = pool
            .servers()
            .next()
            .filter(|_| pool.servers().count() == 1)?;
        Some(Flows::new(Arc::clone(only), Arc::clone(self)))
    }

    /// The server at `address` does not answer, and whoever noticed cannot try another address.
    pub(crate) fn failed_at(&self, address: &SocketAddress) {
        for server in self.pool().servers() {
            server.target.failed(address);
        }
    }

    /// How many servers a connection may still try.
    pub(crate) fn others(&self, tried: &Tried) -> usize {
        self.pool().others(tried, Instant::now())
    }

    /// Leaves out servers that are listeners of ours, from now on. `listening` replaces what was said
    /// before.
    pub(crate) fn keep_off(&self, listening: &[SocketAddress]) {
        let mut known = lock(&self.listening);
        known.clear();
        known.extend_from_slice(listening);
        for target in self.targets(None) {
            target.keep_off(listening);
        }
        drop(known);
        self.tell_availability();
    }

    /// Why a client would get no server now; `None` if it would get one.
    fn why_none(&self) -> Option<String> {
        let now = Instant::now();
        let pool = self.pool();
        let usable = pool.usable(&Tried::default(), false, now);
        usable.is_empty().then(|| pool.why_none(now))
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
        let mut pool = self.pool();
        let usable = pool.usable(tried, key.has_fallback, now);
        if usable.is_empty() {
            return Pick::NoneLeft(pool.why_none(now));
        }
        let most = plan.max_connections_per_server.unwrap_or(u32::MAX);
        let free: Vec<_> = usable
            .iter()
            .copied()
            .filter(|index| pool.has_room(*index, most))
            .collect();
        if free.is_empty() || (ticket.is_none() && !self.queue.is_empty()) {
            let ticket = match ticket {
                Some(ticket) => {
                    let all = pool.usable(&Tried::default(), key.has_fallback, now);
                    ticket.stay(all.iter().any(|index| pool.has_room(*index, most)), waker);
                    ticket
                }
                None => match self.queue.enter(plan.queue.most, waker) {
                    Some(ticket) => ticket,
                    None => return Pick::QueueFull,
                },
            };
            if usable.iter().any(|index| pool.has_room(*index, most)) {
                self.queue.call_if_none_is();
            }
            return Pick::Queued(ticket);
        }
        let index = pool.choose(&plan, &free, key, now);
        let server = Arc::clone(pool.server(index));
        // Counted under the lock, so that nobody gets the same place.
        server.enter(1, 1);
        if let Some(ticket) = ticket {
            ticket.served();
            if usable.iter().any(|index| pool.has_room(*index, most)) {
                self.queue.call_if_none_is();
            }
        }
        drop(pool);
        Pick::Server(Lease::new(server, Arc::clone(self)))
    }

    /// Takes `server` out for a while because of its traffic, unless too few others would be left.
    fn take_out(self: &Arc<Self>, server: &Arc<Server>, cause: Cause, why: &str) {
        let now = Instant::now();
        let time = {
            // Held, so that two servers do not each count on the other.
            let pool = self.pool();
            if !pool.may_take_out(server, now) {
                return;
            }
            server.take_out(cause, why, now)
        };
        let Some(time) = time else {
            return;
        };
        lock(&self.client_reports).forget(server.id());
        tracing::warn!(
            "backend {}: server {} is taken out for {}: {why}",
            self.name,
            server.name(),
            humantime::format_duration(time)
        );
        // Others may be used instead, backups for one.
        self.queue.call_next();
        let (backend, server) = (Arc::downgrade(self), Arc::downgrade(server));
        self.control.spawn(async move {
            tokio::time::sleep(time).await;
            if let (Some(backend), Some(server)) = (backend.upgrade(), server.upgrade())
                && server.is_up(Instant::now())
            {
                backend.queue.call_next();
            }
        });
    }

    /// Nothing has been sent to `server`, for want of something on this host. It is told once, until it changes
    /// or a connection is made.
    fn tell_shortage(&self, server: &Server, why: &str) {
        if !server.is_new_shortage(why) {
            return;
        }
        self.shortage.emit(|suppressed| {
            tracing::warn!(
                "backend {}: server {} cannot be connected to for now: {why}; this does not count against \
                 the server{}",
                self.name,
                server.name(),
                more(suppressed)
            );
        });
    }

    /// Whether `server` could be taken out now.
    fn may_take_out(&self, server: &Arc<Server>) -> bool {
        self.pool().may_take_out(server, Instant::now())
    }

    pub(crate) fn snapshot(&self) -> Value {
        let servers = self.servers();
        json!({
            "name": self.name,
            "queued": self.queue.len(),
            "why_none": self.why_none(),
            "servers": servers.iter().map(|server| server.snapshot()).collect::<Vec<_>>(),
        })
    }

    /// The process ends.
    fn end(&self) {
        self.servers()
            .iter()
            .for_each(|server| server.end(&self.name));
    }

    /// Those that it has, and those that still have connections.
    fn servers(&self) -> Vec<Arc<Server>> {
        let pool = self.pool();
        pool.servers().cloned().chain(pool.former()).collect()
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        lock(&self.pool)
    }
}

/// What a panic could leave half changed are the turns of servers, which even out.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
