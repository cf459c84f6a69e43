//! A client's connection that is spliced to itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use splice::{Context, Endpoint, Outcome, Reason, echo_task};

use crate::live::Alive;
use crate::relay::Relay;

/// Places the echo on the loop.
pub(crate) fn spawn(cx: &mut Context<'_>, client: Endpoint, alive: Alive, relay: Arc<Relay>) {
    let on_end = {
        let relay = Arc::clone(&relay);
        move |outcome| ended(&outcome, &relay, alive)
    };
    match echo_task(client, &relay.options, None, on_end) {
        Ok(echo) => drop(cx.spawn(echo)),
        Err(error) => relay.engine_refused.emit(|_| tracing::error!("{error}")),
    }
}

fn ended(outcome: &Outcome, relay: &Relay, _alive: Alive) {
    let Outcome { reason, moved, .. } = outcome;
    tracing::debug!("a client has had {} bytes back: {reason}", moved.a_to_b);
    match reason {
        Reason::Shutdown => drop(relay.cut_short.fetch_add(1, Ordering::Relaxed)),
        Reason::Refused => relay
            .engine_refused
            .emit(|_| tracing::error!("{}", outcome.why_engine)),
        _ => {}
    }
}
