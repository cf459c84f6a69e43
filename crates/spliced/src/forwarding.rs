//! Connections of a listener that are translated from their SYN on: they never meet a socket of the relay, so they
//! cost no descriptor and no thread. The listening socket gets those of them that cannot be.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use splice::{
    EngineChoice, EngineName, Forward, ForwardEnd, ForwardEvent, ForwardOptions, ForwardTimes,
    Forwarded, KeepAlive,
};
use splice_route::Conditions;

use crate::access_log::{Entry, Event, Moved};
use crate::backend::{Backend, Flows};
use crate::connection_limit::ConnectionPermit;
use crate::plan::{
    Action, BackendPlan, ClientLimits, ListenerPlan, RoutePlan, ServerAddress, ServerPlan, Source,
};
use crate::rate_limited_warning::more;
use crate::service::{Counts, Destination, Route, Service, Terms};
use crate::socket_address::SocketAddress;
use crate::tally::{Ending, Tally};

/// The forwarded connections of one listener.
pub(crate) struct Forwarding {
    forward: Forward,
    /// What it does now. Whoever changes that holds the lock.
    options: Mutex<ForwardOptions>,
    /// Its listener takes no new clients.
    is_drained: AtomicBool,
    record: Arc<Record>,
    listening: Vec<SocketAddr>,
}

/// How often to ask where the server is. Its name is resolved again when the last answer grows old
/// (`target/answer_age.rs`), and another one of its addresses is the first when that does not answer.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);

impl Forwarding {
    /// Starts it for a listener that asks for it. If it cannot be, the log says why, and connections begin with
    /// sockets.
    pub(crate) fn start(service: &Arc<Service>, listening: &[SocketAddress]) -> Option<Arc<Self>> {
        let terms = service.terms();
        if !terms.plan.from_syn {
            return None;
        }
        let listening: Vec<_> = listening.iter().flat_map(addresses_of).collect();
        let record = Arc::new(Record {
            service: Arc::clone(service),
            open: Mutex::default(),
            is_cut: AtomicBool::new(false),
        });
        let started = what(&terms).and_then(|(backend, _)| {
            let permitted = EngineName::Segment.is_permitted();
            permitted.map_err(|error| error.to_string())?;
            let options = options(&terms, &listening, false)?;
            record.leads_to(options.server, backend);
            let recorder = Arc::clone(&record);
            Forward::start(options.clone(), move |event| recorder.take(event))
                .map(|forward| (forward, options, Arc::clone(backend)))
                .map_err(|error| error.to_string())
        });
        match started {
            Ok((forward, options, backend)) => {
                let forwarding = Arc::new(Self {
                    forward,
                    options: Mutex::new(options),
                    is_drained: AtomicBool::new(false),
                    record,
                    listening,
                });
                forwarding.obey_orders(&backend);
                let follower = Arc::downgrade(&forwarding);
                service.process.control.spawn(follow(follower));
                Some(forwarding)
            }
            Err(why) => {
                tracing::warn!("{}: connections begin with sockets: {why}", terms.plan.name);
                None
            }
        }
    }

    /// Applies the terms of a reload. False if they want none of it, or another one.
    pub(crate) fn reload(self: &Arc<Self>, terms: &Terms) -> bool {
        if !terms.plan.from_syn {
            return false;
        }
        let applied = what(terms).and_then(|(backend, _)| {
            let mut current = lock(&self.options);
            *current = options(terms, &self.listening, self.is_drained())?;
            let is_known = self.record.is_led_to(backend);
            self.record.leads_to(current.server, backend);
            self.forward.change(current.clone());
            Ok((backend, is_known))
        });
        match applied {
            Ok((backend, is_known)) => {
                if !is_known {
                    self.obey_orders(backend);
                }
                true
            }
            Err(why) => {
                tracing::warn!("{}: connections begin with sockets: {why}", terms.plan.name);
                false
            }
        }
    }

    /// Pauses as long as the server of `backend` gets no new clients: those begin with sockets, and are told why they
    /// cannot be joined.
    fn obey_orders(self: &Arc<Self>, backend: &Arc<Backend>) {
        let forwarding = Arc::downgrade(self);
        let of_backend = Arc::downgrade(backend);
        let obey = move || {
            let (Some(forwarding), Some(backend)) = (forwarding.upgrade(), of_backend.upgrade())
            else {
                return false;
            };
            forwarding.obey(&backend)
        };
        backend.when_it_changes(obey);
        // An order may have come before.
        self.obey(backend);
    }

