//! What a check has found out about a plan on this host.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::backends::Backends;
use super::engine::{self, OfListener, Report};
use super::health;
use super::host::Host;
use super::listening::Listening;
use super::names::Resolved;
use super::servers::Idle;
use super::source;
use crate::circle;
use crate::datagram;
use crate::plan::{BackendPlan, Plan, ServerAddress, ServerPlan};
use crate::printable::printable;
use crate::resource_limit::too_few_descriptors;
use crate::socket_address::SocketAddress;

/// What this host makes of a plan.
#[derive(Debug, Default, Serialize)]
pub(super) struct Found {
    /// Engines that `auto` goes on without, and why.
    unusable_engines: BTreeMap<&'static str, String>,
    listeners: Vec<OfListener>,
    backends: Vec<OfBackend>,
    /// What does not work now, but may later.
    #[serde(skip)]
    pub(super) warnings: Vec<String>,
    /// What keeps the plan from running.
    pub(super) obstacles: Vec<String>,
}

/// What a backend is here.
#[derive(Debug, Serialize)]
struct OfBackend {
    name: String,
    /// Those that get no new clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    idle: Option<String>,
    servers: Vec<OfServer>,
    /// What else there is to say of it.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct OfServer {
    /// As the configuration has it.
    server: String,
    weight: u16,
    backup: bool,
    addresses: Vec<String>,
    /// Why they are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Found {
    pub(super) fn of(plan: &Plan, resolved: &Resolved) -> Self {
        let mut found = Self::default();
        let host = Host::default();
        let backends = Backends::new(plan, resolved);
        let mut places = Listening::new();
        let mut listeners = Vec::new();
        for listener in &plan.listeners {
            let listening = places.listener(listener);
            found.listener(engine::report(listener, &listening, &backends, &host));
            listeners.push(circle::Listener {
                name: &listener.name,
                is_of_datagrams: false,
                listening,
                routes: &listener.routes,
                filters: listener.require_proxy_from.is_some(),
            });
        }
        for listener in &plan.datagram_listeners {
            let listening = places.datagrams(listener);
            found.listener(engine::report_datagrams(listener, &listening, &backends));
            listeners.push(circle::Listener {
                name: &listener.name,
                is_of_datagrams: true,
                listening,
                routes: &listener.routes,
                filters: false,
            });
        }
        let of_circles = plan.backends.iter().map(|plan| {
            let servers = plan.servers.iter();
            let addresses = servers.map(|it| resolved.of(&it.address).unwrap_or_default().to_vec());
            circle::Backend {
                plan,
                servers: addresses.collect(),
            }
        });
        let of_circles: Vec<_> = of_circles.collect();
        for circle in circle::circles(&listeners, &of_circles) {
            match circle.is_certain {
                true => found.obstacles.push(circle.sentence()),
                false => found.warnings.push(circle.sentence()),
            }
        }
        if let Some(address) = &plan.control.metrics {
            places.metrics(address);
        }
        let (connections, sessions) = plan.most_clients();
        found
            .warnings
            .extend(too_few_descriptors(connections, sessions));
        found.warnings.append(&mut places.warnings);
        found.obstacles.append(&mut places.obstacles);
        for backend in &plan.backends {
            found.backend(backend, resolved);
        }
        found
    }

    fn listener(&mut self, report: Report) {
        for (engine, why) in report.unusable {
            self.unusable_engines.entry(engine.as_str()).or_insert(why);
        }
        self.obstacles.extend(report.obstacles);
        self.listeners.push(report.listener);
    }

    fn backend(&mut self, backend: &BackendPlan, resolved: &Resolved) {
        let idle = Idle::of(backend);
        if idle.are_all() {
            self.warnings.push(format!(
                "backend {:?} has no server that takes clients: each is disabled or has weight 0; enable one, or give it \
                 a weight from 1 on",
                backend.name
            ));
        }
        let servers = backend.servers.iter();
        let servers: Vec<_> = servers.map(|it| OfServer::of(it, resolved)).collect();
        for server in &servers {
            if let Some(why) = &server.error {
                let (server, backend) = (&server.server, &backend.name);
                self.warnings
                    .push(format!("server {server} of backend {backend:?}: {why}"));
            }
        }
        let health = health::told(backend).into_iter();
        let sources = source::report(backend, resolved, &mut self.warnings);
        let notes = health.chain(sources).collect();
        self.backends.push(OfBackend {
            name: backend.name.clone(),
            idle: idle.told(),
            servers,
            notes,
        });
    }
}

impl OfServer {
    fn of(server: &ServerPlan, resolved: &Resolved) -> Self {
        let (addresses, error) = match resolved.of(&server.address) {
            Ok(addresses) => {
                let shown = |address: &SocketAddress| match &server.address {
                    ServerAddress::Datagrams(_) => datagram::shown(address),
                    _ => address.to_string(),
                };
                (addresses.iter().map(shown).collect(), None)
            }
            Err(why) => (Vec::new(), Some(why.to_string())),
        };
        Self {
            server: server.address.to_string(),
            weight: server.weight,
            backup: server.backup,
            addresses,
            error,
        }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for why in self.unusable_engines.values() {
            writeln!(f, "{why}")?;
        }
        for listener in &self.listeners {
            write!(f, "{listener}")?;
        }
        for backend in &self.backends {
            write!(f, "\n{backend}")?;
        }
        writeln!(f)
    }
}

impl fmt::Display for OfBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.idle {
            Some(idle) => writeln!(f, "backend {}: {idle}", self.name)?,
            None => writeln!(f, "backend {}", self.name)?,
        }
        for server in &self.servers {
            writeln!(f, "  {server}")?;
        }
        for note in &self.notes {
            writeln!(f, "  {note}")?;
        }
        Ok(())
    }
}

impl fmt::Display for OfServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (server, addresses) = (printable(&self.server), &self.addresses);
        match &self.error {
            Some(why) => write!(f, "{server} is not known: {why}")?,
            None if *addresses == [&*self.server] => f.write_str(&server)?,
            None => write!(f, "{server} is {}", addresses.join(", "))?,
        }
        if self.weight != 1 {
            write!(f, "; weight {}", self.weight)?;
        }
        match self.backup {
            true => f.write_str("; backup"),
            false => Ok(()),
        }
    }
}
