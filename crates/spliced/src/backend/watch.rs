//! The checks of one server, as long as it is in its backend.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::timeout;

use super::Backend;
use super::check::check;
use super::own_connection::{Failure, addresses};
use super::server::Server;
use crate::plan::{BackendPlan, Check, HealthPlan};

/// How much an interval varies, in percent: servers of one backend, and many proxies, must not check in
/// step.
const JITTER_PERCENT: u32 = 10;

/// Starts the task that checks `server`, unless there is one.
pub(super) fn start(backend: &Arc<Backend>, server: &Arc<Server>) {
    if server.set_watched(true) {
        return;
    }
    let backend_gone = Arc::downgrade(backend);
    let server = Arc::downgrade(server);
    backend.control.spawn(run(backend_gone, server));
}

async fn run(backend: Weak<Backend>, server: Weak<Server>) {
    let mut random = server.as_ptr() as usize as u32 | 1;
    loop {
        let (pause, changed) = {
            let (Some(backend), Some(server)) = (backend.upgrade(), server.upgrade()) else {
                return;
            };
            let plan = backend.plan();
            let Some(health) = plan.health.as_ref().filter(|_| !server.is_removed()) else {
                server.set_watched(false);
                let is_wanted = backend.plan().health.is_some() && !server.is_removed();
                if is_wanted && !server.set_watched(true) {
                    // A reload that has just come relies on this task.
                    continue;
                }
                return;
            };
            look(&backend, &server, &plan, health).await;
            (jittered(health.every, &mut random), server.checks_changed())
        };
        // Another plan may ask for a check sooner.
        let _ = timeout(pause, changed.notified()).await;
    }
}

async fn look(backend: &Arc<Backend>, server: &Server, plan: &BackendPlan, health: &HealthPlan) {
    // The time of the check begins when it has somewhere to go.
    let checked = async {
        let addresses = addresses(&server.target, health.timeout).await?;
        let checked = check(plan, health, &server.target, &addresses);
        timeout(health.timeout, checked).await.unwrap_or_else(|_| {
            if let Check::Datagram { expect: None, .. } = health.check {
                return Ok(());
            }
            let time = humantime::format_duration(health.timeout);
            let why = format!("a check was not answered within {time}");
            Err(Failure::Server(why))
        })
    };
    let why = match checked.await {
        Ok(()) => {
            server.forget_shortage();
            if server.check_passed(backend.name()) {
                backend.tell_availability();
                backend.queue.call_next();
            }
            return;
        }
        Err(Failure::Here(why)) => return backend.tell_shortage(server, &why),
        Err(Failure::Server(why)) => why,
        Err(Failure::Reset) => "it resets the connection".into(),
    };
    if server.check_failed(backend.name(), &why) {
        // That of a reload which has come since the check began, too: it found the server up.
        if backend.plan().resets_on_down {
            server.roster.purge();
        }
        backend.tell_availability();
        // Others may be used instead, backups for one.
        backend.queue.call_next();
    }
}

/// `every`, up to [`JITTER_PERCENT`] more or less.
fn jittered(every: Duration, random: &mut u32) -> Duration {
    // Marsaglia, "Xorshift RNGs", 2003.
    *random ^= *random << 13;
    *random ^= *random >> 17;
    *random ^= *random << 5;
    every * (100 - JITTER_PERCENT + *random % (2 * JITTER_PERCENT + 1)) / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_vary_by_a_tenth() {
        let every = Duration::from_millis(1000);
        let mut random = 1;
        let pauses: Vec<_> = (0..1000)
            .map(|_| jittered(every, &mut random).as_millis())
            .collect();
        assert!(pauses.iter().all(|pause| (900..=1100).contains(pause)));
        assert!(pauses.iter().any(|pause| *pause < 920));
        assert!(pauses.iter().any(|pause| *pause > 1080));
    }
}
