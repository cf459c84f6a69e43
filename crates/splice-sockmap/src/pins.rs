//! A directory in a BPF file system, which keeps programs, maps and attachments when their process dies, and the lock on it.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind as Io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::is_bpf_file_system;

/// What the names of attachments begin with.
pub const LINK: &str = "link-";

/// A directory of pins.
#[derive(Debug)]
pub struct Pins {
    directory: PathBuf,
}

/// The right to change what is pinned: one process has it at a time, and the kernel takes it back when that dies.
#[derive(Debug)]
pub struct Lock(#[expect(dead_code, reason = "it is held by being open")] File);

impl Pins {
    /// Those of a directory, which need not exist.
    pub fn at(directory: &Path) -> Self {
        Self {
            directory: directory.into(),
        }
    }

    /// The directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The path of a pin.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Makes the directory, readable for root only.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if it would lie in no BPF file system, with how to mount one.
    pub fn create(&self) -> Result<()> {
        let failed = |error| {
            Error::system(
                format!("cannot make the directory {}", self.directory.display()),
                error,
            )
        };
        // Looked at before: where none is mounted, /sys/fs/bpf refuses a directory with ENOENT.
        let there = self.directory.ancestors().find(|path| path.exists());
        let place = there.unwrap_or(&self.directory);
        if !is_bpf_file_system(place).map_err(|errno| failed(errno.into()))? {
            return Err(Error::new(
                ErrorKind::System,
                format!(
                    "{} is in no BPF file system: mount one with 'mount -t bpf bpf /sys/fs/bpf'",
                    self.directory.display()
                ),
            ));
        }
        let made = DirBuilder::new()
            .mode(0o700)
            .recursive(true)
            .create(&self.directory);
        made.map_err(failed)
    }

    /// Takes the lock; `None` if another process has it.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the directory cannot be opened.
    pub fn lock(&self) -> Result<Option<Lock>> {
        let failed =
            |error| Error::system(format!("cannot open {}", self.directory.display()), error);
        let directory = File::open(&self.directory).map_err(failed)?;
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(directory))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Removes all names and the directory, attachments first: without them nothing new comes.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if a name cannot be removed.
    pub fn remove(&self) -> Result<()> {
        let failed = |error| {
            Error::system(
                format!("cannot remove the pins in {}", self.directory.display()),
                error,
            )
        };
        let entries = fs::read_dir(&self.directory).map_err(failed)?;
        let mut names: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        let is_link = |path: &PathBuf| {
            let name = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            name.is_some_and(|name| name.starts_with(LINK))
        };
        names.sort_by_key(|path| !is_link(path));
        for name in names {
            match fs::remove_file(name) {
                Err(error) if error.kind() != Io::NotFound => return Err(failed(error)),
                _ => {}
            }
        }
        match fs::remove_dir(&self.directory) {
            Err(error) if error.kind() != Io::NotFound => Err(failed(error)),
            _ => Ok(()),
        }
    }
}
