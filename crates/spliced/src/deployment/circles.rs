//! Listeners of a plan that lead to one another.

use std::collections::BTreeMap;
use std::iter;

use anyhow::Result;

use super::terms::PlannedBackends;
use super::{Deployment, datagrams, targets};
use crate::circle;
use crate::listener::ListeningSockets;
use crate::plan::Plan;
use crate::refusal::WrongUsage;

impl Deployment {
    /// Refuses those that no client leaves, and warns of the others. `bound` and `datagrams` are about to listen.
    ///
    /// # Errors
    /// The first circle that no client leaves.
    pub(super) fn refuse_circles(
        &self,
        plan: &Plan,
        bound: &BTreeMap<String, ListeningSockets>,
        datagrams: &datagrams::Prepared,
        backends: &PlannedBackends,
    ) -> Result<()> {
        let of_streams = plan.listeners.iter().map(|listener| circle::Listener {
            name: &listener.name,
            is_of_datagrams: false,
            listening: self.listening_on(listener, bound).to_vec(),
            routes: &listener.routes,
            filters: listener.require_proxy_from.is_some(),
        });
        let addresses = datagrams.listening(&self.datagrams);
        let of_datagrams = iter::zip(&plan.datagram_listeners, addresses);
        let of_datagrams = of_datagrams.map(|(listener, (_, listening))| circle::Listener {
            name: &listener.name,
            is_of_datagrams: true,
            listening: listening.to_vec(),
            routes: &listener.routes,
            filters: false,
        });
        let listeners: Vec<_> = of_streams.chain(of_datagrams).collect();
        let backends = plan.backends.iter().filter_map(|plan| {
            let (backend, _) = backends.get(&plan.name)?;
            let targets = targets(backend, backends);
            let servers = targets.iter().map(|target| target.last_known().to_vec());
            Some(circle::Backend {
                plan,
                servers: servers.collect(),
            })
        });
        let backends: Vec<_> = backends.collect();
        for circle in circle::circles(&listeners, &backends) {
            let sentence = circle.sentence();
            if circle.is_certain {
                return Err(WrongUsage::new(sentence).into());
            }
            tracing::warn!("{sentence}");
        }
        Ok(())
    }
}
