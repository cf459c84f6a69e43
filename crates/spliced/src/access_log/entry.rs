//! A line of the access log.

use std::fmt::Display;
use std::time::{Duration, SystemTime};

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};
use splice::EngineName;

use crate::log_field::{Field, Fields};

/// What is known of a session at its start or its end. Only the fields that the log has are put into words.
pub(crate) struct Entry<'a> {
    pub(crate) event: Event,
    /// Counts the sessions of this process from 1.
    pub(crate) id: u64,
    /// What a PROXY header names it, escaped.
    pub(crate) unique_id: Option<&'a str>,
    pub(crate) listener: &'a str,
    /// The route that took the client: its number in the listener, from 1.
    pub(crate) route: Option<usize>,
    pub(crate) client: &'a dyn Display,
    /// Whose connection it is, if that is not the client itself.
    pub(crate) peer: Option<&'a dyn Display>,
    pub(crate) target: &'a dyn Display,
    /// The name that the client asked for, escaped.
    pub(crate) server_name: Option<&'a str>,
    /// What a member of a mesh is called, escaped.
    pub(crate) name: Option<&'a str>,
    pub(crate) backend: Option<&'a str>,
    /// The server that was tried last, as the configuration names it.
    pub(crate) server: Option<&'a str>,
    pub(crate) engine: Option<&'static str>,
    /// Never empty.
    pub(crate) why_engine: &'a str,
    /// To the target, and to the client.
    pub(crate) moved: Option<[Moved; 2]>,
    pub(crate) outcome: Option<&'a str>,
    pub(crate) lasted: Option<Duration>,
}

/// Why sockets that are no streams of TCP or UNIX have no other engine than `copy`.
pub(crate) const ONLY_COPY: &str = "no other engine takes its kind of socket";

/// What a line tells of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The target is reached.
    Start,
    /// It is over, whether or not a target was reached.
    End,
}

impl Event {
    fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::End => "end",
        }
    }
}

/// What went one way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    pub(crate) bytes: u64,
    /// Of sockets with boundaries.
    pub(crate) datagrams: Option<u64>,
    pub(crate) dropped: Option<u64>,
    pub(crate) messages: Option<u64>,
}

impl Moved {
    pub(crate) fn bytes(bytes: u64) -> Self {
        Self {
            bytes,
            ..Self::default()
        }
    }
}

/// These fields of an entry.
pub(super) struct Line<'a> {
    pub(super) entry: &'a Entry<'a>,
    pub(super) fields: &'a Fields,
}

impl Serialize for Line<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for field in self.fields.iter() {
            if let Some(value) = self.entry.value(field) {
                map.serialize_entry(&field, &value)?;
            }
        }
        map.end()
    }
}

/// What a field of one line says.
enum Value<'a> {
    Text(&'a str),
    Shown(&'a dyn Display),
    Number(u64),
    Time(SystemTime),
    Milliseconds(Duration),
    Null,
}

impl<'a> Entry<'a> {
    /// Of a relay with one server and no routes, which copies what passes. With an outcome it is the end.
    pub(crate) fn copied(
        id: u64,
        listener: &'a str,
        server: &'a str,
        outcome: Option<&'a str>,
    ) -> Self {
        Self {
            event: match outcome {
                Some(_) => Event::End,
                None => Event::Start,
            },
            id,
            unique_id: None,
            listener,
            route: Some(1),
            client: &"",
            peer: None,
            target: &"",
            server_name: None,
            name: None,
            backend: Some(server),
            server: Some(server),
            engine: Some(EngineName::Copy.as_str()),
            why_engine: ONLY_COPY,
            moved: None,
            outcome,
            lasted: None,
        }
    }

    /// `None`: the line does not have this field.
    fn value(&self, field: Field) -> Option<Value<'_>> {
        use Value::{Milliseconds, Null, Number, Shown, Text, Time};
        Some(match field {
            Field::Time => Time(SystemTime::now()),
            Field::Event => Text(self.event.word()),
            Field::Id => Number(self.id),
            Field::UniqueId => Text(self.unique_id?),
            Field::Listener => Text(self.listener),
            Field::Route => Number(self.route? as u64),
            Field::Client => Shown(self.client),
            Field::Peer => Shown(self.peer?),
            Field::Target => Shown(self.target),
            Field::ServerName => Text(self.server_name?),
            Field::Name => Text(self.name?),
            Field::Backend => Text(self.backend?),
            Field::Server => Text(self.server?),
            Field::Engine => self.engine.map_or(Null, Text),
            Field::WhyEngine => Text(self.why_engine),
            Field::ClientToTargetDatagrams => Number(self.moved?[0].datagrams?),
            Field::ClientToTargetBytes => Number(self.moved?[0].bytes),
            Field::ClientToTargetDropped => Number(self.moved?[0].dropped?),
            Field::TargetToClientDatagrams => Number(self.moved?[1].datagrams?),
            Field::TargetToClientBytes => Number(self.moved?[1].bytes),
            Field::TargetToClientDropped => Number(self.moved?[1].dropped?),
            Field::ClientToTargetMessages => Number(self.moved?[0].messages?),
            Field::TargetToClientMessages => Number(self.moved?[1].messages?),
            Field::Outcome => Text(self.outcome?),
            Field::DurationMs => Milliseconds(self.lasted?),
        })
    }
}

impl Serialize for Value<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Text(text) => serializer.serialize_str(text),
            Self::Shown(shown) => serializer.collect_str(shown),
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Time(time) => serializer.collect_str(&humantime::format_rfc3339_millis(*time)),
            // To the microsecond.
            Self::Milliseconds(time) => serializer.serialize_f64(time.as_micros() as f64 / 1000.0),
            Self::Null => serializer.serialize_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever is in them, a line is one, and tells what was in them.
    #[test]
    fn hostile_values_stay_one_line_of_json() {
        const EVIL: &str = "a\"b\\c\r\n\0\u{1b}[31m\u{7f}\u{2028}\u{202e}{\"id\":7}";
        let entry = Entry {
            unique_id: Some(EVIL),
            client: &EVIL,
            peer: Some(&EVIL),
            target: &EVIL,
            server_name: Some(EVIL),
            name: Some(EVIL),
            why_engine: EVIL,
            lasted: Some(Duration::from_micros(1_500)),
            ..Entry::copied(1, EVIL, EVIL, Some(EVIL))
        };
        let fields = &Fields::all(true);
        let line = Line {
            entry: &entry,
            fields,
        };
        let line = serde_json::to_string(&line).expect("JSON");
        assert!(!line.contains(|byte: char| byte.is_ascii_control() && byte != '\u{7f}'));
        let read: serde_json::Value = serde_json::from_str(&line).expect("one value");
        for name in [
            "unique_id",
            "listener",
            "client",
            "peer",
            "target",
            "server_name",
            "name",
            "backend",
            "server",
            "why_engine",
            "outcome",
        ] {
            assert_eq!(read[name], EVIL, "{name}");
        }
        assert_eq!(read["id"], 1);
        assert_eq!(read["duration_ms"], 1.5);
    }
}
