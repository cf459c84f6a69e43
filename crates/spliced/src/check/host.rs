//! What of this host each listener and server is held against: its engines and its packet filters, read once.

use std::cell::{LazyCell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::slice;

use splice::EngineName;
use splice::firewall::PacketFilters;

use crate::firewall::{self, KeptBack};
use crate::socket_address::SocketAddress;

#[derive(Debug)]
pub(super) struct Host {
    /// To try one may take tens of milliseconds.
    engines: LazyCell<Vec<(EngineName, splice::Result<()>)>>,
    /// `None` if they cannot be read.
    filters: LazyCell<Option<PacketFilters>>,
    /// Many listeners may have the same servers.
    of_servers: RefCell<HashMap<SocketAddr, Vec<KeptBack>>>,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            engines: LazyCell::new(|| {
                EngineName::ALL
                    .map(|engine| (engine, engine.probe()))
                    .into()
            }),
            filters: LazyCell::new(firewall::read),
            of_servers: RefCell::default(),
        }
    }
}

impl Host {
    /// Every engine, and why it cannot be used if it cannot.
    pub(super) fn engines(&self) -> &[(EngineName, splice::Result<()>)] {
        &self.engines
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
