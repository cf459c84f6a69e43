//! What is told of a session to those who ask.

use std::time::{Instant, SystemTime};

use serde::{Deserialize, Serialize};
use splice::{Observer, Stream};

use super::{Phase, Session, Sessions};
use crate::access_log::ONLY_COPY;
use crate::session_filter::SessionFilter;

/// The answer to `spliced sessions`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) sessions: Vec<Row>,
}

/// A session at the moment when it was read. Fields of the access log have its names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    /// As in the logs.
    pub(crate) id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_id: Option<String>,
    pub(crate) listener: String,
    /// From 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) route: Option<usize>,
    pub(crate) client: String,
    /// Whose connection it is, if that is not the client itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<String>,
    /// Escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) backend: Option<String>,
    /// As the configuration names it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server: Option<String>,
    pub(crate) target: String,
    /// The address from which the target was reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    pub(crate) phase: Phase,
    pub(crate) client_stream: End,
    pub(crate) target_stream: End,
    /// `None` before the pair.
    pub(crate) engine: Option<String>,
    pub(crate) why_engine: String,
    /// RFC 3339 in UTC.
    pub(crate) accepted_at: String,
    pub(crate) age_ms: f64,
    /// Since the last byte, or since the connection was accepted.
    pub(crate) idle_ms: f64,
    pub(crate) client_to_target_bytes: u64,
    pub(crate) target_to_client_bytes: u64,
    #[serde(flatten)]
    pub(crate) units: Units,
}

/// What sockets with boundaries count besides bytes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Units {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_to_target_datagrams: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_to_client_datagrams: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_to_target_dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_to_client_dropped: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) client_to_target_messages: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target_to_client_messages: Option<u64>,
}

/// What a thread knows of a session that it keeps to itself.
#[derive(Debug)]
pub(crate) struct Own {
    pub(crate) id: u64,
    pub(crate) listener: String,
    /// From 1.
    pub(crate) route: usize,
    pub(crate) backend: String,
    /// As the configuration, or the command line, names it.
    pub(crate) server: String,
    pub(crate) client: String,
    pub(crate) target: String,
    pub(crate) phase: Phase,
    /// The ends of the streams that the client and the target send.
    pub(crate) streams: [End; 2],
    pub(crate) began: Instant,
    pub(crate) used: Instant,
    /// To the target, and to the client.
    pub(crate) bytes: [u64; 2],
    pub(crate) units: Units,
}

/// How far the stream has come that a peer sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum End {
    Open,
    Draining,
    Ended,
}

impl Sessions {
    /// Calls `each` with what is known now of each session that all `filters` take. No lock is held then.
    pub(super) fn each_row(&self, filters: &[SessionFilter], mut each: impl FnMut(Row)) {
        let clocks = Clocks::now();
        self.visit(|some| {
            let rows = some.iter().map(|session| Row::of(session, clocks));
            rows.filter(|row| filters.iter().all(|filter| filter.takes(row)))
                .for_each(&mut each);
        });
    }

    /// What is known now of the session with this id, if there is one.
    pub(super) fn row_of(&self, id: u64) -> Option<Row> {
        let session = self.get(id).ok()?;
        Some(Row::of(&session, Clocks::now()))
    }
}

/// One moment by both clocks, so that sessions keep the order in which they were accepted.
#[derive(Clone, Copy)]
pub(super) struct Clocks {
    steady: Instant,
    of_day: SystemTime,
}

impl Clocks {
    pub(super) fn now() -> Self {
        Self {
            steady: Instant::now(),
            of_day: SystemTime::now(),
        }
    }

    fn time_of_day(self, then: Instant) -> String {
        let at = match self.steady.checked_duration_since(then) {
            Some(ago) => self.of_day.checked_sub(ago),
            None => self.of_day.checked_add(then - self.steady),
        };
        at.map(|at| humantime::format_rfc3339_millis(at).to_string())
            .unwrap_or_default()
    }
}

