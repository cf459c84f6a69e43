//! Listeners that a reload has removed, until their connections have ended or had their time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use splice::Waker;

use super::{Deployment, connections};
use crate::plan::OnRemove;

impl Deployment {
    pub(super) fn remove_listeners(&mut self, kept: &[String]) {
        let now = Instant::now();
        self.listeners.retain(|key, listening| {
            if kept.contains(key) {
                return true;
            }
            listening.wakers.iter().for_each(Waker::close);
            let service = &listening.service;
            let time = match service.terms().plan.on_remove {
                OnRemove::Drain(time) => time,
                OnRemove::Reset => Duration::ZERO,
            };
            if let Some(at) = now.checked_add(time) {
                self.draining.push((at, Arc::downgrade(service)));
            }
            if let Some(forwarding) = listening.forwarding.take() {
                forwarding.close();
                self.former_forwardings
                    .push((now.checked_add(time), forwarding));
            }
            // A drained one has stopped before.
            if listening.sockets.is_some() {
                for address in &listening.addresses {
                    tracing::info!("no longer listening on {address}");
                }
            }
            false
        });
    }

    /// Cuts what has been removed and had its time, and returns when the next one is due.
    pub(crate) fn cut_what_is_due(&mut self, now: Instant) -> Option<Instant> {
        self.access_logs.forget_former();
        self.draining
            .retain(|(at, service)| match service.upgrade() {
                Some(service) if *at <= now => {
                    let count = service.connections.cut();
                    let name = &service.terms().plan.name;
                    tell_cut(count, &format!("listener {name} was removed"));
                    false
                }
                service => service.is_some(),
            });
        self.former_forwardings.retain(|(at, forwarding)| {
            if at.is_none_or(|at| at > now) {
                return forwarding.connections() > 0;
            }
            let (count, name) = forwarding.cut();
            let why = format!("listener {name} was removed, or begins with sockets now");
            tell_cut(count, &why);
            false
        });
        let services = self.draining.iter().map(|(at, _)| *at);
        let forwardings = self.former_forwardings.iter().filter_map(|(at, _)| *at);
        let datagrams = self.datagrams.cut_what_is_due(now);
        services.chain(forwardings).chain(datagrams).min()
    }
}

fn tell_cut(count: usize, why: &str) {
    if count > 0 {
        tracing::warn!("reset {}: {why}", connections(count as u64));
    }
}
