//! The listeners: their limits, and how near they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::family::Family;
use crate::connection_limit::ConnectionLimit;
use crate::service::Service;

/// What is known of the listeners of one name: one, and former ones that still have connections.
#[derive(Default)]
struct Listener {
    open: u64,
    /// `None`: no limit.
    most: Option<u64>,
}

pub(super) fn families(
    services: &[Arc<Service>],
    of_datagrams: &[(String, Arc<ConnectionLimit>)],
) -> Vec<Family> {
    let mut listeners = BTreeMap::<_, Listener>::new();
    for service in services {
        let name = service.terms().plan.name.clone();
        let listener = listeners.entry(name).or_default();
        listener.open += service.connection_limit.count() as u64;
        // The last one is that of the configuration.
        listener.most = service.terms().plan.max_connections.map(u64::from);
    }
    for (name, sessions) in of_datagrams {
        let listener = listeners.entry(name.clone()).or_default();
        listener.open += sessions.count() as u64;
        listener.most = Some(sessions.most() as u64);
    }
    let mut open = open();
    let mut most = most();
    for (name, listener) in listeners {
        let labels = || vec![("listener", name.clone())];
        open.add(labels(), listener.open);
        if let Some(limit) = listener.most {
            most.add(labels(), limit);
        }
    }
    vec![open, most]
}

fn open() -> Family {
    Family::gauge(
        "spliced_listener_open_connections",
        "Clients of the listener that are connected, or have a session, and count for its limit.",
    )
}

fn most() -> Family {
    Family::gauge(
        "spliced_listener_max_connections",
        "The limit of the listener on connections (max_connections) or sessions (max_sessions), if it has one.",
    )
}
