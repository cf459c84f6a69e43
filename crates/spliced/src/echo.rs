//! A client's connection that is spliced to itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use splice::{Context, Endpoint, Outcome, Reason, echo_task};

use crate::connection_limit::ConnectionPermit;
use crate::service::{Service, Terms};

/// Starts the echo on this loop.
pub(crate) fn spawn(
    cx: &mut Context<'_>,
    client: Endpoint,
    permit: ConnectionPermit,
    terms: &Terms,
    service: Arc<Service>,
) {
    let on_end = {
        let service = Arc::clone(&service);
        move |outcome| ended(&outcome, &service, permit)
    };
    match echo_task(client, &terms.options, None, on_end) {
        Ok(echo) => drop(cx.spawn(echo)),
        Err(error) => service
            .warnings
            .engine_refused
            .emit(|_| tracing::error!("{error}")),
    }
}

fn ended(outcome: &Outcome, service: &Service, _permit: ConnectionPermit) {
    let Outcome { reason, moved, .. } = outcome;
    tracing::debug!("echoed {} bytes to a client: {reason}", moved.a_to_b);
    match reason {
        Reason::Shutdown => drop(service.process.cut_short.fetch_add(1, Ordering::Relaxed)),
        Reason::Refused => service
            .warnings
            .engine_refused
            .emit(|_| tracing::error!("{}", outcome.why_engine)),
        _ => {}
    }
}
