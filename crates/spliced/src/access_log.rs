//! The access log: one JSON object a line for every connection that has ended.

use std::fs::OpenOptions;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::Serialize;

/// Lines that may wait for the disk. When it is full the relay waits: a line is not lost.
const WAITING_LINES: usize = 16 * 1024;

/// A connection that has ended.
#[derive(Debug, Serialize)]
pub(crate) struct Entry {
    /// When it ended, RFC 3339 in UTC.
    pub(crate) time: String,
    /// Counts the connections of this process from 1.
    pub(crate) id: u64,
    pub(crate) client: String,
    pub(crate) target: String,
    pub(crate) engine: Option<&'static str>,
    pub(crate) why_engine: String,
    pub(crate) client_to_target_bytes: u64,
    pub(crate) target_to_client_bytes: u64,
    pub(crate) outcome: String,
    pub(crate) duration_ms: f64,
}

impl Entry {
    pub(crate) fn now() -> String {
        humantime::format_rfc3339_millis(SystemTime::now()).to_string()
    }

    /// Milliseconds, to the microsecond.
    pub(crate) fn milliseconds(duration: Duration) -> f64 {
        duration.as_micros() as f64 / 1000.0
    }
}

/// The way to the log from every loop. The last one dropped lets the log end.
pub(crate) type Sender = Arc<SyncSender<Entry>>;

/// The thread that writes the log, so that a slow disk does not slow the loops down at once.
pub(crate) struct AccessLog {
    thread: JoinHandle<()>,
}

impl AccessLog {
    /// Opens `path` for appending (`-`: standard output).
    pub(crate) fn open(path: &Path) -> Result<(Self, Sender)> {
        let output: Box<dyn Write + Send> = if path == Path::new("-") {
            Box::new(io::stdout())
        } else {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            Box::new(opened.with_context(|| {
                format!(
                    "the access log {} cannot be opened; check the path and its rights",
                    path.display()
                )
            })?)
        };
        let (sender, receiver) = sync_channel(WAITING_LINES);
        let thread = thread::Builder::new()
            .name("access-log".into())
            .spawn(move || write_all(&receiver, BufWriter::new(output)))
            .context("cannot start the access log's thread")?;
        Ok((Self { thread }, Arc::new(sender)))
    }

    /// Waits until all lines are written. All senders must have been dropped.
    pub(crate) fn finish(self) {
        // A panic there has been printed; there is nothing left to save.
        let _ = self.thread.join();
    }
}

fn write_all(entries: &Receiver<Entry>, mut output: impl Write) {
    let mut failing = false;
    loop {
        // Flush when there is nothing more to write at once: lines do not lie in the buffer.
        let (entry, flushed) = match entries.try_recv() {
            Ok(entry) => (entry, Ok(())),
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                let flushed = output.flush();
                match entries.recv() {
                    Ok(entry) => (entry, flushed),
                    Err(_) => break,
                }
            }
        };
        let written = flushed
            .and_then(|()| serde_json::to_writer(&mut output, &entry).map_err(io::Error::from))
            .and_then(|()| output.write_all(b"\n"));
        match written {
            Ok(()) => failing = false,
            Err(_) if failing => {}
            Err(error) => {
                failing = true;
                tracing::error!("the access log cannot be written: {error}; make room or move it");
            }
        }
    }
    if let Err(error) = output.flush() {
        tracing::error!("the access log cannot be written: {error}; its last lines are lost");
    }
}
