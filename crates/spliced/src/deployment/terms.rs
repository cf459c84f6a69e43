//! From the plan of a listener to the terms that its connections are accepted under.

use std::collections::BTreeMap;
use std::iter;
use std::sync::Arc;

use anyhow::Result;
use splice::{Address, EngineChoice, SegmentSize};

use crate::access_log::AccessLog;
use crate::access_log_args::LogPlace;
use crate::backend::{Backend, Change};
use crate::plan::{Action, ListenerPlan, Plan, RoutePlan};
use crate::service::{Destination, Route, Terms};
use crate::socket_address::SocketAddress;
use crate::target::follow_routes;

/// The backends of a plan by their names, and how those change that are there already.
pub(super) type PlannedBackends = BTreeMap<String, (Arc<Backend>, Option<Change>)>;

/// What a listener is known by from one plan to the next: its address as it was typed. Port 0 stands for
/// another port each time, so there the name counts as well.
pub(super) fn key(listener: &ListenerPlan) -> String {
    match &listener.address {
        Address::Inet { port: 0, .. } => format!("{} {}", listener.address, listener.name),
        address => address.to_string(),
    }
}

/// Refuses an engine that cannot do what the plan asks for.
pub(super) fn check_engine(plan: &Plan, listener: &ListenerPlan) -> Result<()> {
    let EngineChoice::Only(engine) = listener.engine else {
        return Ok(());
    };
    let echoes = |route: &RoutePlan| matches!(route.action, Action::Echo);
    if listener.routes.iter().any(echoes) {
        engine.can_echo()?;
    }
    let servers = plan
        .backends
        .iter()
        .filter(|backend| {
            listener
                .routes
                .iter()
                .any(|route| leads_to(route, &backend.name))
        })
        .flat_map(|backend| &backend.servers)
        .filter_map(|server| server.address.fixed());
    for address in iter::once(&listener.address).chain(servers) {
        engine.can_take(SocketAddress::kind_for(address))?;
    }
    Ok(())
}

fn leads_to(route: &RoutePlan, backend: &str) -> bool {
    matches!(&route.action, Action::Backend { name, fallback }
        if name == backend || fallback.as_deref() == Some(backend))
}

pub(super) fn terms(
    plan: &Arc<ListenerPlan>,
    backends: &PlannedBackends,
    access_logs: &BTreeMap<LogPlace, AccessLog>,
) -> Terms {
    let backend = |name: &String| backends.get(name).map(|(backend, _)| Arc::clone(backend));
    let destination = |action: &Action| match action {
        Action::Backend { name, fallback } => match backend(name) {
            Some(found) => Destination::Backend {
                backend: found,
                fallback: fallback.as_ref().and_then(backend),
            },
            None => Destination::Reset,
        },
        Action::Requested(rules) => Destination::Requested(rules.as_slice().into()),
        Action::Echo => Destination::Client,
        Action::Reset => Destination::Reset,
    };
    let asks = |route: &RoutePlan| matches!(route.action, Action::Requested(_));
    if plan.require_proxy_from.is_some() || plan.routes.iter().any(asks) {
        follow_routes();
    }
    let route = |route: &RoutePlan| Route {
        conditions: route.conditions.clone(),
        destination: destination(&route.action),
    };
    let routes = plan.routes.iter().map(route).collect();
    let log = plan.access_log.place.as_ref();
    let log = log.and_then(|place| access_logs.get(place));
    let access_log = log.map(|log| log.with(&plan.access_log));
    Terms::new(Arc::clone(plan), routes, access_log)
}

/// The largest segment that fits on the paths to all known servers; `None` if none is reachable, which
/// the first connection reports.
pub(super) fn largest_segment(terms: &Terms) -> Option<SegmentSize> {
    let addresses = terms.backends().flat_map(|backend| backend.addresses());
    let sizes = addresses.filter_map(|address| match address {
        SocketAddress::Inet(address) => SegmentSize::on_the_way_to(address).ok(),
        _ => None,
    });
    sizes.min()
}
