//! The access log: one line of JSON for every connection that has ended, and one for its start if somebody wants it.

mod entry;
mod journal;
mod socket;
mod syslog;

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};

use self::entry::Line;
pub(crate) use self::entry::{Entry, Event, Moved, ONLY_COPY};
use self::journal::Journal;
use self::syslog::Syslog;
use crate::access_log_args::{AccessLogArgs, LogPlace};
use crate::log_field::Fields;
use crate::log_file::LogFile;
use crate::log_queue::{LogQueue, Reporter};
use crate::log_sink::LogSink;
use crate::log_state;
use crate::printable::printable;

/// The access log. A thread of its own writes the lines.
#[derive(Clone, Debug)]
pub(crate) struct AccessLog {
    queue: LogQueue,
    name: Name,
    fields: Arc<Fields>,
    starts: bool,
}

/// Where it is, for messages.
#[derive(Clone, Debug)]
struct Name(Arc<LogPlace>);

impl AccessLog {
    /// Opens the log that `args` ask for, if they do.
    ///
    /// # Errors
    /// If it cannot be opened, or no thread started.
    pub(crate) fn of(args: &AccessLogArgs) -> Result<Option<Self>> {
        let Some(place) = &args.place else {
            return Ok(None);
        };
        Ok(Some(Self::open(place)?.with(args)))
    }

    /// Opens the log at `place`, with all fields.
    ///
    /// # Errors
    /// If it cannot be opened, or no thread started. A receiver that does not run yet is no error.
    pub(crate) fn open(place: &LogPlace) -> Result<Self> {
        let name = Name(Arc::new(place.clone()));
        let queue = match place {
            LogPlace::File(path) => name.start(name.opened(LogFile::open(path))?),
            LogPlace::StandardOutput => {
                name.start(name.opened(LogFile::standard_stream(&io::stdout()))?)
            }
            LogPlace::Syslog { socket, facility } => name.start(Syslog::new(socket, *facility)),
            LogPlace::Journald(socket) => name.start(Journal::new(socket)),
        };
        Ok(Self {
            queue: queue.context("cannot start the access log's thread")?,
            name,
            fields: Arc::new(Fields::all(false)),
            starts: false,
        })
    }

    /// The same log with the lines that `args` ask for.
    pub(crate) fn with(&self, args: &AccessLogArgs) -> Self {
        let all = || Fields::all(args.starts);
        Self {
            fields: Arc::new(args.fields.clone().unwrap_or_else(all)),
            starts: args.starts,
            ..self.clone()
        }
    }

    /// Whether it has a line for each start.
    pub(crate) fn has_starts(&self) -> bool {
        self.starts
    }

    /// Adds a line, and never waits for the disk or a reader.
    pub(crate) fn write(&self, entry: &Entry<'_>) {
        let line = Line {
            entry,
            fields: &self.fields,
        };
        // Its keys are strings, and memory does not fail.
        let Ok(mut line) = serde_json::to_vec(&line) else {
            return;
        };
        line.push(b'\n');
        self.queue.push(line);
    }

    /// Reopens the file after logrotate has renamed it, or the socket.
    pub(crate) fn reopen(&self) {
        match *self.name.0 {
            LogPlace::StandardOutput => {
                tracing::info!("the access log is standard output and stays open");
            }
            _ => self.queue.reopen(),
        }
    }

    /// Whether everything is written, and nobody else may write more.
    pub(crate) fn is_over(&self) -> bool {
        self.queue.is_over()
    }

    /// Waits until all entries are written, at most for `time`.
    pub(crate) fn finish(&self, time: Duration) {
        let finished = self.queue.finish(time);
        if finished.lost > 0 {
            let why = if finished.stalled {
                "its reader does not read"
            } else {
                "it cannot be written"
            };
            tracing::warn!(
                "the access log ({}) lost its last {}: {why}",
                self.name,
                lines(finished.lost)
            );
        }
    }
}

