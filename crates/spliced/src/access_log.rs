//! The access log: one line of JSON for every connection that has ended.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::log_file::LogFile;
use crate::log_queue::{LogQueue, Reporter};

/// A connection that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct Entry<'a> {
    /// When it ended, RFC 3339 in UTC.
    pub(crate) time: String,
    /// Counts the connections of this process from 1.
    pub(crate) id: u64,
    /// What a PROXY header names it, escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unique_id: Option<&'a str>,
    pub(crate) client: String,
    pub(crate) target: String,
    /// The name that the client asked for, escaped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) server_name: Option<String>,
    pub(crate) engine: Option<&'static str>,
    pub(crate) why_engine: String,
    pub(crate) client_to_target_bytes: u64,
    pub(crate) target_to_client_bytes: u64,
    pub(crate) outcome: String,
    pub(crate) duration_ms: f64,
}

impl Entry<'_> {
    pub(crate) fn now() -> String {
        humantime::format_rfc3339_millis(SystemTime::now()).to_string()
    }

    /// Milliseconds, to the microsecond.
    pub(crate) fn milliseconds(duration: Duration) -> f64 {
        duration.as_micros() as f64 / 1000.0
    }
}

/// The access log. A thread of its own writes the lines.
#[derive(Clone, Debug)]
pub(crate) struct AccessLog {
    queue: LogQueue,
    name: Name,
}

/// The log's path (`-`: standard output).
#[derive(Clone, Debug)]
struct Name(PathBuf);

impl AccessLog {
    /// Opens `path` for appending (`-`: standard output).
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = Name(path.into());
        let file = if name.is_stdout() {
            LogFile::standard_stream(&io::stdout())
        } else {
            LogFile::open(path)
        };
        let file = file.with_context(|| {
            format!("the access log {name} cannot be opened; check the path and its permissions")
        })?;
        let queue = LogQueue::start("access-log", file, name.clone())
            .context("cannot start the access log's thread")?;
        Ok(Self { queue, name })
    }

    /// Adds an entry, and never waits for the disk or a reader.
    pub(crate) fn write(&self, entry: &impl Serialize) {
        // It has no map whose keys could not be written, and memory does not fail.
        let Ok(mut line) = serde_json::to_vec(entry) else {
            return;
        };
        line.push(b'\n');
        self.queue.push(line);
    }

    /// Reopens the file after logrotate has renamed it.
    pub(crate) fn reopen(&self) {
        if self.name.is_stdout() {
            tracing::info!("the access log is standard output and stays open");
        } else {
            self.queue.reopen();
        }
    }

    /// How many lines were dropped so far.
    pub(crate) fn dropped(&self) -> u64 {
        self.queue.lost_so_far()
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
    fn is_stdout(&self) -> bool {
        self.0 == Path::new("-")
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_stdout() {
            f.write_str("standard output")
        } else {
            self.0.display().fmt(f)
        }
    }
}

impl Reporter for Name {
    fn failed(&mut self, error: &io::Error) {
        tracing::error!(
            "the access log cannot be written: {error}; make room or move it ({self}). Up to {} \
             lines wait, further ones are dropped and counted",
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
                "the access log ({self}) cannot be opened again: {error}; going on with the file \
                 that was open before"
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
