//! Servers and backends that a reload or an order has removed, until their connections have ended, and their return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::drain::By;
use super::server::Server;
use super::{Backend, lock};
use crate::plan::{BackendPlan, OnRemove};

impl Backend {
    /// Removes the servers that `gone` confirms.
    pub(super) fn remove(
        self: &Arc<Self>,
        gone: impl Fn(&Server) -> bool,
        on_remove: OnRemove,
        by: &By,
    ) {
        let removed = self.pool().remove(gone);
        for server in removed {
            server.remove();
            let then = server.begin_to_leave(by);
            let why = match by {
                By::Order(user) => format!(" until the next reload, by {user}"),
                By::Configuration if server.is_added() => {
                    ", since only an order has added it".into()
                }
                By::Configuration => String::new(),
            };
            let forgotten = match server.open() == 0 && server.is_drained_by_order() {
                true => "; the order to drain it goes with it",
                false => "",
            };
            tracing::info!(
                "backend {}: server {} was removed{why}{}{forgotten}",
                self.name,
                server.name(),
                server.left()
            );
            self.cut_in_time(&server, then, on_remove);
        }
    }

    /// Cuts a server that leaves since `then`, unless it comes back.
    fn cut_in_time(self: &Arc<Self>, server: &Arc<Server>, then: Instant, on_remove: OnRemove) {
        match on_remove {
            OnRemove::Reset => self.cut(server, then),
            OnRemove::Drain(time) => {
                // Without connections there is nobody to cut, and nothing to keep.
                let (backend, server) = (Arc::downgrade(self), Arc::downgrade(server));
                self.control.spawn(async move {
                    tokio::time::sleep(time).await;
                    if let (Some(backend), Some(server)) = (backend.upgrade(), server.upgrade()) {
                        backend.cut(&server, then);
                    }
                });
            }
        }
    }

    /// The time of a server is over that leaves since `then`.
    fn cut(&self, server: &Server, then: Instant) {
        let count = server.cut(then);
        if count > 0 {
            let after = Duration::from_secs(then.elapsed().as_secs());
            let was = if count == 1 { "was" } else { "were" };
            let how = match server.target.is_of_datagrams() {
                true => "ended",
                false => "reset",
            };
            tracing::info!(
                "backend {}: server {} was cut, {} after it was removed: {}",
                self.name,
                server.name(),
                humantime::format_duration(after),
                format_args!("{} {was} {how}", server.in_words(count))
            );
        }
    }

    /// No route leads here any more. Connections that were accepted before still may: a client that is
    /// slow to say where it wants to go must not suffer from a new name of a backend.
    pub(crate) fn retire(self: &Arc<Self>) {
        let on_remove = self.plan().on_remove;
        tracing::info!("backend {} was removed", self.name);
        if on_remove == OnRemove::Reset {
            return self.remove(|_| true, on_remove, &By::Configuration);
        }
        let servers: Vec<_> = self.pool().servers().cloned().collect();
        for server in &servers {
            let then = server.begin_to_leave(&By::Configuration);
            self.cut_in_time(server, then, on_remove);
        }
    }

    /// Routes lead here again: the servers that were there when it was removed are back.
    pub(super) fn return_all(self: &Arc<Self>) {
        let plan = self.plan();
        let leaving: Vec<_> = {
            let pool = self.pool();
            let leaving = pool.servers().filter(|server| server.is_leaving());
            leaving.cloned().collect()
        };
        for server in &leaving {
            self.take_back(server, &plan);
        }
    }

    /// A reload or an order brings back a server that still has connections.
    pub(super) fn take_back(self: &Arc<Self>, server: &Arc<Server>, plan: &BackendPlan) {
        let back = server.come_back();
        tracing::info!(
            "backend {}: server {} is back{}",
            self.name,
            server.name(),
            back.left()
        );
        let is_here = self.pool().servers().any(|other| Arc::ptr_eq(other, &back));
        if !is_here {
            self.take_in(back, plan);
        }
        let mut pool = self.pool();
        // One whose connections have been cut makes room for the one in its place.
        pool.remove(|other| other.id() == server.id() && other.is_leaving());
        pool.forget_former(server.name());
    }

    /// A former server that still has connections, and that the records of `srv` have named; `None`: that has had an
    /// address of its own.
    pub(super) fn find_returning(&self, name: &str, srv: Option<&str>) -> Option<Arc<Server>> {
        self.find_former(name).filter(|server| server.srv() == srv)
    }

    /// A former server that still has connections.
    pub(super) fn find_former(&self, name: &str) -> Option<Arc<Server>> {
        let pool = lock(&self.pool);
        let mut former = pool.former();
        former.find(|server| server.name() == name)
    }

    /// Whether somebody is connected with one of its servers.
    pub(super) fn has_connections(&self) -> bool {
        let pool = lock(&self.pool);
        pool.former().next().is_some() || pool.servers().any(|server| server.open() > 0)
    }
}
