//! Keeps the prefixes of files up to what the files say.
//!
//! A thread looks at each file once a second. That sees every kind of change: a rename over the file, a
//! link that points elsewhere, a file that was missing, a file system without notifications. A file that
//! has changed is read; a file that cannot be read is reported once, and its last good prefixes apply.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::PoisonError;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::config::prefix_file::{Shared, Unreadable, read};
use crate::file_stamp::FileStamp;
use crate::plan::Plan;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(1);

/// The thread that looks at the files of a plan.
#[derive(Debug, Default)]
pub(crate) struct PrefixWatch {
    /// The thread ends when this is dropped.
    _stop: Option<Sender<()>>,
}

impl PrefixWatch {
    /// Looks at the files of `plan`, until it is dropped. Without files there is no thread.
    pub(crate) fn of(plan: &Plan) -> Self {
        let of_streams = plan.listeners.iter().flat_map(|listener| &listener.routes);
        let of_datagrams = plan.datagram_listeners.iter();
        let of_datagrams = of_datagrams.flat_map(|listener| &listener.routes);
        let routes = of_streams.chain(of_datagrams);
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
    seen: Option<FileStamp>,
    /// What was last reported to be wrong with the file.
    complaint: Option<String>,
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
            .map(|metadata| FileStamp::of(&metadata));
        if stamp.is_some() && stamp == self.seen {
            return;
        }
        self.seen = stamp.filter(FileStamp::is_settled);
        let found = match read(&self.path) {
            Ok(found) => found,
            Err(why) => {
                if why.may_pass() {
                    self.seen = None;
                }
                return self.complain(&why);
            }
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
            Unreadable::Lines { first, count } => match (first.first(), count - 1) {
                (None, _) => return,
                (Some(only), 0) => only.to_string(),
                (Some(first), more) => format!("{first} (and {more} more)"),
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
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;
    use std::sync::{Arc, RwLock};
    use std::thread;

    use netlab::{Need, Scratch, available, until};
    use rustix::process::Uid;
    use rustix::thread::set_thread_res_uid;

    use super::{FileStamp, Watched};

    /// Owns nothing, by convention.
    const NOBODY: u32 = 65534;

    /// A file that this process may read again with no change of its stamp stands for one that could not be read for
    /// want of descriptors.
    #[test]
    fn a_file_that_could_not_be_read_once_is_read_again() {
        if !available(Need::Root) {
            return;
        }
        let scratch = Scratch::new("prefixes").expect("a directory");
        let path = scratch.write("list", "10.0.0.0/8\n").expect("written");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
        };
        set(scratch.path(), 0o711);
        set(&path, 0o600);
        until("the stamp is settled", || {
            FileStamp::of(&fs::metadata(&path).expect("there")).is_settled()
        });
        let prefixes = Arc::new(RwLock::default());
        let name = path.to_str().expect("a path").to_owned();
        let mut watched = Watched::new((name, Arc::clone(&prefixes)));
        thread::scope(|scope| {
            scope.spawn(|| {
                let nobody = Uid::from_raw(NOBODY);
                // Of this thread alone.
                set_thread_res_uid(nobody, nobody, nobody).expect("another user");
                watched.look();
            });
        });
        assert!(watched.complaint.is_some());
        watched.look();
        assert_eq!(watched.complaint, None);
        assert_eq!(prefixes.read().expect("no panic").len(), 1);
    }

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