impl fmt::Display for AccessLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.name.fmt(f)
    }
}

impl Name {
    fn start(&self, sink: impl LogSink) -> io::Result<LogQueue> {
        let state = log_state::of(&self.to_string());
        LogQueue::telling(state, "access-log", sink, self.clone())
    }

    fn opened(&self, file: io::Result<LogFile>) -> Result<LogFile> {
        file.with_context(|| {
            format!("the access log {self} cannot be opened; check the path and its permissions")
        })
    }

    /// What helps if nothing can be written.
    fn remedy(&self, error: &io::Error) -> &'static str {
        let is_stdout = matches!(*self.0, LogPlace::StandardOutput);
        match *self.0 {
            LogPlace::File(_) | LogPlace::StandardOutput => match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "make room or move it",
                ErrorKind::FileTooLarge => "rotate it or move it",
                ErrorKind::BrokenPipe if is_stdout => {
                    "its reader is gone: restart this process with one, or move it"
                }
                ErrorKind::BrokenPipe => "its reader is gone: start one, or move it",
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
                    "let this process write there, or move it"
                }
                _ => "see to its disk, or move it",
            },
            LogPlace::Syslog { .. } => "start the syslog daemon or move it",
            LogPlace::Journald(_) => "start systemd-journald or move it",
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.0 {
            LogPlace::File(path) => f.write_str(&shown(path)),
            LogPlace::StandardOutput => f.write_str("standard output"),
            LogPlace::Syslog { socket, .. } => write!(f, "syslog at {}", shown(socket)),
            LogPlace::Journald(socket) => write!(f, "the journal at {}", shown(socket)),
        }
    }
}

/// A path in one line.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

impl Reporter for Name {
    fn failed(&mut self, error: &io::Error) {
        tracing::error!(
            "the access log cannot be written: {error}; {} ({self}). Up to {} lines wait, further ones are \
             dropped and counted",
            self.remedy(error),
            LogQueue::CAPACITY_LINES
        );
    }

    fn recovered(&mut self, lost: u64) -> Option<Vec<u8>> {
        tracing::warn!(
            "the access log ({self}) is being written again; {} lost",
            match lost {
                0 => "no line was".into(),
                1 => "1 line was".into(),
                lost => format!("{lost} lines were"),
            }
        );
        None
    }

    fn reopened(&mut self, result: io::Result<()>) {
        match result {
            Ok(()) => tracing::info!("the access log ({self}) was opened again"),
            Err(error) => tracing::warn!(
                "the access log ({self}) cannot be opened again: {error}; going on with \
                 what was open before"
            ),
        }
    }
}

fn lines(count: u64) -> String {
    match count {
        1 => "line".into(),
        count => format!("{count} lines"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_log_is_one_line() {
        let name = Name(Arc::new(LogPlace::File("/var/log/a\n".into())));
        assert_eq!(name.to_string(), "/var/log/a\\n");
    }

    #[test]
    fn the_remedy_is_one_for_the_error() {
        let remedy = |place: LogPlace, errno: i32| {
            Name(Arc::new(place)).remedy(&io::Error::from_raw_os_error(errno))
        };
        let file = || LogPlace::File("a".into());
        for (place, errno, words) in [
            (file(), 28, "make room or move it"),
            (LogPlace::StandardOutput, 28, "make room or move it"),
            (file(), 32, "its reader is gone: start one, or move it"),
            (
                LogPlace::StandardOutput,
                32,
                "its reader is gone: restart this process with one, or move it",
            ),
            (file(), 30, "let this process write there, or move it"),
            (file(), 27, "rotate it or move it"),
            (file(), 5, "see to its disk, or move it"),
            (
                LogPlace::Journald("/j".into()),
                32,
                "start systemd-journald or move it",
            ),
        ] {
            assert_eq!(remedy(place, errno), words);
        }
    }
}
