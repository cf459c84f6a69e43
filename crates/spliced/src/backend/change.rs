//! A new plan for a backend that a reload brings.

use std::mem;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use anyhow::Result;

use super::drain::By;
use super::server::Server;
use super::{Backend, lock, srv, watch};
use crate::plan::{BackendPlan, ServerAddress};
use crate::target::Target;

/// A new plan for a backend, with everything that could fail already done.
pub(crate) struct Change {
    plan: Arc<BackendPlan>,
    /// Servers that are new.
    added: Vec<Arc<Server>>,
    /// Former ones that still have connections.
    returning: Vec<Arc<Server>>,
    /// Those that are here, unless an order removes one meanwhile.
    staying: Vec<Arc<Server>>,
}

impl Backend {
    /// Makes the servers that are new in `plan`. Nothing of the backend changes. Waits for names up to the
    /// connect timeout.
    ///
    /// # Errors
    /// If an address cannot be used, or a thread cannot be started.
    pub(crate) fn prepare(&self, plan: &Arc<BackendPlan>) -> Result<Change> {
        let deadline = Instant::now() + plan.connect_timeout;
        let (mut added, mut returning, mut staying) = (Vec::new(), Vec::new(), Vec::new());
        for server in &plan.servers {
            let Some(address) = server.address.fixed() else {
                continue;
            };
            let name = server.address.to_string();
            if let Some(server) = self.find(&name) {
                staying.push(server);
                continue;
            }
            if let Some(server) = self.find_returning(&name, None) {
                returning.push(server);
                continue;
            }
            let at_most = deadline.saturating_duration_since(Instant::now());
            added.push(Server::new(
                address.clone(),
                None,
                server,
                plan,
                Some(at_most),
            )?);
        }
        let plan = Arc::clone(plan);
        Ok(Change {
            plan,
            added,
            returning,
            staying,
        })
    }

    /// The targets of its servers after `change`.
    pub(crate) fn targets(&self, change: Option<&Change>) -> Vec<Arc<Target>> {
        let pool = self.pool();
        let stays =
            |server: &&Arc<Server>| change.is_none_or(|change| !is_gone(&change.plan, server));
        let added = change
            .iter()
            .flat_map(|change| change.added.iter().chain(&change.returning));
        let servers = pool.servers().filter(stays).chain(added);
        servers.map(|server| Arc::clone(&server.target)).collect()
    }

    /// A reload: servers that stay keep their connections, counts and health.
    pub(crate) fn update(self: &Arc<Self>, change: Change) {
        let Change {
            plan,
            added,
            returning,
            staying,
        } = change;
        let mut ordered_away = lock(&self.ordered_away);
        let former = {
            let mut current = self.plan.write().unwrap_or_else(PoisonError::into_inner);
            mem::replace(&mut *current, Arc::clone(&plan))
        };
        // Before others go, so that there is always one to choose. An order may have changed who is here since
        // `prepare`.
        for server in added {
            if self.find(server.name()).is_some() {
                continue;
            }
            if ordered_away.contains(server.name()) {
                tracing::info!(
                    "backend {}: server {} is back, as the configuration has it",
                    self.name,
                    server.name()
                );
            }
            self.take_in(server, &plan);
        }
        for server in returning.iter().chain(&staying) {
            if self.find(server.name()).is_none() {
                self.take_back(server, &plan);
            }
        }
        ordered_away.clear();
        self.return_all();
        for server in &plan.servers {
            let address = match &server.address {
                ServerAddress::Address(_) | ServerAddress::Datagrams(_) => {
                    server.address.to_string()
                }
                ServerAddress::Srv(name) => {
                    srv::watch(self, name);
                    let servers: Vec<_> = self.pool().servers().cloned().collect();
                    for known in servers.iter().filter(|known| known.srv() == Some(name)) {
                        self.configure(known, server.disabled);
                    }
                    continue;
                }
            };
            let Some(known) = self.find(&address) else {
                continue;
            };
            known.set_added(false);
            self.change_server(&known, server);
            self.configure(&known, server.disabled);
        }
        // Those of SRV names, too.
        let servers: Vec<_> = self.pool().servers().cloned().collect();
        for server in &servers {
            server.change_checks(&plan);
            if plan.health.is_some() {
                watch::start(self, server);
            }
            // It went down under a plan that kept its connections. If it does so now, its check has this plan.
            if plan.resets_on_down && !former.resets_on_down && server.is_down(Instant::now()) {
                server.roster.purge();
            }
        }
        self.remove(
            |server| is_gone(&plan, server),
            plan.on_remove,
            &By::Configuration,
        );
        self.pool().weigh_again();
        self.tell_availability();
        // A limit may have been raised.
        self.queue.call_next();
    }
}

/// Whether `plan` has a server no longer, neither its address nor the SRV name that names it.
fn is_gone(plan: &BackendPlan, server: &Server) -> bool {
    !plan.servers.iter().any(|planned| match &planned.address {
        ServerAddress::Srv(srv) => server.srv() == Some(srv),
        address => address.to_string() == server.name(),
    })
}
