//! What is written to the access log, and where it is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser as _};

use crate::log_field::{Field, Fields};

/// As options of a command, and as keys of a configuration.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessLogArgs {
    /// Write one line of JSON to this file or FIFO for every connection that has ended. SIGUSR1 reopens it.
    ///
    /// "-" is standard output. "syslog" sends to /dev/log, "journald" to the journal, each with ":unix:/PATH" behind it
    /// to another socket. "syslog:local3" has another facility than local0.
    #[arg(
        id = "access_log",
        long = "access-log",
        value_name = "PATH|-|syslog|journald",
        value_parser = OsStringValueParser::new().try_map(LogPlace::parse)
    )]
    pub(crate) place: Option<LogPlace>,

    /// Write only these fields to the access log, in this order [default: all].
    #[arg(
        id = "access_log_fields",
        long = "access-log-fields",
        value_name = "FIELD,...",
        value_parser = fields,
        requires = "access_log"
    )]
    pub(crate) fields: Option<Fields>,

    /// Write a line to the access log also when a connection has reached its target. The field "event" is "start" or
    /// "end".
    #[arg(
        id = "access_log_start",
        long = "access-log-start",
        requires = "access_log"
    )]
    pub(crate) starts: bool,
}

/// Where a log is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum LogPlace {
    File(PathBuf),
    StandardOutput,
    /// A socket of a syslog daemon.
    Syslog {
        socket: PathBuf,
        /// As RFC 5424 numbers them.
        facility: u8,
    },
    /// A socket of the journal.
    Journald(PathBuf),
}

/// The socket of the syslog daemon, on every Linux (syslog(3)).
const SYSLOG_SOCKET: &str = "/dev/log";

/// The socket of the journal (systemd-journald.service(8)). A journal of a namespace has another one.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";

/// The facilities that a daemon may have, and their numbers (RFC 5424, table 1).
const FACILITIES: [(&str, u8); 10] = [
    ("local0", 16),
    ("local1", 17),
    ("local2", 18),
    ("local3", 19),
    ("local4", 20),
    ("local5", 21),
    ("local6", 22),
    ("local7", 23),
    ("daemon", 3),
    ("user", 1),
];

/// "local0"
const DEFAULT_FACILITY: u8 = 16;

impl AccessLogArgs {
    /// # Errors
    /// Why lines could not be told apart.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        let fields = self.fields.as_ref();
        match fields.filter(|fields| self.starts && !fields.contains(Field::Event)) {
            Some(_) => Err(
                "the access log has lines of starts, and its fields lack \"event\", which tells them from those of ends; add it",
            ),
            None => Ok(()),
        }
    }
}

impl LogPlace {
    /// # Errors
    /// What is wrong with `text`.
    pub(crate) fn parse(text: OsString) -> Result<Self, String> {
        if text.is_empty() {
            return Err("it is empty; write a path, -, syslog or journald".into());
        }
        let words = text.to_str().unwrap_or_default();
        let (receiver, rest) = words.split_once(':').unwrap_or((words, ""));
        match receiver {
            "-" if words == "-" => Ok(Self::StandardOutput),
            "syslog" => syslog(words, rest),
            "journald" if words == "journald" => Ok(Self::Journald(JOURNAL_SOCKET.into())),
            "journald" => match socket(rest) {
                Some(path) => Ok(Self::Journald(path)),
                None => Err("write journald or journald:unix:/PATH".into()),
            },
            _ => Ok(Self::File(text.into())),
        }
    }

    /// The place with the path of a file completed: a relative one is below `directory`.
    pub(crate) fn below(self, directory: &Path) -> Self {
        match self {
            Self::File(path) => Self::File(directory.join(path)),
            other => other,
        }
    }
}

