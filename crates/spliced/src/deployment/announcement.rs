//! What a deployment tells the operator.

use splice::EngineName;

use crate::firewall;
use crate::service::{Destination, Route, Terms};
use crate::socket_address::SocketAddress;

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
