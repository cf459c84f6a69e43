//! Whether a backend has a server for new clients: the log has each change once, with its reason.

use std::sync::Arc;
use std::time::Instant;

use super::pool::Pool;
use super::server::Server;
use super::{Backend, lock};
use crate::plan::{BackendPlan, ServerAddress};

/// What the log has of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Availability {
    /// Nothing: no route leads to it yet.
    #[default]
    Untold,
    Some,
    None,
}

impl Backend {
    /// Routes lead here. A backend whose servers SRV records name waits for the first answer.
    pub(super) fn begin_to_tell(&self) {
        let is_empty = self.pool().servers().next().is_none();
        if !(is_empty && names_srv(&self.plan())) {
            self.tell_from_now_on();
        }
    }

    pub(super) fn tell_from_now_on(&self) {
        {
            let mut told = lock(&self.availability);
            if *told == Availability::Untold {
                *told = Availability::Some;
            }
        }
        self.tell_availability();
    }

    /// Called wherever the state of a server may have changed, when the whole change is made.
    pub(super) fn tell_availability(&self) {
        // Held, so that the log has changes in their order.
        let mut told = lock(&self.availability);
        if *told == Availability::Untold {
            return;
        }
        let now = Instant::now();
        let pool = self.pool();
        let found = find(&pool, now);
        let is = match found {
            Some(_) => Availability::Some,
            None => Availability::None,
        };
        if std::mem::replace(&mut *told, is) == is {
            return;
        }
        match found {
            Some(server) => tracing::info!(
                "backend {}: new clients get a server again: {}",
                self.name,
                server.name()
            ),
            None => tracing::warn!(
                "backend {}: no server is left for new clients: {}",
                self.name,
                pool.why_none(now)
            ),
        }
    }

    /// Follows the answers about the name of `server`.
    pub(super) fn follow_name(self: &Arc<Self>, server: &Server) {
        let (backend, name) = (Arc::downgrade(self), server.shared_name());
        server.target.when_answered(move |moved| {
            let Some(backend) = backend.upgrade() else {
                return;
            };
            if let Some(moved) = moved {
                tracing::info!("backend {}: server {name} is {moved}", backend.name);
            }
            backend.tell_availability();
        });
    }
}

/// A server that a client may get, those that its traffic has taken out included: they are used if there is no other.
fn find(pool: &Pool, now: Instant) -> Option<&Arc<Server>> {
    let mut servers = pool.servers();
    servers.find(|server| {
        server.takes_clients() && !server.is_down(now) && !server.target.leads_nowhere()
    })
}

fn names_srv(plan: &BackendPlan) -> bool {
    let mut servers = plan.servers.iter();
    servers.any(|server| matches!(server.address, ServerAddress::Srv(_)))
}
