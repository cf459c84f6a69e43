//! What a deployment tells the operator.

use std::sync::Arc;

use splice::{EngineChoice, EngineName};

use super::{Deployment, Listening};
use crate::backend::Backend;
use crate::firewall;
use crate::service::{Destination, Route, Terms};
use crate::socket_address::SocketAddress;
use crate::target::is_on_this_host;

/// Logs what a listener does from now on, and what the packet filters mean for it.
pub(super) fn announce(terms: &Terms, listening: &[SocketAddress]) {
    if terms.may_bypass_filters() {
        if terms.options.bypass_firewall {
            tracing::info!("spliced connections bypass the packet filters of this host");
        } else {
            let servers: Vec<_> = terms
                .backends()
                .flat_map(|backend| backend.addresses())
                .collect();
            firewall::log_what_is_kept_back(listening, &servers);
        }
    }
    let what = match &terms.routes[..] {
        [
            Route {
                destination: Destination::Client,
                ..
            },
        ] => "echoing every byte".into(),
        [
            Route {
                destination: Destination::Backend { backend, .. },
                conditions,
            },
        ] if *conditions == splice_route::Conditions::default() => {
            format!("relaying to {}", backend.name())
        }
        [_] => "1 route".into(),
        routes => format!("{} routes", routes.len()),
    };
    let plan = &terms.plan;
    let name = match plan.name == plan.address.to_string() {
        true => String::new(),
        false => format!("{}: ", plan.name),
    };
    for address in listening {
        tracing::info!("{name}listening on {address}, {what}");
    }
}

/// So many listeners are named for one reason.
const LISTENERS_NAMED: usize = 8;

impl Deployment {
    /// Says so if `auto` can splice nothing, or nothing of what a listener is likely to get. Returns what stands in the way
    /// of all.
    pub(crate) fn log_what_is_copied(&self) -> Option<String> {
        let splicing = self.listeners.values().filter(|listening| {
            let terms = listening.service.terms();
            terms.may_promote() && terms.options.engine == EngineChoice::Auto
        });
        let splicing: Vec<_> = splicing.collect();
        if splicing.is_empty() {
            return None;
        }
        if let Err(why) = EngineName::Segment.is_permitted() {
            tracing::warn!("connections are copied and not spliced: {why}");
            return Some(why.to_string());
        }
        let copying = splicing.iter().filter_map(|listening| {
            let name = listening.service.terms().plan.name.clone();
            Some((name, likely_copied(listening)?))
        });
        let copying: Vec<_> = copying.collect();
        for (name, which) in copying.iter().take(LISTENERS_NAMED) {
            tracing::info!(
                "{name}: {which}, so that segment sizes differ; engine = \"segment\" announces sizes that fit"
            );
        }
        if let Some(more @ 1..) = copying.len().checked_sub(LISTENERS_NAMED) {
            tracing::info!(
                "{more} more listeners have clients whose segments differ in size from those of their servers"
            );
        }
        None
    }
}

/// Clients that a listener is likely to have, if those pass the loopback device and all of its servers do not, or the other
/// way round; and what becomes of them.
fn likely_copied(listening: &Listening) -> Option<&'static str> {
    let servers = |backend: &Arc<Backend>| backend.addresses();
    let terms = listening.service.terms();
    let own = terms.backends().flat_map(servers);
    // `segment` takes TCP only.
    let own = own.filter(|server| server.inet().is_some());
    let own: Vec<_> = own.map(|server| is_on_this_host(&server)).collect();
    let mut places = listening.addresses.iter();
    let is_inet = |place: &SocketAddress| place.inet().is_some();
    if own.is_empty() || !places.clone().all(is_inet) {
        return None;
    }
    match places.all(SocketAddress::is_of_loopback) {
        false if own.iter().all(|own| *own) => {
            Some("clients of other hosts are copied and not spliced: its servers are on this host")
        }
        true if !own.iter().any(|own| *own) => {
            Some("clients of this host are copied and not spliced: its servers are on other hosts")
        }
        _ => None,
    }
}

/// Logs why engines are missing, which `auto` goes on without. The log level is asked first, since
/// some probes take tens of milliseconds.
pub(crate) fn log_missing_engines() {
    if tracing::enabled!(tracing::Level::DEBUG) {
        let probes = EngineName::ALL.iter().map(|engine| engine.probe());
        for refusal in probes.filter_map(Result::err) {
            tracing::debug!("{refusal}");
        }
    }
}