    /// Returns whether it still leads to `backend`.
    fn obey(&self, backend: &Arc<Backend>) -> bool {
        let mut current = lock(&self.options);
        if !self.record.is_led_to(backend) {
            return false;
        }
        self.adapt(&mut current);
        true
    }

    /// Pauses as long as its listener takes no new clients.
    pub(crate) fn drain(&self, is_drained: bool) {
        let mut current = lock(&self.options);
        self.is_drained.store(is_drained, Ordering::Relaxed);
        self.adapt(&mut current);
    }

    fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::Relaxed)
    }

    fn follow(&self) {
        self.adapt(&mut lock(&self.options));
        for server in self.record.cut_servers() {
            self.forward.cut(server);
        }
    }

    /// Goes wherever the name of the server leads now, and pauses while that or the listener gets no new clients, or orders have made
    /// the backend one that needs sockets.
    fn adapt(&self, current: &mut ForwardOptions) {
        let terms = self.record.service.terms();
        let mut wanted = current.clone();
        match what(&terms) {
            Ok((backend, _)) => {
                // Without an address, it goes on with the last one.
                if let Ok(options) = options(&terms, &self.listening, self.is_drained()) {
                    wanted = options;
                }
                wanted.is_paused = self.is_drained() || !backend.takes_clients();
                if wanted.server != current.server {
                    self.record.leads_to(wanted.server, backend);
                }
            }
            Err(_) => wanted.is_paused = true,
        }
        if wanted.server != current.server || wanted.is_paused != current.is_paused {
            *current = wanted;
            self.forward.change(current.clone());
        }
    }

    /// The time of its connections is over: they are reset when it is dropped. Returns how many there are, and whose.
    pub(crate) fn cut(&self) -> (usize, String) {
        self.record.is_cut.store(true, Ordering::Relaxed);
        let name = self.record.service.terms().plan.name.to_string();
        (self.connections(), name)
    }

    /// Takes no more connections. Those that there are go on until this is dropped.
    pub(crate) fn close(&self) {
        self.forward.close();
    }

    /// How many connections are open or opening.
    pub(crate) fn connections(&self) -> usize {
        self.forward.connections()
    }
}

/// What a listening socket takes clients at.
fn addresses_of(listening: &SocketAddress) -> impl Iterator<Item = SocketAddr> {
    let inet = listening.inet();
    let as_ipv4 = inet.filter(|_| listening.is_dual_stack());
    let as_ipv4 = as_ipv4.map(|inet| (Ipv4Addr::UNSPECIFIED, inet.port()).into());
    inet.into_iter().chain(as_ipv4)
}

async fn follow(forwarding: Weak<Forwarding>) {
    loop {
        tokio::time::sleep(FOLLOW_EVERY).await;
        let Some(forwarding) = forwarding.upgrade() else {
            return;
        };
        forwarding.follow();
    }
}

/// The only backend that terms lead to, with its plan, or what needs sockets.
fn what(terms: &Terms) -> Result<(&Arc<Backend>, Arc<BackendPlan>), String> {
    let [
        Route {
            destination: Destination::Backend { backend, .. },
            ..
        },
    ] = &terms.routes[..]
    else {
        return Err(MANY.into());
    };
    let backend_plan = backend.plan();
    match needs_sockets(&terms.plan, &[&*backend_plan]) {
        Some(why) => Err(why),
        None => Ok((backend, backend_plan)),
    }
}

/// What to forward, or what needs sockets.
fn options(
    terms: &Terms,
    listening: &[SocketAddr],
    is_drained: bool,
) -> Result<ForwardOptions, String> {
    let plan = &terms.plan;
    let (backend, backend_plan) = what(terms)?;
    let addresses = backend.addresses();
    let mut addresses = addresses.iter().filter_map(SocketAddress::inet);
    let server = addresses
        .next()
        .ok_or_else(|| format!("backend {} has no TCP address", backend.name()))?;
    let mut options = ForwardOptions::new(listening.to_vec(), server);
    options.connect_timeout = backend_plan.connect_timeout;
    options.idle_timeout = plan.idle_timeout;
    options.half_close_timeout = plan.half_close_timeout;
    set_keep_alive(&mut options, plan.peer_timeouts.keepalive);
    options.user_timeout = plan.peer_timeouts.user_timeout.time();
    options.bypass_firewall = plan.bypass_firewall;
    options.is_paused = is_drained || !backend.takes_clients();
    Ok(options)
}

