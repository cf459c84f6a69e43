//! Servers that DNS names in SRV records (RFC 2782).

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use std::{io, thread};

use hickory_resolver::proto::rr::RData;
use splice::Address;
use tokio::sync::{Semaphore, oneshot};

use super::{Backend, lock, resolver};
use crate::plan::{ServerAddress, ServerPlan};
use crate::weight::WEIGHT_MOST;

/// An answer is kept at least so long, however short its time to live: a busy name server is not asked more
/// often by one proxy than by a person who reloads a page.
const LEAST_KEPT: Duration = Duration::from_secs(1);

/// The pause after a question without an answer.
const RETRY: Duration = Duration::from_secs(5);

/// The answers that are taken at once. Each has a thread, since getaddrinfo(3) blocks.
static TAKING: Semaphore = Semaphore::const_new(16);

/// Starts the task that asks for the records of `name` and keeps the servers of `backend` up to them, unless
/// there is one.
pub(super) fn watch(backend: &Arc<Backend>, name: &str) {
    let mut names = lock(&backend.srv_names);
    if names.iter().any(|watched| watched == name) {
        return;
    }
    names.push(name.into());
    drop(names);
    let weak = Arc::downgrade(backend);
    backend.control.spawn(run(weak, name.to_owned()));
}

async fn run(backend: Weak<Backend>, name: String) {
    let mut warned = false;
    // A backend that a refused reload has prepared ends, and its checks with it: nothing is waited for with a strong
    // reference but the names in the records.
    while backend.strong_count() > 0 {
        let answer = ask(&name).await;
        // Nobody closes it.
        let turn = TAKING.acquire().await;
        let Some(backend) = backend.upgrade() else {
            return;
        };
        if !backend.still_asks_for(&name) {
            return;
        }
        let pause = match answer {
            Ok((servers, until)) => {
                warned = false;
                match take(&backend, &name, servers).await {
                    Ok(()) => {
                        backend.tell_from_now_on();
                        until
                            .saturating_duration_since(Instant::now())
                            .max(LEAST_KEPT)
                    }
                    Err(error) => {
                        tracing::warn!(
                            "backend {}: cannot start the thread that takes the SRV records of {name}: \
                             {error}; it is tried again in {}",
                            backend.name(),
                            humantime::format_duration(RETRY)
                        );
                        RETRY
                    }
                }
            }
            Err(why) => {
                if !std::mem::replace(&mut warned, true) {
                    tracing::warn!(
                        "backend {}: no SRV records for {name}: {why}; going on with the last answer",
                        backend.name()
                    );
                }
                backend.tell_from_now_on();
                RETRY
            }
        };
        drop((backend, turn));
        tokio::time::sleep(pause).await;
    }
}

/// Waits for the names in the records. A thread that the runtime could not start for that would
/// end the task with a panic (`spawn_blocking`).
async fn take(backend: &Arc<Backend>, srv: &str, servers: Vec<ServerPlan>) -> io::Result<()> {
    let (done, is_done) = oneshot::channel();
    let (backend, srv) = (Arc::clone(backend), srv.to_owned());
    thread::Builder::new().name("srv".into()).spawn(move || {
        backend.take_srv(&srv, &servers);
        let _ = done.send(());
    })?;
    let _ = is_done.await;
    Ok(())
}

impl Backend {
    /// Whether the plan still has this name. If not, the next one that has it starts a task of its own.
    fn still_asks_for(&self, name: &str) -> bool {
        let mut names = lock(&self.srv_names);
        let plan = self.plan();
        let is_it =
            |server: &ServerPlan| matches!(&server.address, ServerAddress::Srv(srv) if srv == name);
        let asks = plan.servers.iter().any(is_it);
        if !asks {
            names.retain(|watched| watched != name);
        }
        asks
    }
}

/// The servers that the records name, and until when the answer holds.
pub(crate) async fn ask(name: &str) -> Result<(Vec<ServerPlan>, Instant), String> {
    let resolver = resolver::new(|_| ())?;
    let answer = resolver
        .srv_lookup(name)
        .await
        .map_err(|error| resolver::why(&error))?;
    let records: Vec<_> = answer
        .answers()
        .iter()
        .filter_map(|record| match &record.data {
            RData::SRV(srv) => Some(srv.clone()),
            _ => None,
        })
        .collect();
    let first = records
        .iter()
        .map(|srv| srv.priority)
        .min()
        .unwrap_or_default();
    let servers = records.iter().map(|srv| ServerPlan {
        address: ServerAddress::Address(Address::Inet {
            host: srv.target.to_utf8().trim_end_matches('.').into(),
            port: srv.port,
        }),
        // 0 in a record is the smallest share, and not none (RFC 2782).
        weight: srv.weight.clamp(1, WEIGHT_MOST),
        backup: srv.priority > first,
        disabled: false,
    });
    Ok((servers.collect(), answer.valid_until()))
}
