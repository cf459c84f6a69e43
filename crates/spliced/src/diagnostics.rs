//! Diagnostics on stderr, one line for each event. A thread of its own writes them, so that a stalled reader of stderr
//! blocks nothing.

use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use tracing::Metadata;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::{FilterFn, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt, registry, reload};

use crate::journal_stream;
use crate::log_file::LogFile;
use crate::log_level::Level;
use crate::log_queue::{LogQueue, Reporter};
use crate::log_state;

/// How long the program waits at its end for a log that is not being read: long enough for any reader
/// that still reads, short enough for an operator who waits.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// The log on stderr.
#[derive(Clone, Debug)]
pub(crate) struct Diagnostics {
    queue: LogQueue,
    /// The journal reads stderr. It has the time and the priority of each line itself.
    is_journal: bool,
    /// Whoever changes it holds the lock.
    level: Arc<Mutex<Level>>,
    filter: reload::Handle<Filter, Registry>,
}

/// Which events are logged. Each place that logs something knows the answer until it changes.
type Filter = FilterFn<Box<dyn Fn(&Metadata<'_>) -> bool + Send + Sync>>;

impl Diagnostics {
    /// Sends events of `level` and above to stderr from now on.
    pub(crate) fn start(level: Level) -> Result<Self> {
        let stderr = io::stderr();
        let is_journal = journal_stream::has_stderr();
        let queue = LogFile::standard_stream(&stderr)
            .and_then(|file| {
                LogQueue::telling(
                    log_state::of("stderr"),
                    "stderr",
                    file,
                    Stderr { is_journal },
                )
            })
            .context("cannot start the thread that writes to stderr; raise the limits")?;
        let (layer, filter) = reload::Layer::new(filter(level));
        let diagnostics = Self {
            queue,
            is_journal,
            level: Arc::new(Mutex::new(level)),
            filter,
        };
        let lines = fmt::layer()
            .with_writer(diagnostics.clone())
            .with_ansi(stderr.is_terminal())
            .with_target(false)
            // It would write to stderr directly, and block on its reader.
            .log_internal_errors(false);
        let lines = match is_journal {
            true => lines.with_level(false).without_time().boxed(),
            false => lines.boxed(),
        };
        registry().with(layer).with(lines).init();
        Ok(diagnostics)
    }

    /// The level, after a change to `wanted` if somebody has asked for that, `by` name.
    ///
    /// # Errors
    /// If a thread has panicked in the middle of a change.
    pub(crate) fn answer(&self, wanted: Option<Level>, by: &str) -> Result<Value> {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(wanted) = wanted {
            let sentence = format!(
                "the log level is {} from now on, and was {}: set by {by}",
                wanted.name(),
                level.name()
            );
            // At the level that logs more of the two.
            if wanted < *level {
                log(*level, &sentence);
            }
            self.filter
                .reload(filter(wanted))
                .context("cannot change the log level; restart the process")?;
            if wanted >= *level {
                log(wanted, &sentence);
            }
            *level = wanted;
        }
        Ok(json!({ "level": level.name() }))
    }

    /// Writes why the program failed, after everything that was logged before: for people, who get a list of mistakes as
    /// lines.
    pub(crate) fn say(&self, sentence: &str) {
        let text = format!("spliced: {sentence}");
        let lines = text.lines().map(|line| match self.is_journal {
            // It takes each line for an entry.
            true => format!("{}{line}\n", journal_stream::prefix(tracing::Level::ERROR)),
            false => format!("{line}\n"),
        });
        self.queue.push(lines.collect::<String>().into_bytes());
    }

    /// Waits until everything is written, at most for [`LAST_WORDS`].
    pub(crate) fn finish(&self) {
        // Lost lines cannot be reported any more.
        let _ = self.queue.finish(LAST_WORDS);
    }
}

impl<'a> MakeWriter<'a> for Diagnostics {
    type Writer = Event<'a>;

    fn make_writer(&'a self) -> Event<'a> {
        Event {
            queue: &self.queue,
            prefix: "",
        }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Event<'a> {
        let prefix = match self.is_journal {
            true => journal_stream::prefix(*metadata.level()),
            false => "",
        };
        Event {
            queue: &self.queue,
            prefix,
        }
    }
}

fn filter(level: Level) -> Filter {
    let most = match level {
        Level::Off => LevelFilter::OFF,
        Level::Error => LevelFilter::ERROR,
        Level::Warn => LevelFilter::WARN,
        Level::Info => LevelFilter::INFO,
        Level::Debug => LevelFilter::DEBUG,
        Level::Trace => LevelFilter::TRACE,
    };
    let is_logged = move |metadata: &Metadata<'_>| {
        // It warns of each wrong packet, and whoever may send some could fill the log.
        *metadata.level() <= most
            && (level >= Level::Debug || !metadata.target().starts_with("hickory"))
    };
    let is_logged: Box<dyn Fn(&Metadata<'_>) -> bool + Send + Sync> = Box::new(is_logged);
    filter_fn(is_logged).with_max_level_hint(most)
}

/// Logs information, or as much as `level` still lets through.
fn log(level: Level, sentence: &str) {
    match level {
        Level::Off => {}
        Level::Error => tracing::error!("{sentence}"),
        Level::Warn => tracing::warn!("{sentence}"),
        Level::Info | Level::Debug | Level::Trace => tracing::info!("{sentence}"),
    }
}

/// A writer for the line of one event, which arrives in one piece.
#[derive(Debug)]
pub(crate) struct Event<'a> {
    queue: &'a LogQueue,
    /// What the line begins with.
    prefix: &'static str,
}

impl Write for Event<'_> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        self.queue.push(one_line(self.prefix, event));
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// `event` as one line, whatever line feeds it has (in an error of the TOML reader, for one): whoever reads the log by
/// lines would take the rest for other events.
fn one_line(prefix: &str, event: &[u8]) -> Vec<u8> {
    let mut line = prefix.as_bytes().to_vec();
    for byte in event.trim_ascii() {
        match byte {
            b'\n' => line.extend(b"\\n"),
            byte => line.push(*byte),
        }
    }
    line.push(b'\n');
    line
}

/// Reports on stderr about itself: a failure cannot be reported, but a line says how many lines are
/// missing once it works again.
struct Stderr {
    is_journal: bool,
}

impl Reporter for Stderr {
    fn failed(&mut self, _error: &io::Error) {}

    fn recovered(&mut self, lost: u64) -> Option<Vec<u8>> {
        // Not an event, which would be queued behind newer lines and could be dropped itself.
        let begin = match self.is_journal {
            true => journal_stream::prefix(tracing::Level::WARN).into(),
            false => {
                let time = humantime::format_rfc3339_micros(SystemTime::now());
                format!("{time}  WARN ")
            }
        };
        (lost > 0).then(|| {
            format!("{begin}{lost} lines were lost here: stderr was not being read\n").into_bytes()
        })
    }

    fn reopened(&mut self, _result: io::Result<()>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_one_line() {
        for (event, line) in [
            ("a\n", "<4>a\n"),
            (" a\n  |\n1 | b\n\n", "<4>a\\n  |\\n1 | b\n"),
            ("\n", "<4>\n"),
        ] {
            assert_eq!(
                one_line("<4>", event.as_bytes()),
                line.as_bytes(),
                "{event:?}"
            );
        }
    }
}