/// Without times, the library's are the kernel's own defaults. If some are given, the others are the system's, as
/// those of a socket.
fn set_keep_alive(options: &mut ForwardOptions, keepalive: KeepAlive) {
    match keepalive {
        KeepAlive::Off => options.keep_alive = Duration::MAX,
        KeepAlive::Unchanged => {}
        KeepAlive::On(times) => {
            let times = times.with_systems().unwrap_or(times);
            options.keep_alive = times.idle().unwrap_or(options.keep_alive);
            options.keep_alive_interval = times.interval();
            options.keep_alive_probes = times.probes().unwrap_or(options.keep_alive_probes);
        }
    }
}

const MANY: &str = "more than one destination is possible";

/// What of a listener, or of the backends that its routes lead to, sockets alone can do.
pub(crate) fn needs_sockets(listener: &ListenerPlan, backends: &[&BackendPlan]) -> Option<String> {
    if let EngineChoice::Only(engine) = listener.engine
        && engine != EngineName::Segment
    {
        return Some(format!("the engine {engine} works on sockets"));
    }
    let of_listener = [
        (listener.rate.is_some(), "its rate is kept by sockets"),
        (
            listener.max_connections.is_some() || listener.per_client != ClientLimits::NONE,
            "its limits on connections are kept by sockets",
        ),
        (
            listener.require_proxy_from.is_some(),
            "clients send a PROXY header, which a socket has to read",
        ),
    ];
    if let Some((_, why)) = of_listener.iter().find(|(is_so, _)| *is_so) {
        return Some((*why).into());
    }
    let ([RoutePlan { conditions, action }], [backend]) = (&listener.routes[..], backends) else {
        return Some(MANY.into());
    };
    if *conditions != Conditions::default()
        || !matches!(action, Action::Backend { fallback: None, .. })
    {
        return Some("its route has conditions or a fallback".into());
    }
    let of_backend = [
        (backend.servers.len() != 1, "has several servers"),
        (
            matches!(
                backend.servers[..],
                [ServerPlan {
                    address: ServerAddress::Srv(_),
                    ..
                }]
            ),
            "has the servers that SRV records name",
        ),
        (backend.health.is_some(), "has health checks"),
        (backend.send_proxy.is_some(), "gets a PROXY header"),
        (
            backend.source != Source::Host,
            "gets another source address than this host's",
        ),
        (backend.excludes_segment(), "needs a mark or a device"),
        (
            backend.max_connections_per_server.is_some(),
            "has a limit on connections",
        ),
    ];
    let found = of_backend.iter().find(|(is_so, _)| *is_so);
    found.map(|(_, what)| format!("backend {} {what}", backend.name))
}

/// Counts and logs the connections.
struct Record {
    service: Arc<Service>,
    open: Mutex<Open>,
    /// Its connections have had their time.
    is_cut: AtomicBool,
}

#[derive(Default)]
struct Open {
    /// The last backend that connections were led to.
    backend: Weak<Backend>,
    by_server: HashMap<SocketAddr, OfServer>,
}

/// The open connections to one address.
#[derive(Default)]
struct OfServer {
    /// One for each, so that whoever waits for the last connection of the process waits for these, too.
    permits: Vec<ConnectionPermit>,
    flows: Option<Flows>,
}

impl Record {
    /// Connections to this address belong to the only server of `backend` from now on.
    fn leads_to(&self, server: SocketAddr, backend: &Arc<Backend>) {
        let mut open = lock(&self.open);
        open.backend = Arc::downgrade(backend);
        open.by_server
            .retain(|known, of_server| *known == server || !of_server.permits.is_empty());
        let of_server = open.by_server.entry(server).or_default();
        of_server.belong_to(backend.flows());
    }

    fn is_led_to(&self, backend: &Arc<Backend>) -> bool {
        std::ptr::eq(lock(&self.open).backend.as_ptr(), Arc::as_ptr(backend))
    }

    /// Those that were removed, and whose connections have had their time.
    fn cut_servers(&self) -> Vec<SocketAddr> {
        let open = lock(&self.open);
        let is_cut = |of_server: &OfServer| of_server.flows.as_ref().is_some_and(Flows::is_cut);
        let servers = open.by_server.iter();
        let cut = servers.filter(|(_, one)| !one.permits.is_empty() && is_cut(one));
        cut.map(|(address, _)| *address).collect()
    }

