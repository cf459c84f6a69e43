//! A client's connection that is spliced to itself.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use splice::{Context, Endpoint, Outcome, Reason, observed_echo_task};

use crate::connection_limit::ConnectionPermit;
use crate::service::{Counts, Service, Terms};
use crate::sessions::{Entry, KILLED, Session, words};
use crate::socket_address::SocketAddress;
use crate::tally::Ending;

/// Starts the echo on this loop.
pub(crate) fn spawn(
    cx: &mut Context<'_>,
    client: Endpoint,
    peer: Option<SocketAddress>,
    permit: ConnectionPermit,
    terms: &Arc<Terms>,
    service: Arc<Service>,
) {
    Counts::add(&service.counts.accepted);
    let id = service.process.next_id.fetch_add(1, Ordering::Relaxed) + 1;
    let tally = terms.tallies.without_backend();
    let session = Session::new(id, Arc::clone(&terms.plan), peer, tally);
    // It is over with the last of those who hold it, even if the echo ends before it has begun.
    let entry = Arc::new(OnceLock::new());
    let echo = Echo {
        session: Arc::clone(&session),
        _entry: Arc::clone(&entry),
        terms: Arc::clone(terms),
        service: Arc::clone(&service),
        _permit: permit,
    };
    let spawned = observed_echo_task(client, &terms.options, None, move |outcome| {
        echo.ended(&outcome);
    });
    match spawned {
        Ok((task, observer)) => {
            let mut facts = session.facts();
            facts.route = Some(1);
            facts.pair = Some(observer);
            drop(facts);
            session.log_start(terms.access_log.as_ref());
            let waker = cx.spawn(task);
            let _ = entry.set(service.process.sessions.enter(&session, waker));
        }
        Err(error) => {
            session.ended(None, Ending::Other);
            let refused = &service.warnings.engine_refused;
            refused.emit(|_| tracing::error!("{error}"));
            if let Some(log) = &terms.access_log {
                session.log_end(log, None, &error.to_string());
            }
        }
    }
}

/// What an echo holds until its end.
struct Echo {
    session: Arc<Session>,
    _entry: Arc<OnceLock<Entry>>,
    terms: Arc<Terms>,
    service: Arc<Service>,
    _permit: ConnectionPermit,
}

impl Echo {
    fn ended(self, outcome: &Outcome) {
        let Outcome { reason, moved, .. } = outcome;
        tracing::debug!("echoed {} bytes to a client: {reason}", moved.a_to_b);
        let is_killed = *reason == Reason::Shutdown && self.session.is_killed();
        let ending = match is_killed {
            true => Ending::Killed,
            false => Ending::from(*reason),
        };
        self.session.ended(Some(outcome), ending);
        if let Some(log) = &self.terms.access_log {
            let why = match is_killed {
                true => KILLED.into(),
                false => words(*reason),
            };
            self.session.log_end(log, Some(outcome), &why);
        }
        match reason {
            Reason::Shutdown if is_killed => {}
            Reason::Shutdown => {
                let cut_short = &self.service.process.cut_short;
                cut_short.fetch_add(1, Ordering::Relaxed);
            }
            Reason::Refused => self
                .service
                .warnings
                .engine_refused
                .emit(|_| tracing::error!("{}", outcome.why_engine)),
            _ => {}
        }
    }
}
