//! Forwarded connections as the operator sees them: the counts, the metrics, the log and the access log.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use splice::{EngineName, ForwardEnd, ForwardEvent, ForwardTimes, Forwarded};

use super::lock;
use crate::access_log::{Entry, Event, Moved};
use crate::backend::{Backend, Flows};
use crate::connection_limit::ConnectionPermit;
use crate::rate_limited_warning::more;
use crate::service::{Counts, Service, Terms};
use crate::socket_address::SocketAddress;
use crate::tally::{Ending, Tally};

/// Counts and logs the connections.
pub(super) struct Record {
    pub(super) service: Arc<Service>,
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
    /// Since when new connections go elsewhere.
    left_at: Option<Instant>,
}

/// So long after new connections go to another server, one may still be found that has begun before: several looks at all
/// connections.
const LAST_FOUND_WITHIN: Duration = Duration::from_secs(2);

impl Record {
    pub(super) fn of(service: &Arc<Service>) -> Arc<Self> {
        Arc::new(Self {
            service: Arc::clone(service),
            open: Mutex::default(),
            is_cut: AtomicBool::new(false),
        })
    }

    /// The time of its connections is over.
    pub(super) fn cut(&self) {
        self.is_cut.store(true, Ordering::Relaxed);
    }

    /// Connections to this address belong to the only server of `backend` from now on.
    pub(super) fn leads_to(&self, server: SocketAddr, backend: &Arc<Backend>) {
        let mut open = lock(&self.open);
        open.backend = Arc::downgrade(backend);
        for (_, former) in open.by_server.iter_mut().filter(|(it, _)| **it != server) {
            former.left_at.get_or_insert_with(Instant::now);
        }
        let of_server = open.by_server.entry(server).or_default();
        of_server.left_at = None;
        of_server.belong_to(backend.flows());
    }

    /// Forgets servers that have had their last connection.
    pub(super) fn forget_former(&self) {
        lock(&self.open).by_server.retain(|_, of_server| {
            let is_over = of_server
                .left_at
                .is_some_and(|at| at.elapsed() > LAST_FOUND_WITHIN);
            !is_over || !of_server.permits.is_empty()
        });
    }

    pub(super) fn is_led_to(&self, backend: &Arc<Backend>) -> bool {
        std::ptr::eq(lock(&self.open).backend.as_ptr(), Arc::as_ptr(backend))
    }

    /// Those that were removed, and whose connections have had their time.
    pub(super) fn cut_servers(&self) -> Vec<SocketAddr> {
        let open = lock(&self.open);
        let is_cut = |of_server: &OfServer| of_server.flows.as_ref().is_some_and(Flows::is_cut);
        let servers = open.by_server.iter();
        let cut = servers.filter(|(_, one)| !one.permits.is_empty() && is_cut(one));
        cut.map(|(address, _)| *address).collect()
    }

    pub(super) fn take(&self, event: ForwardEvent) {
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