    fn take(&self, event: ForwardEvent) {
        let service = &self.service;
        match event {
            ForwardEvent::Counted {
                server,
                open,
                begun,
                moved_bytes,
                times,
            } => {
                service.counts.accepted.fetch_add(begun, Ordering::Relaxed);
                // As a session with sockets, which has no backend when it begins.
                let terms = service.terms();
                terms.tallies.without_backend().opened(begun);
                let tally = tally(&terms);
                tally.moved(moved_bytes);
                times.iter().for_each(|one| timed(tally, one));
                let mut all = lock(&self.open);
                let of_server = all.by_server.entry(server).or_default();
                let permit = || service.connection_limit.acquire_beyond_limit();
                of_server.permits.resize_with(open, permit);
                if let Some(flows) = &mut of_server.flows {
                    flows.count(open, begun);
                }
            }
            ForwardEvent::Ended(one) => {
                self.ended(&one);
            }
            _ => {}
        }
    }

    /// Counts and logs one that has ended.
    fn ended(&self, one: &Forwarded) {
        let service = &self.service;
        let terms = service.terms();
        let tally = tally(&terms);
        tally.moved(one.untold_bytes);
        timed(tally, &one.untold_times);
        let is_refused = matches!(one.end, ForwardEnd::Refused | ForwardEnd::TimedOut);
        let (mut why, mut ending) = (one.end.to_string(), one.end.into());
        let of = {
            let open = lock(&self.open);
            let of_server = open.by_server.get(&one.server);
            of_server.and_then(|it| it.flows.as_ref()).map(|flows| {
                if is_refused {
                    flows.failed(&why);
                }
                let backend = Arc::clone(flows.backend());
                (backend, flows.server_name(), flows.is_cut())
            })
        };
        if one.end == ForwardEnd::Dropped {
            if self.is_cut.load(Ordering::Relaxed) {
                (why, ending) = ("its listener was removed".into(), Ending::ListenerRemoved);
            } else if of.as_ref().is_some_and(|(_, _, is_cut)| *is_cut) {
                (why, ending) = ("its server was removed".into(), Ending::ServerRemoved);
            } else {
                let cut_short = &service.process.cut_short;
                cut_short.fetch_add(1, Ordering::Relaxed);
            }
        }
        let engine = (!is_refused).then_some(EngineName::Segment);
        tally.ended(engine, ending);
        let id = service.process.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        if is_refused {
            Counts::add(&service.counts.without_server);
            // Its SYN went to one address only. The next client's goes to another one.
            for backend in terms.backends() {
                backend.failed_at(&SocketAddress::Inet(one.server));
            }
            self.warn_of_refusal(id, one, &why);
        } else {
            Counts::add(&service.counts.joined);
        }
        let why_engine = match engine {
            Some(_) => "from the SYN on".into(),
            None => format!("no pair: {why}"),
        };
        tracing::debug!("connection {id} ended: {why}; engine segment: from the SYN on");
        let Some(log) = &terms.access_log else {
            return;
        };
        log.write(&Entry {
            event: Event::End,
            id,
            unique_id: None,
            listener: &terms.plan.name,
            // It has only one.
            route: Some(1),
            client: &one.client,
            peer: None,
            target: &one.server,
            server_name: None,
            name: None,
            backend: of.as_ref().map(|(backend, ..)| backend.name()),
            server: of.as_ref().map(|(_, server, _)| &**server),
            engine: engine.map(EngineName::as_str),
            why_engine: &why_engine,
            moved: Some([
                Moved::bytes(one.client_to_server_bytes),
                Moved::bytes(one.server_to_client_bytes),
            ]),
            outcome: Some(&why),
            lasted: Some(one.lasted),
        });
    }

    fn warn_of_refusal(&self, id: u64, one: &Forwarded, why: &str) {
        let warning = &self.service.warnings.target_unreachable;
        warning.emit(|suppressed| {
            tracing::warn!(
                "connection {id} from {} to {} was reset: {why}{}",
                one.client,
                one.server,
                more(suppressed)
            );
        });
    }
}

impl OfServer {
    /// The server at this address may be another one than before.
    fn belong_to(&mut self, flows: Option<Flows>) {
        if !(self.flows.as_ref().zip(flows.as_ref())).is_some_and(|(before, now)| before.is_of(now))
        {
            self.flows = flows;
            if let Some(flows) = &mut self.flows {
                flows.count(self.permits.len(), 0);
            }
        }
    }
}

/// Where its connections are counted: they have one backend.
fn tally(terms: &Terms) -> &Tally {
    let backend = terms.backends().next();
    terms.tallies.with(backend.map_or("", |it| it.name()))
}

fn timed(tally: &Tally, times: &ForwardTimes) {
    if let Some(connect) = times.connect {
        tally.connecting.add(connect);
    }
    if let Some(first_byte) = times.first_byte {
        tally.answering.add(first_byte);
    }
}

/// Each change is complete before anything can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
