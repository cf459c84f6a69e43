//! What an operator asks of one server while the process runs.

use std::fmt;
use std::sync::Arc;

use anyhow::Result;
use serde_json::Value;

use super::act::{Act, Order};
use super::drain::By;
use super::server::Server;
use super::{Backend, lock};
use crate::plan::ServerPlan;

/// So many servers or backends are named to somebody who has named another one.
const NAMED_MOST: usize = 20;

impl Backend {
    /// As [`Backends::obey`](super::Backends::obey).
    pub(super) fn obey(self: &Arc<Self>, order: &Order, by: &str) -> Result<Value> {
        let name = &order.server;
        if let Act::Add(weight) = order.act {
            let server = self.add_until_reload(name, weight, by)?;
            self.tell_availability();
            return Ok(self.told_of(&server));
        }
        let here = self.find(name);
        let Some(server) = here.clone().or_else(|| self.find_former(name)) else {
            let pool = self.pool();
            let names = pool.servers().map(|server| server.name());
            return Err(NoServer::in_backend(order, names).into());
        };
        match order.act {
            Act::Tell | Act::Add(_) => {}
            Act::Drain => self.drain(&server, By::Order(by.into())),
            Act::Undrain => self.undrain(&server, by),
            Act::Weigh(weight) => self.weigh(&server, weight, by),
            Act::Remove => self.remove_until_reload(&server, by)?,
        }
        self.tell_availability();
        Ok(self.told_of(&server))
    }

    /// A server, and what it means to the backend: an order may have left clients none.
    fn told_of(&self, server: &Server) -> Value {
        let mut told = server.snapshot();
        told["backend_why_none"] = self.why_none().into();
        told
    }

    /// What the configuration says of a server, once it says something else.
    pub(super) fn configure(&self, server: &Server, is_disabled: bool) {
        match server.configure(is_disabled) {
            Some(true) => self.drain(server, By::Configuration),
            Some(false) => self.undrain(server, "the configuration"),
            None => {}
        }
    }

    fn drain(&self, server: &Server, by: By) {
        let why = by.to_string();
        let has_served = {
            // So that everybody who has picked it counts by now.
            let _pool = self.pool();
            server.drain(by)
        };
        self.tell_followers();
        if has_served {
            tracing::info!(
                "backend {}: server {} gets no new clients: {why}{}",
                self.name,
                server.name(),
                server.left()
            );
        }
        server.tell_if_empty(&self.name);
        // Clients that wait for it go elsewhere.
        self.queue.call_next();
    }

    pub(super) fn undrain(&self, server: &Server, by: &str) {
        if server.undrain() {
            tracing::info!(
                "backend {}: server {} gets clients again, by {by}",
                self.name,
                server.name()
            );
        }
        self.tell_followers();
        self.queue.call_next();
    }

    pub(super) fn weigh(&self, server: &Server, weight: u32, by: &str) {
        let before = {
            let mut pool = self.pool();
            pool.weigh_again();
            server.weigh(weight, by)
        };
        self.log_weight(server, before, &format!(", by {by}"));
        self.tell_followers();
        self.queue.call_next();
    }

    /// What the configuration or a SRV record says of a server. Whoever calls this has the pool weigh again.
    pub(super) fn change_server(&self, server: &Server, planned: &ServerPlan) {
        let before = server.change(planned.weight, planned.backup);
        let why = match server.srv() {
            Some(_) => ", as its SRV record has it",
            None => ", as the configuration has it",
        };
        self.log_weight(server, before, why);
    }

    fn log_weight(&self, server: &Server, before: Option<u32>, why: &str) {
        if let Some(before) = before {
            tracing::info!(
                "backend {}: server {} has the weight {} instead of {before}{why}",
                self.name,
                server.name(),
                server.weight()
            );
        }
    }

    /// Whether new clients may come to one of its servers.
    pub(crate) fn takes_clients(&self) -> bool {
        self.pool().servers().any(|server| server.takes_clients())
    }

    /// Calls `follow` whenever that may have changed, as long as it returns true.
    pub(crate) fn when_it_changes(&self, follow: impl Fn() -> bool + Send + Sync + 'static) {
        lock(&self.followers).push(Box::new(follow));
    }

    pub(super) fn tell_followers(&self) {
        lock(&self.followers).retain(|follow| follow());
    }
}

/// Who is ordered about is not there.
#[derive(Debug)]
pub(crate) struct NoServer(String);

impl NoServer {
    fn in_backend<'a>(order: &Order, names: impl Iterator<Item = &'a str>) -> Self {
        Self(format!(
            "backend {} has no server {}; {}",
            order.backend,
            // The log has it, too.
            order.server.escape_debug(),
            those("server", names)
        ))
    }

    pub(super) fn in_no_backend<'a>(order: &Order, names: impl Iterator<Item = &'a str>) -> Self {
        Self(format!(
            "there is no backend {}; {}",
            order.backend.escape_debug(),
            those("backend", names)
        ))
    }
}

/// Those that there are.
pub(crate) fn those<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> String {
    let mut names: Vec<_> = names.collect();
    let more = names.len().saturating_sub(NAMED_MOST);
    names.truncate(NAMED_MOST);
    match (&names[..], more) {
        ([], _) => format!("it has no {what}"),
        ([only], _) => format!("the only {what} is {only}"),
        (names, 0) => format!("the {what}s are {}", names.join(", ")),
        (names, more) => format!("the {what}s are {} and {more} more", names.join(", ")),
    }
}

impl fmt::Display for NoServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoServer {}
