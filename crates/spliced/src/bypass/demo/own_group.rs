//! A control group for the time of a demonstration.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::bypass::control_group;

const NAME: &str = "spliced-demo-";

/// This process is in it. It lies in the group where the process was before.
#[derive(Debug)]
pub(super) struct OwnGroup {
    before: PathBuf,
    path: PathBuf,
}

impl OwnGroup {
    /// Makes it and enters it.
    ///
    /// # Errors
    /// Without control groups of version 2, or the right to make one.
    pub(super) fn enter() -> Result<Self> {
        let before = control_group::own()
            .context("no control groups of version 2 are mounted; mount -t cgroup2")?;
        clear(&before);
        let path = before.join(format!("{NAME}{}", std::process::id()));
        fs::create_dir(&path)
            .with_context(|| format!("cannot make the control group {}", path.display()))?;
        let group = Self { before, path };
        enter(&group.path)
            .with_context(|| format!("cannot enter the control group {}", group.path.display()))?;
        Ok(group)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for OwnGroup {
    fn drop(&mut self) {
        let left = enter(&self.before).and_then(|()| fs::remove_dir(&self.path));
        if let Err(error) = left {
            tracing::warn!(
                "the control group {} stays ({error}); remove it with rmdir",
                self.path.display()
            );
        }
    }
}

/// Moves this process.
fn enter(group: &Path) -> std::io::Result<()> {
    fs::write(group.join("cgroup.procs"), "0")
}

/// Removes those of demonstrations that were killed. One with a process cannot be removed.
fn clear(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(NAME) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}
