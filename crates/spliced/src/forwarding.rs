//! Connections of a listener that are translated from their SYN on: they never meet a socket of the relay, so they
//! cost no descriptor and no thread. The listening socket gets those of them that cannot be.

mod record;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use splice::{EngineChoice, EngineName, Forward, ForwardOptions, KeepAlive};
use splice_route::Conditions;

use self::record::Record;
use crate::backend::Backend;
use crate::plan::{
    Action, BackendPlan, ClientLimits, ListenerPlan, RoutePlan, ServerAddress, ServerPlan, Source,
};
use crate::service::{Destination, Route, Service, Terms};
use crate::socket_address::SocketAddress;

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
        let record = Record::of(service);
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
        self.record.forget_former();
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
        self.record.cut();
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

/// Each change is complete before anything can panic.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
