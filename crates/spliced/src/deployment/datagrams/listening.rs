//! One listener of datagrams: what it tells, and what its threads are told.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use super::Listening;
use crate::datagram::{ServiceTerms, Worker};
use crate::plan::{Action, DatagramListenerPlan};
use crate::plural::counted;

impl Listening {
    /// What it is, and what has been counted.
    pub(in crate::deployment) fn told(&self) -> Value {
        let sessions = self.service.sessions.count();
        let (state, since) = self.drain.told(sessions);
        json!({
            "name": self.plan.name,
            "addresses": self.service.shown_addresses(),
            "state": state,
            "since": humantime::format_rfc3339_millis(since).to_string(),
            "connections": sessions,
            "counts": {
                "accepted": self.service.made.load(Ordering::Relaxed),
                "joined": self.service.made.load(Ordering::Relaxed),
            },
        })
    }

    pub(super) fn set_terms(&mut self, plan: Arc<DatagramListenerPlan>, terms: ServiceTerms) {
        self.plan = plan;
        self.service.set_terms(terms);
        self.workers.iter().for_each(Worker::tell);
    }

    pub(super) fn tell_listening(&self) {
        let plan = &self.plan;
        let name = match plan.name == plan.listen.to_string() {
            true => String::new(),
            false => format!("{}: ", plan.name),
        };
        let what = match &plan.routes[..] {
            [only] => match &only.action {
                Action::Backend { name, .. } if only.conditions.clients.is_none() => {
                    format!("relaying to {name}")
                }
                _ => counted(1_usize, "route"),
            },
            routes => counted(routes.len(), "route"),
        };
        for address in self.service.shown_addresses() {
            tracing::info!("{name}listening on {address}, {what}");
        }
    }

    /// Waits for its threads, which end, and logs what they have moved.
    pub(super) fn end(self) {
        self.workers.into_iter().for_each(Worker::join);
        self.service.log_total();
    }

    /// Takes no new clients until it is undrained. Returns how many sessions go on.
    pub(in crate::deployment) fn leave(&mut self) -> usize {
        self.workers.iter().for_each(Worker::leave);
        self.socket_file = None;
        self.service.sessions.count()
    }

    /// Calls `act` whenever it has no session any more.
    pub(in crate::deployment) fn when_empty(&self, act: impl Fn() + Send + Sync + 'static) {
        self.service.sessions.when_none(act);
    }

    pub(super) fn tell_cut(&self) {
        let name = &self.plan.name;
        match self.service.sessions.count() {
            0 => {}
            count => tracing::warn!(
                "ended {}: listener {name} was removed",
                counted(count, "session")
            ),
        }
    }
}
