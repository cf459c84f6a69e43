//! Diagnostics on stderr. A thread of its own writes them, so that a stalled reader of stderr blocks
//! nothing.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::cli::Level;
use crate::log_file::LogFile;
use crate::log_queue::{LogQueue, Reporter};

/// How long the program waits at its end for a log that is not being read: long enough for any reader
/// that still reads, short enough for an operator who waits.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// The log on stderr.
#[derive(Clone, Debug)]
pub(crate) struct Diagnostics(LogQueue);

impl Diagnostics {
    /// Sends events of `level` and above to stderr from now on.
    pub(crate) fn start(level: Level) -> Result<Self> {
        let stderr = io::stderr();
        let queue = LogFile::standard_stream(&stderr)
            .and_then(|file| LogQueue::start("stderr", file, Stderr))
            .context("cannot start the thread that writes to stderr; raise the limits")?;
        let diagnostics = Self(queue);
        tracing_subscriber::fmt()
            .with_max_level(match level {
                Level::Off => LevelFilter::OFF,
                Level::Error => LevelFilter::ERROR,
                Level::Warn => LevelFilter::WARN,
                Level::Info => LevelFilter::INFO,
                Level::Debug => LevelFilter::DEBUG,
                Level::Trace => LevelFilter::TRACE,
            })
            .with_writer(diagnostics.clone())
            .with_ansi(stderr.is_terminal())
            .with_target(false)
            // It would write to stderr directly, and block on its reader.
            .log_internal_errors(false)
            .finish()
            .with(filter_fn(move |metadata| {
                // It warns of each wrong packet, and whoever may send some could fill the log.
                level >= Level::Debug || !metadata.target().starts_with("hickory")
            }))
            .init();
        Ok(diagnostics)
    }

    /// Writes why the program failed, after everything that was logged before.
    pub(crate) fn say(&self, sentence: &str) {
        self.0.push(format!("spliced: {sentence}\n").into_bytes());
    }

    /// Waits until everything is written, at most for [`LAST_WORDS`].
    pub(crate) fn finish(&self) {
        // Lost lines cannot be reported any more.
        let _ = self.0.finish(LAST_WORDS);
    }
}

impl<'a> MakeWriter<'a> for Diagnostics {
    type Writer = Event<'a>;

    fn make_writer(&'a self) -> Event<'a> {
        Event(&self.0)
    }
}

/// A writer for the line of one event, which arrives in one piece.
#[derive(Debug)]
pub(crate) struct Event<'a>(&'a LogQueue);

impl Write for Event<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Reports on stderr about itself: a failure cannot be reported, but a line says how many lines are
/// missing once it works again.
struct Stderr;

impl Reporter for Stderr {
    fn failed(&mut self, _error: &io::Error) {}

    fn recovered(&mut self, lost: u64) -> Option<Vec<u8>> {
        // Not an event, which would be queued behind newer lines and could be dropped itself.
        let time = humantime::format_rfc3339_micros(SystemTime::now());
        (lost > 0).then(|| {
            format!("{time}  WARN {lost} lines were lost here: stderr was not being read\n")
                .into_bytes()
        })
    }

    fn reopened(&mut self, _result: io::Result<()>) {}
}
