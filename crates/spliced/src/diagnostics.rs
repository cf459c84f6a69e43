//! Diagnostics: what the program says on stderr, written by a thread of its own so that nobody waits
//! for a reader of stderr that has stalled.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::Level;
use crate::log_file::LogFile;
use crate::log_queue::{LogQueue, Reporter};

/// How long the end of the program waits for a log that is not being read: long for a reader that
/// reads at all, short for an operator who waits.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// The way to stderr.
#[derive(Clone, Debug)]
pub(crate) struct Diagnostics(LogQueue);

impl Diagnostics {
    /// From now on events of `level` and above go to stderr.
    pub(crate) fn start(level: Level) -> Result<Self> {
        let stderr = io::stderr();
        let queue = LogFile::standard_stream(&stderr)
            .and_then(|file| LogQueue::start("stderr", file, Stderr))
            .context("the thread that writes to stderr cannot be started; raise the limits")?;
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
            // It would print to stderr by itself, and wait for its reader.
            .log_internal_errors(false)
            .init();
        Ok(diagnostics)
    }

    /// Says why the program failed, behind everything that was logged before.
    pub(crate) fn say(&self, sentence: &str) {
        self.0.push(format!("spliced: {sentence}\n").into_bytes());
    }

    /// Waits until everything is written, for [`LAST_WORDS`] at most.
    pub(crate) fn finish(&self) {
        // There is nobody left to tell of lines that were lost.
        let _ = self.0.finish(LAST_WORDS);
    }
}

impl<'a> MakeWriter<'a> for Diagnostics {
    type Writer = Event<'a>;

    fn make_writer(&'a self) -> Event<'a> {
        Event(&self.0)
    }
}

/// An event's line, which comes in one piece.
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

/// The diagnostics' own log: nobody can be told that it fails, but where it goes on says what it lost.
struct Stderr;

impl Reporter for Stderr {
    fn failed(&mut self, _error: &io::Error) {}

    fn recovered(&mut self, lost: u64) -> Option<Vec<u8>> {
        // Not an event: it would come behind lines that are newer, and could be dropped in turn.
        let time = humantime::format_rfc3339_micros(SystemTime::now());
        (lost > 0).then(|| {
            format!("{time}  WARN {lost} lines were lost here: stderr was not being read\n")
                .into_bytes()
        })
    }

    fn reopened(&mut self, _result: io::Result<()>) {}
}
