//! What a process says of itself.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use rustix::process::geteuid;
use serde_json::{Value, json};
use splice::EngineName;

use crate::log_state::{self, Told};
use crate::metrics::About;

/// What is known of the process, whatever its main thread does.
#[derive(Debug)]
pub(crate) struct Facts {
    command: &'static str,
    started: SystemTime,
    /// As it was named, from the root on.
    configuration: Option<PathBuf>,
    changing: Mutex<Changing>,
}

#[derive(Debug, Default)]
struct Changing {
    drains: bool,
    /// Why `auto` can splice nothing.
    why_copied: Option<String>,
    reloads: u64,
    failed_reloads: u64,
    /// When the last one has succeeded.
    reloaded: Option<SystemTime>,
    last_reload: Option<Reload>,
}

#[derive(Debug)]
struct Reload {
    at: SystemTime,
    error: Option<String>,
}

impl Facts {
    /// Of a process that runs `spliced COMMAND`.
    pub(crate) fn new(command: &'static str, configuration: Option<PathBuf>) -> Self {
        // Otherwise a client elsewhere would not know what it is relative to.
        let configuration =
            configuration.map(|path| std::path::absolute(&path).unwrap_or_else(|_| path.clone()));
        Self {
            command,
            started: SystemTime::now(),
            configuration,
            changing: Mutex::default(),
        }
    }

    pub(crate) fn drains(&self) {
        self.changing().drains = true;
    }

    /// `auto` can splice nothing.
    pub(crate) fn copies(&self, why: String) {
        self.changing().why_copied = Some(why);
    }

    /// A reload has ended.
    pub(crate) fn reloaded(&self, error: Option<String>) {
        let mut changing = self.changing();
        let at = SystemTime::now();
        match error {
            None => {
                changing.reloads += 1;
                changing.reloaded = Some(at);
            }
            Some(_) => changing.failed_reloads += 1,
        }
        changing.last_reload = Some(Reload { at, error });
    }

    /// When, as it is shown.
    pub(super) fn started(&self) -> String {
        time(self.started)
    }

    /// The same for metrics.
    pub(super) fn about(&self) -> About {
        let changing = self.changing();
        let last = changing.last_reload.as_ref();
        About {
            version: env!("SPLICED_VERSION"),
            command: self.command,
            started: self.started,
            drains: changing.drains,
            reloads: changing.reloads,
            failed_reloads: changing.failed_reloads,
            configured: changing.reloaded.unwrap_or(self.started),
            last_reload_failed: last.is_some_and(|reload| reload.error.is_some()),
        }
    }

    pub(super) fn told(&self) -> Value {
        let changing = self.changing();
        // The name may lead to another file since the start.
        let named = self.configuration.as_deref();
        let file = named.and_then(|path| std::fs::canonicalize(path).ok());
        let inode = named.and_then(|path| inode(path).ok());
        json!({
            "version": env!("SPLICED_VERSION"),
            "pid": std::process::id(),
            "user": geteuid().as_raw(),
            "command": self.command,
            "started": self.started(),
            "uptime_seconds": self.started.elapsed().unwrap_or_default().as_secs(),
            "state": if changing.drains { "draining" } else { "running" },
            "why_copied": changing.why_copied.clone().or_else(why_absent),
            "configuration": self.configuration.as_deref().map(shown),
            "configuration_file": file.as_deref().map(shown),
            "configuration_inode": inode,
            "logs": logs(),
            "reloads": changing.reloads,
            "last_reload": changing.last_reload.as_ref().map(|reload| json!({
                "time": time(reload.at),
                "error": reload.error,
            })),
        })
    }

    fn changing(&self) -> MutexGuard<'_, Changing> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn logs() -> Vec<Value> {
    let each = |log: Told| {
        json!({
            "log": log.name,
            "lines_waiting": log.waiting,
            "lines_dropped": log.lost,
            "failure": log.failure,
        })
    };
    log_state::all().into_iter().map(each).collect()
}

/// What keeps `segment` from being loaded, although the rights of the process do not.
fn why_absent() -> Option<String> {
    let why = EngineName::Segment.why_absent()?;
    Some(why.to_string())
}

/// Device and inode of the file at `path`: what says that a file is the same, whatever the root directory of those who look.
///
/// # Errors
/// If there is no such file, or it is hidden from this user.
pub(crate) fn inode(path: &Path) -> io::Result<Value> {
    let found = std::fs::metadata(path)?;
    Ok(json!({ "device": found.dev(), "inode": found.ino() }))
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn time(at: SystemTime) -> String {
    humantime::format_rfc3339_millis(at).to_string()
}
