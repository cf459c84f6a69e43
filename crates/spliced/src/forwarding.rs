//! Connections of a listener that are translated from their SYN on: they never meet a socket of the relay, so they
//! cost no descriptor and no thread. The listening socket gets those of them that cannot be.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use splice::{
    EngineChoice, EngineName, Forward, ForwardEnd, ForwardEvent, ForwardOptions, Forwarded,
    KeepAlive,
};
use splice_route::Conditions;

use crate::access_log::Entry;
use crate::connection_limit::ConnectionPermit;
use crate::plan::{
    Action, BackendPlan, ClientLimits, ListenerPlan, RoutePlan, ServerAddress, ServerPlan, Source,
};
use crate::service::{Counts, Destination, Route, Service, Terms};
use crate::socket_address::SocketAddress;

/// The forwarded connections of one listener.
pub(crate) struct Forwarding {
    forward: Forward,
    listening: Vec<SocketAddr>,
    service: Arc<Service>,
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
        let listening: Vec<_> = listening.iter().filter_map(SocketAddress::inet).collect();
        let started = options(&terms, &listening).and_then(|options| {
            let record = Record {
                service: Arc::clone(service),
                permits: Mutex::default(),
            };
            let server = options.server;
            Forward::start(options, move |event| record.take(event))
                .map(|forward| (forward, server))
                .map_err(|error| error.to_string())
        });
        match started {
            Ok((forward, server)) => {
                let forwarding = Arc::new(Self {
                    forward,
                    listening,
                    service: Arc::clone(service),
                });
                let follower = Arc::downgrade(&forwarding);
                service.process.control.spawn(follow(follower, server));
                Some(forwarding)
            }
            Err(why) => {
                tracing::warn!("{}: connections begin with sockets: {why}", terms.plan.name);
                None
            }
        }
    }

    /// Applies the terms of a reload. False if they want none of it, or another one.
    pub(crate) fn reload(&self, terms: &Terms) -> bool {
        if !terms.plan.from_syn {
            return false;
        }
        match options(terms, &self.listening) {
            Ok(options) => {
                self.forward.change(options);
                true
            }
            Err(why) => {
                tracing::warn!("{}: connections begin with sockets: {why}", terms.plan.name);
                false
            }
        }
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

/// Follows the server wherever its name leads.
async fn follow(forwarding: Weak<Forwarding>, mut leads_to: SocketAddr) {
    loop {
        tokio::time::sleep(FOLLOW_EVERY).await;
        let Some(forwarding) = forwarding.upgrade() else {
            return;
        };
        let terms = forwarding.service.terms();
        if let Ok(options) = options(&terms, &forwarding.listening)
            && options.server != leads_to
        {
            leads_to = options.server;
            forwarding.forward.change(options);
        }
    }
}

/// What to forward, or what needs sockets.
fn options(terms: &Terms, listening: &[SocketAddr]) -> Result<ForwardOptions, String> {
    let plan = &terms.plan;
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
    if let Some(why) = needs_sockets(plan, &[&*backend_plan]) {
        return Err(why);
    }
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

/// Counts and logs the connections. It holds a permit for each that is open, so that whoever waits for the last
/// connection of the process waits for these, too.
struct Record {
    service: Arc<Service>,
    permits: Mutex<Vec<ConnectionPermit>>,
}

impl Record {
    fn take(&self, event: ForwardEvent) {
        let service = &self.service;
        match event {
            ForwardEvent::Counted { open, begun } => {
                service.counts.accepted.fetch_add(begun, Ordering::Relaxed);
                // Each change is complete.
                let mut permits = self.permits.lock().unwrap_or_else(PoisonError::into_inner);
                permits.resize_with(open, || service.connection_limit.acquire_beyond_limit());
            }
            ForwardEvent::Ended(one) => ended(service, &one),
            _ => {}
        }
    }
}

fn ended(service: &Service, one: &Forwarded) {
    match one.end {
        ForwardEnd::Refused | ForwardEnd::TimedOut => {
            Counts::add(&service.counts.without_server);
            // Its SYN went to one address only. The next client's goes to another one.
            for backend in service.terms().backends() {
                backend.failed_at(&SocketAddress::Inet(one.server));
            }
        }
        _ => Counts::add(&service.counts.joined),
    }
    if one.end == ForwardEnd::Dropped {
        let cut_short = &service.process.cut_short;
        cut_short.fetch_add(1, Ordering::Relaxed);
    }
    let id = service.process.next_id.fetch_add(1, Ordering::Relaxed) + 1;
    tracing::debug!(
        "connection {id} ended: {}; engine segment: from the SYN on",
        one.end
    );
    let Some(log) = &service.terms().access_log else {
        return;
    };
    log.write(&Entry {
        time: Entry::now(),
        id,
        unique_id: None,
        client: one.client.to_string(),
        target: one.server.to_string(),
        server_name: None,
        engine: Some(EngineName::Segment.as_str()),
        why_engine: "from the SYN on".into(),
        client_to_target_bytes: one.client_to_server_bytes,
        target_to_client_bytes: one.server_to_client_bytes,
        outcome: one.end.to_string(),
        duration_ms: Entry::milliseconds(one.lasted),
    });
}
