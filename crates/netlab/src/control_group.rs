//! A control group.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result};
use rustix::thread::gettid;

use crate::own_group;
use crate::registry::{self, Leftover};

/// A control group (version 2) below that of this process, removed on drop.
///
/// It is threaded, so that it can contain single threads. A socket belongs to the group of the thread that
/// created it; an accepted socket belongs to the group of its listener.
#[derive(Debug)]
pub struct ControlGroup {
    path: PathBuf,
    directory: File,
}

impl ControlGroup {
    /// Creates one; `role` becomes the last part of its name.
    pub fn new(role: &str) -> Result<Self> {
        Self::at(own_group::directory()?.join(registry::unique_name(role)))
    }

    /// Creates one in this one, which must live longer.
    pub fn below(&self, role: &str) -> Result<Self> {
        Self::at(self.path.join(registry::unique_name(role)))
    }

    fn at(path: PathBuf) -> Result<Self> {
        let leftover = Leftover::ControlGroup(path.clone());
        registry::create(leftover.clone(), || {
            fs::create_dir(&path)
                .and_then(|()| fs::write(path.join("cgroup.type"), "threaded"))
                .with_context(|| format!("cannot create the control group {}", path.display()))
        })?;
        match File::open(&path) {
            Ok(directory) => Ok(Self { path, directory }),
            Err(error) => {
                registry::remove(&leftover);
                Err(error).with_context(|| format!("cannot open {}", path.display()))
            }
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Runs `work` on a new thread in this group and waits for it. Threads that `work` starts are in the
    /// group as well, and must end before `work` does. A panic of `work` becomes a panic of the caller.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        let joined = thread::scope(|scope| {
            scope
                .spawn(|| {
                    let _inside = Inside::new(&self.path)?;
                    Ok(work())
                })
                .join()
        });
        let outcome: io::Result<T> = joined.unwrap_or_else(|panic| panic::resume_unwind(panic));
        outcome.with_context(|| format!("cannot enter the control group {}", self.path.display()))
    }
}

impl AsFd for ControlGroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        registry::remove(&Leftover::ControlGroup(self.path.clone()));
    }
}

/// A thread in a group. It leaves before it ends: the caller that joins the thread may run before the kernel
/// has removed it from the group, and a group with a thread cannot be removed.
struct Inside<'a> {
    group: &'a Path,
}

impl<'a> Inside<'a> {
    fn new(group: &'a Path) -> io::Result<Self> {
        move_this_thread(group)?;
        Ok(Self { group })
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        // If this fails, removing the group reports it.
        let _ = self.group.parent().map(move_this_thread);
    }
}

fn move_this_thread(group: &Path) -> io::Result<()> {
    let thread = gettid().as_raw_nonzero().to_string();
    fs::write(group.join("cgroup.threads"), thread)
}
