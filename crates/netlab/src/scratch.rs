//! A temporary directory.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::registry::{self, Leftover};

/// Programs that give up being root have to read them, whatever the umask.
const DIRECTORY_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

fn set_mode(path: &Path, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode))
}

/// A directory in the system's temporary directory, removed with its content on drop and on a signal.
#[derive(Debug)]
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Creates one; `role` becomes the last part of its name.
    pub fn new(role: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(registry::unique_name(role));
        registry::create(Leftover::Directory(path.clone()), || {
            fs::create_dir(&path)
                .and_then(|()| set_mode(&path, DIRECTORY_MODE))
                .with_context(|| format!("cannot create the directory {}", path.display()))
        })?;
        Ok(Self { path })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it and returns the file's path.
    pub fn write(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.path.join(name);
        fs::write(&path, text)
            .and_then(|()| set_mode(&path, FILE_MODE))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        registry::remove(&Leftover::Directory(self.path.clone()));
    }
}
