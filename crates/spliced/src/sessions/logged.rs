//! A session in the access log.

use std::fmt::Display;

use splice::{EngineName, Outcome, Reason, Side};

use super::session::{Facts, Session};
use crate::access_log::{AccessLog, Entry, Event, Moved};

impl Session {
    /// Logs that the target is reached, if `log` has lines for that. The pair is known.
    pub(crate) fn log_start(&self, log: Option<&AccessLog>) {
        let Some(log) = log.filter(|log| log.has_starts()) else {
            return;
        };
        let facts = self.facts();
        let (engine, why) = match &facts.pair {
            Some(pair) => {
                let (engine, why) = pair.engine();
                (Some(engine), facts.why_engine(engine, &why))
            }
            None => (None, "no pair yet".into()),
        };
        self.log(log, &facts, Event::Start, (engine, &why), None, None);
    }

    /// Logs the end; without an outcome there was no pair. `why` is the reason for it.
    pub(crate) fn log_end(&self, log: &AccessLog, outcome: Option<&Outcome>, why: &str) {
        let facts = self.facts();
        let moved = outcome.map(|outcome| outcome.moved).unwrap_or_default();
        let why_engine = match outcome {
            Some(outcome) => facts.why_engine(outcome.engine, &outcome.why_engine),
            None => format!("no pair: {why}"),
        };
        // An engine that refused the connection has moved nothing, so none is named.
        let engine = outcome
            .filter(|outcome| outcome.reason != Reason::Refused || moved.total() > 0)
            .map(|outcome| outcome.engine);
        let messages = self.keeps_messages().then(|| {
            let messages = outcome.map(|outcome| outcome.messages);
            messages.unwrap_or_default()
        });
        let moved = [
            Moved {
                messages: messages.map(|messages| messages.a_to_b),
                ..Moved::bytes(moved.a_to_b + facts.passed_on_bytes)
            },
            Moved {
                messages: messages.map(|messages| messages.b_to_a),
                ..Moved::bytes(moved.b_to_a)
            },
        ];
        let engine = (engine, &*why_engine);
        self.log(log, &facts, Event::End, engine, Some(moved), Some(why));
    }

    fn log(
        &self,
        log: &AccessLog,
        facts: &Facts,
        event: Event,
        (engine, why_engine): (Option<EngineName>, &str),
        moved: Option<[Moved; 2]>,
        outcome: Option<&str>,
    ) {
        let server_name = facts.server_name.as_ref();
        let server_name = server_name.map(|name| name.escape_debug().to_string());
        let client: Option<&dyn Display> = facts.client.as_ref().map(|client| client as _);
        let peer: Option<&dyn Display> = facts.peer.as_ref().map(|peer| peer as _);
        log.write(&Entry {
            event,
            id: self.id(),
            unique_id: facts.unique_id.as_deref(),
            listener: self.listener(),
            route: facts.route,
            client: client.unwrap_or(&""),
            peer,
            target: &facts.wanted(),
            server_name: server_name.as_deref(),
            name: None,
            backend: facts.backend.as_ref().map(|backend| backend.name()),
            server: facts.server.as_deref(),
            engine: engine.map(EngineName::as_str),
            why_engine,
            moved,
            outcome,
            lasted: outcome.map(|_| self.accepted_at().elapsed()),
        });
    }
}

/// Why a pair, or an echo, has ended, in the words of the log.
pub(crate) fn words(reason: Reason) -> String {
    let name = |side| match side {
        Side::A => "client",
        Side::B => "target",
    };
    match reason {
        Reason::EndOfStream => "end of stream".into(),
        Reason::Reset(side) => format!("reset by {}", name(side)),
        Reason::MessageTooLong(side) => format!(
            "a message is too long for the {}: raise net.core.wmem_max or add CAP_NET_ADMIN",
            name(side)
        ),
        Reason::Failed { side, errno } => {
            let error = std::io::Error::from_raw_os_error(errno);
            format!("{} failed: {error}", name(side))
        }
        other => other.to_string(),
    }
}