/// Of `rest`, behind the colon of `words`: a facility, a socket, or both.
fn syslog(words: &str, rest: &str) -> Result<LogPlace, String> {
    const REMEDY: &str =
        "write syslog, syslog:FACILITY, syslog:unix:/PATH or syslog:FACILITY:unix:/PATH";
    let place = |socket: PathBuf, facility| LogPlace::Syslog { socket, facility };
    if words == "syslog" {
        return Ok(place(SYSLOG_SOCKET.into(), DEFAULT_FACILITY));
    }
    if let Some(path) = socket(rest) {
        return Ok(place(path, DEFAULT_FACILITY));
    }
    if rest == "unix" || rest.starts_with("unix:") {
        return Err(format!(
            "{rest:?} is no socket, which has a path from the root on; {REMEDY}"
        ));
    }
    let (name, rest) = match rest.split_once(':') {
        Some((name, rest)) => (name, Some(rest)),
        None => (rest, None),
    };
    let Some((_, facility)) = FACILITIES.into_iter().find(|(known, _)| *known == name) else {
        let known: Vec<_> = FACILITIES.into_iter().map(|(name, _)| name).collect();
        return Err(format!(
            "{name:?} is no facility of a daemon; {REMEDY}, where FACILITY is one of {}",
            known.join(", ")
        ));
    };
    match rest.map(socket) {
        None => Ok(place(SYSLOG_SOCKET.into(), facility)),
        Some(Some(path)) => Ok(place(path, facility)),
        Some(None) => Err(REMEDY.into()),
    }
}

fn socket(text: &str) -> Option<PathBuf> {
    let path = text.strip_prefix("unix:")?;
    path.starts_with('/').then(|| path.into())
}

/// The fields of a list with commas.
fn fields(text: &str) -> Result<Fields, String> {
    let field = |name: &str| {
        let found = Field::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, field)| field).ok_or_else(|| {
            let known: Vec<_> = Field::ALL.into_iter().map(|(name, _)| name).collect();
            format!("there is no field {name:?}; choose of {}", known.join(", "))
        })
    };
    let list: Result<_, _> = text.split(',').map(|name| field(name.trim())).collect();
    Fields::of(list?).map_err(|field| format!("{field} is there twice; leave one out"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_file_unless_it_is_a_receiver() {
        let file = |path: &str| Ok(LogPlace::File(path.into()));
        let syslog = |socket: &str, facility| {
            let socket = socket.into();
            Ok(LogPlace::Syslog { socket, facility })
        };
        for (text, expected) in [
            ("a.log", file("a.log")),
            ("/var/log/a:b", file("/var/log/a:b")),
            ("./syslog", file("./syslog")),
            ("syslogs", file("syslogs")),
            ("-", Ok(LogPlace::StandardOutput)),
            ("-:a", file("-:a")),
            ("syslog", syslog("/dev/log", 16)),
            ("syslog:local7", syslog("/dev/log", 23)),
            ("syslog:unix:/a:b", syslog("/a:b", 16)),
            ("syslog:daemon:unix:/a", syslog("/a", 3)),
            ("journald", Ok(LogPlace::Journald(JOURNAL_SOCKET.into()))),
            ("journald:unix:/j", Ok(LogPlace::Journald("/j".into()))),
        ] {
            assert_eq!(LogPlace::parse(text.into()), expected, "{text}");
        }
        for (text, part) in [
            ("", "is empty"),
            ("syslog:", "is no facility"),
            ("syslog:kern", "local0"),
            ("syslog:unix:a", "syslog:unix:/PATH"),
            (
                "syslog:unix:",
                "\"unix:\" is no socket, which has a path from the root on; write syslog",
            ),
            ("syslog:unix", "\"unix\" is no socket"),
            ("syslog:local1:a", "syslog:unix:/PATH"),
            ("journald:", "journald:unix:/PATH"),
            ("journald:unix:a", "journald:unix:/PATH"),
        ] {
            let why = LogPlace::parse(text.into()).expect_err(text);
            assert!(why.contains(part), "{text}: {why}");
        }
    }

    #[test]
    fn only_files_are_below_a_directory() {
        let below = |text: &str| LogPlace::parse(text.into()).map(|it| it.below("/d".as_ref()));
        assert_eq!(below("a"), Ok(LogPlace::File("/d/a".into())));
        assert_eq!(below("/a"), Ok(LogPlace::File("/a".into())));
        assert_eq!(below("-"), Ok(LogPlace::StandardOutput));
    }

    #[test]
    fn fields_keep_their_order() {
        let chosen = fields("client, time").expect("two fields");
        let chosen: Vec<_> = chosen.iter().collect();
        assert_eq!(chosen, [Field::Client, Field::Time]);
        let why = fields("time,colour").expect_err("no such field");
        assert!(
            why.contains("\"colour\"") && why.contains("why_engine"),
            "{why}"
        );
        let why = fields("time,time").expect_err("twice");
        assert!(why.contains("time is there twice"), "{why}");
    }
}
