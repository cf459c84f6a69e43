//! A control group of this process's own, for the time of a demonstration or a trial.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::thread::gettid;

use super::control_group;

/// A group whose last thread has just ended may still count as busy.
const LEAVE_AGAIN: Duration = Duration::from_millis(2);
const LEAVE_TRIES: u32 = 500;

/// It lies in the group where the process was before, and goes when this is dropped. A kill leaves it, empty.
#[derive(Debug)]
pub(crate) struct OwnGroup {
    path: PathBuf,
    /// Where this process goes back to.
    before: Option<PathBuf>,
}

impl OwnGroup {
    /// Makes a group for the whole process, which is in it from then on. The name begins with `prefix`.
    ///
    /// # Errors
    /// Without control groups of version 2, or the right to make one.
    pub(super) fn of_process(prefix: &str) -> Result<Self> {
        let before = own()?;
        let mut group = Self::make(&before, prefix)?;
        enter(&group.path)
            .with_context(|| format!("cannot enter the control group {}", group.path.display()))?;
        group.before = Some(before);
        Ok(group)
    }

    /// Makes a group for some of the process's threads: those that [enter](Self::enter_thread) it, and what these start.
    ///
    /// # Errors
    /// Without control groups of version 2, or the right to make one.
    pub(crate) fn of_threads(prefix: &str) -> Result<Self> {
        let group = Self::make(&own()?, prefix)?;
        let threaded = fs::write(group.path.join("cgroup.type"), "threaded");
        threaded.with_context(|| {
            format!(
                "the control group {} cannot be one of threads",
                group.path.display()
            )
        })?;
        Ok(group)
    }

    fn make(parent: &Path, prefix: &str) -> Result<Self> {
        clear(parent, prefix);
        let path = parent.join(format!("{prefix}{}", std::process::id()));
        fs::create_dir(&path)
            .with_context(|| format!("cannot make the control group {}", path.display()))?;
        Ok(Self { path, before: None })
    }

    /// Has this thread be in it.
    ///
    /// # Errors
    /// If the group is gone, or takes none.
    pub(crate) fn enter_thread(&self) -> Result<()> {
        let thread = gettid().as_raw_nonzero().to_string();
        fs::write(self.path.join("cgroup.threads"), thread)
            .with_context(|| format!("cannot enter the control group {}", self.path.display()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    fn leave(&self) -> io::Result<()> {
        if let Some(before) = &self.before {
            enter(before)?;
        }
        for _ in 1..LEAVE_TRIES {
            if fs::remove_dir(&self.path).is_ok() {
                return Ok(());
            }
            thread::sleep(LEAVE_AGAIN);
        }
        fs::remove_dir(&self.path)
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        if let Err(error) = self.leave() {
            tracing::warn!(
                "the control group {} stays ({error}); remove it with rmdir",
                self.path.display()
            );
        }
    }
}

/// The group that this process is in.
fn own() -> Result<PathBuf> {
    control_group::own().context(
        "no control groups of version 2 are mounted (mount -t cgroup2), and a bypass covers those",
    )
}

/// Moves this process.
fn enter(group: &Path) -> io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Removes those of processes that were killed. One with a process or a thread cannot be removed.
fn clear(directory: &Path, prefix: &str) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(prefix) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