impl Row {
    fn of(session: &Session, clocks: Clocks) -> Self {
        let (mut row, pair) = {
            let facts = session.facts();
            let row = Self {
                id: session.id(),
                unique_id: facts.unique_id.as_deref().map(Into::into),
                listener: session.listener().into(),
                route: facts.route,
                client: facts.client_name(),
                peer: facts.peer.as_ref().map(ToString::to_string),
                server_name: facts
                    .server_name
                    .as_ref()
                    .map(|name| name.escape_debug().to_string()),
                backend: facts.backend.as_ref().map(|backend| backend.name().into()),
                server: facts.server.as_deref().map(Into::into),
                target: facts.wanted(),
                source: facts.source.as_ref().map(ToString::to_string),
                phase: session.phase(),
                client_stream: End::Open,
                target_stream: End::Open,
                engine: None,
                why_engine: "no server is connected yet".into(),
                accepted_at: String::new(),
                age_ms: 0.0,
                idle_ms: 0.0,
                client_to_target_bytes: facts.passed_on_bytes,
                target_to_client_bytes: 0,
                units: Units::default(),
            };
            (row, facts.pair.clone())
        };
        let mut moved_at = session.accepted_at();
        if session.keeps_messages() {
            let messages = pair.as_ref().map(Observer::messages).unwrap_or_default();
            row.units.client_to_target_messages = Some(messages.a_to_b);
            row.units.target_to_client_messages = Some(messages.b_to_a);
        }
        if let Some(pair) = pair {
            let (engine, why) = pair.engine();
            row.engine = Some(engine.as_str().into());
            row.why_engine = session.facts().why_engine(engine, &why);
            let moved = pair.counters();
            row.client_to_target_bytes += moved.a_to_b;
            row.target_to_client_bytes += moved.b_to_a;
            let mut streams = pair.streams().map(End::from);
            if session.is_echo() {
                // Its client gets the stream that it sends.
                streams[1] = streams[0];
            }
            [row.client_stream, row.target_stream] = streams;
            row.phase = Phase::of(streams);
            moved_at = pair.moved_at();
        }
        row.set_times(clocks, session.accepted_at(), moved_at);
        row
    }

    /// Of a session that its thread keeps to itself.
    pub(super) fn of_own(own: Own, clocks: Clocks) -> Self {
        let [client_stream, target_stream] = own.streams;
        let [client_to_target_bytes, target_to_client_bytes] = own.bytes;
        let mut row = Self {
            id: own.id,
            unique_id: None,
            listener: own.listener,
            route: Some(own.route),
            client: own.client,
            peer: None,
            server_name: None,
            backend: Some(own.backend),
            server: Some(own.server),
            target: own.target,
            source: None,
            phase: own.phase,
            client_stream,
            target_stream,
            engine: Some("copy".into()),
            why_engine: ONLY_COPY.into(),
            accepted_at: String::new(),
            age_ms: 0.0,
            idle_ms: 0.0,
            client_to_target_bytes,
            target_to_client_bytes,
            units: own.units,
        };
        row.set_times(clocks, own.began, own.used);
        row
    }

    fn set_times(&mut self, clocks: Clocks, accepted_at: Instant, moved_at: Instant) {
        let now = Instant::now();
        let milliseconds = |since: Instant| {
            let time = now.saturating_duration_since(since);
            time.as_micros() as f64 / 1000.0
        };
        self.age_ms = milliseconds(accepted_at);
        self.idle_ms = milliseconds(moved_at);
        self.accepted_at = clocks.time_of_day(accepted_at);
    }

    /// For tests: one that is half closed.
    #[cfg(test)]
    pub(crate) fn example(id: u64) -> Self {
        Self {
            id,
            unique_id: None,
            listener: "web".into(),
            route: Some(1),
            client: "[::1]:4711".into(),
            peer: None,
            server_name: None,
            backend: Some("b".into()),
            server: None,
            target: "192.0.2.1:80".into(),
            source: Some("192.0.2.9:40000".into()),
            phase: Phase::HalfClosed,
            client_stream: End::Ended,
            target_stream: End::Open,
            engine: Some("copy".into()),
            why_engine: "asked for by name".into(),
            accepted_at: String::new(),
            age_ms: 0.0,
            idle_ms: 0.0,
            client_to_target_bytes: 0,
            target_to_client_bytes: 0,
            units: Units::default(),
        }
    }
}

impl Phase {
    /// That of a session whose streams have come so far.
    pub(crate) fn of(streams: [End; 2]) -> Self {
        match streams {
            [End::Ended, End::Ended] => Self::Ended,
            [End::Ended, _] | [_, End::Ended] => Self::HalfClosed,
            [End::Draining, _] | [_, End::Draining] => Self::Draining,
            [End::Open, End::Open] => Self::Relaying,
        }
    }
}

impl From<Stream> for End {
    fn from(stream: Stream) -> Self {
        match stream {
            Stream::Open => Self::Open,
            Stream::Draining => Self::Draining,
            Stream::Ended => Self::Ended,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_phase_of_a_pair_follows_from_its_streams() {
        let (open, draining, ended) = (End::Open, End::Draining, End::Ended);
        for (one, other, expected) in [
            (open, open, Phase::Relaying),
            (open, draining, Phase::Draining),
            (draining, draining, Phase::Draining),
            (open, ended, Phase::HalfClosed),
            // Half of it is over, and that says more.
            (draining, ended, Phase::HalfClosed),
            (ended, ended, Phase::Ended),
        ] {
            assert_eq!(Phase::of([one, other]), expected);
            assert_eq!(Phase::of([other, one]), expected);
        }
    }

    /// What programs read and what people type are the same words.
    #[test]
    fn the_words_of_phases_are_those_of_the_json() {
        for phase in [
            Phase::Deciding,
            Phase::Queued,
            Phase::Connecting,
            Phase::Relaying,
            Phase::Draining,
            Phase::HalfClosed,
            Phase::Ended,
        ] {
            assert_eq!(serde_json::json!(phase), phase.word());
        }
    }
}
