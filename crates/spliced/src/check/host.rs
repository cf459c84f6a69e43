//! What of this host each listener and server is held against: its engines and its packet filters, read once.

use std::cell::{LazyCell, OnceCell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::slice;

use splice::EngineName;
use splice::firewall::PacketFilters;

use crate::firewall::{self, KeptBack};
use crate::socket_address::SocketAddress;

#[derive(Debug)]
pub(super) struct Host {
    /// In the order of [`EngineName::ALL`], each tried when it is asked for: that may take tens of milliseconds.
    engines: [OnceCell<splice::Result<()>>; EngineName::ALL.len()],
    /// `None` if they cannot be read.
    filters: LazyCell<Option<PacketFilters>>,
    /// Many listeners may have the same servers.
    of_servers: RefCell<HashMap<SocketAddr, Vec<KeptBack>>>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            engines: Default::default(),
            filters: LazyCell::new(firewall::read),
            of_servers: RefCell::default(),
        }
    }
}

impl Host {
    /// Whether an engine can be used, or why not.
    pub(super) fn probe(&self, engine: EngineName) -> &splice::Result<()> {
        let mut all = EngineName::ALL.into_iter().zip(&self.engines);
        let (_, found) = all
            .find(|(name, _)| *name == engine)
            .expect("ALL has every engine");
        found.get_or_init(|| engine.probe())
    }

    /// What the packet filters keep out of `segment` of the clients of a listener.
    pub(super) fn clients_kept_back(&self, listening: &[SocketAddress]) -> Vec<KeptBack> {
        let filters = self.filters.as_ref();
        filters.map_or_else(Vec::new, |filters| {
            firewall::kept_back(filters, listening, &[])
        })
    }

    /// What the packet filters keep out of `segment` of the connections with a server.
    pub(super) fn server_kept_back(&self, server: &SocketAddress) -> Vec<KeptBack> {
        let (Some(filters), SocketAddress::Inet(address)) = (self.filters.as_ref(), server) else {
            return Vec::new();
        };
        let mut known = self.of_servers.borrow_mut();
        let judge = || firewall::kept_back(filters, &[], slice::from_ref(server));
        known.entry(*address).or_insert_with(judge).clone()
    }
}

#[cfg(test)]
impl Host {
    /// The engines that have been tried.
    pub(super) fn probed(&self) -> Vec<EngineName> {
        let all = EngineName::ALL.into_iter().zip(&self.engines);
        all.filter_map(|(name, found)| found.get().map(|_| name))
            .collect()
    }
}
