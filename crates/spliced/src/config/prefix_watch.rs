//! Keeps the prefixes of files up to what the files say.
//!
//! A thread looks at each file once a second. That sees every kind of change: a rename over the file, a
//! link that points elsewhere, a file that was missing, a file system without notifications. A file that
//! has changed is read; a file that cannot be read is reported once, and its last good prefixes apply.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::config::prefix_file::{Shared, Unreadable, read};
use crate::plan::Plan;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// A file that was changed within this time may be changed again without another time stamp: file systems
/// count in jiffies, and some in seconds.
const COARSEST_STAMP: Duration = Duration::from_secs(2);

/// The thread that looks at the files of a plan.
#[derive(Debug, Default)]
pub(crate) struct PrefixWatch {
    /// The thread ends when this is dropped.
    _stop: Option<Sender<()>>,
}

impl PrefixWatch {
    /// Looks at the files of `plan`, until it is dropped. Without files there is no thread.
    pub(crate) fn of(plan: &Plan) -> Self {
        let routes = plan.listeners.iter().flat_map(|listener| &listener.routes);
        let clients = routes.filter_map(|route| route.conditions.clients.as_ref());
        let files: BTreeMap<_, _> = clients
            .flat_map(|prefixes| prefixes.files.iter().cloned())
            .collect();
        if files.is_empty() {
            return Self::default();
        }
        let mut files: Vec<_> = files.into_iter().map(Watched::new).collect();
        let (stop, stopped) = mpsc::channel();
        let watch = move || {
            while stopped.recv_timeout(PAUSE) == Err(RecvTimeoutError::Timeout) {
                files.iter_mut().for_each(Watched::look);
            }
        };
        let thread = thread::Builder::new().name("prefixes".into()).spawn(watch);
        if let Err(error) = thread {
            tracing::warn!(
                "files of prefixes are not watched, since a thread cannot be started ({error}); raise the \
                 limits, or reload after a change"
            );
        }
        Self { _stop: Some(stop) }
    }
}

#[derive(Debug)]
struct Watched {
    path: PathBuf,
    prefixes: Shared,
    /// The state of the file that was read last; `None` if it may have changed since.
    seen: Option<Stamp>,
    /// What was last reported to be wrong with the file.
    complaint: Option<String>,
}

/// What changes with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a later change is sure to have another stamp.
    fn is_settled(&self) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let changed = u64::try_from(self.changed.0).map(Duration::from_secs);
        match (now, changed) {
            (Ok(now), Ok(changed)) => now > changed + COARSEST_STAMP,
            _ => false,
        }
    }
}

impl Watched {
    fn new((path, prefixes): (String, Shared)) -> Self {
        Self {
            path: path.into(),
            prefixes,
            seen: None,
            complaint: None,
        }
    }

    /// Reads the file again if it has changed.
    fn look(&mut self) {
        // Before reading: a change in between has another stamp next time.
        let stamp = fs::metadata(&self.path)
            .ok()
            .map(|metadata| Stamp::of(&metadata));
        if stamp.is_some() && stamp == self.seen {
            return;
        }
        self.seen = stamp.filter(Stamp::is_settled);
        let found = match read(&self.path) {
            Ok(found) => found,
            Err(why) => return self.complain(&why),
        };
        let is_new = {
            let mut prefixes = self
                .prefixes
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            let is_new = *prefixes != found;
            if is_new {
                prefixes.clone_from(&found);
            }
            is_new
        };
        if self.complaint.take().is_some() || is_new {
            let count = found.len();
            tracing::info!("{} has changed, prefixes: {count}", shown(&self.path));
        }
    }

    fn complain(&mut self, why: &Unreadable) {
        let why = match why {
            Unreadable::File(error) => format!("{} cannot be read: {error}", shown(&self.path)),
            Unreadable::Lines(mistakes) => match mistakes.as_slice() {
                [] => return,
                [only] => only.to_string(),
                [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
            },
        };
        if self.complaint.as_ref() != Some(&why) {
            tracing::warn!("the last good prefixes go on, since {why}");
            self.complaint = Some(why);
        }
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::{Arc, RwLock};

    use netlab::Scratch;

    use super::Watched;

    #[test]
    fn the_last_good_prefixes_stay() {
        let scratch = Scratch::new("prefixes").expect("a directory");
        let path = scratch.write("list", "10.0.0.0/8\n").expect("written");
        let prefixes = Arc::new(RwLock::default());
        let name = path.to_str().expect("a path").to_owned();
        let mut watched = Watched::new((name, Arc::clone(&prefixes)));
        let is = |expected: &[&str]| {
            let prefixes = prefixes.read().expect("no panic");
            let texts: Vec<_> = prefixes.iter().map(ToString::to_string).collect();
            assert_eq!(texts, expected);
        };
        watched.look();
        is(&["10.0.0.0/8"]);
        // In place and of the same size, within one step of the clock.
        fs::write(&path, "11.0.0.0/8\n").expect("written");
        watched.look();
        is(&["11.0.0.0/8"]);
        for broken in ["11.0.0.1/8\n", "11.0.0.0/8\nx\ny\n"] {
            fs::write(&path, broken).expect("written");
            watched.look();
            is(&["11.0.0.0/8"]);
            assert!(watched.complaint.is_some());
        }
        fs::remove_file(&path).expect("removed");
        watched.look();
        is(&["11.0.0.0/8"]);
        let other = scratch
            .write("other", "# none\n2001:db8::/32 # one\n192.0.2.1\n")
            .expect("written");
        fs::rename(other, &path).expect("renamed");
        watched.look();
        is(&["2001:db8::/32", "192.0.2.1"]);
        assert_eq!(watched.complaint, None);
        scratch.write("list", "").expect("written");
        watched.look();
        is(&[]);
    }
}
