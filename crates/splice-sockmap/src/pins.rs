//! A directory in a BPF file system, which keeps programs, maps and attachments when their process dies, and the lock on it.
//!
//! An owner takes the lock, has the members leave that a dead one has left, and pins what it has loaded. It may be killed at any
//! point. So the names have an order: maps and programs in that of [`Names::kept`], then attachments, and they go in reverse. A
//! directory that lacks the last of the kept names has never redirected anything, or has been cleared, and its rest may just be
//! removed.

use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, ErrorKind as Io};
use std::os::unix::fs::{DirBuilderExt, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::is_bpf_file_system;

/// How often what leaves is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// A directory of pins.
#[derive(Clone, Debug)]
pub struct Pins {
    directory: PathBuf,
    names: Names,
}

/// What an owner pins. Whatever else is in its directory is of others, and stays.
#[derive(Clone, Copy, Debug)]
pub struct Names {
    /// Maps and programs, in the order in which they are pinned.
    pub kept: &'static [&'static str],
    /// What attaches programs, which is pinned behind them.
    pub attached: &'static [&'static str],
}

/// The right to change what is pinned: one process has it at a time, and the kernel takes it back when that dies.
#[derive(Debug)]
pub struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would leave it to a child that another thread has forked, until that executes a program.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

/// What came of a try to lock a directory.
enum Tried {
    Locked(Lock),
    Held,
    /// Its owner has removed it meanwhile.
    Gone,
}

impl Pins {
    /// Those of a directory, which need not exist.
    pub fn at(directory: &Path, names: Names) -> Self {
        Self {
            directory: directory.into(),
            names,
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

    /// Whether an owner has pinned all that it keeps: without that nothing can have been redirected.
    pub fn are_whole(&self) -> bool {
        self.names
            .kept
            .last()
            .is_some_and(|last| self.path(last).exists())
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
        let nearest = self.directory.ancestors().find_map(|path| {
            let is_here = path.as_os_str().is_empty();
            match is_bpf_file_system(if is_here { Path::new(".") } else { path }) {
                Err(Errno::NOENT) => None,
                known => Some(known),
            }
        });
        if !nearest
            .unwrap_or(Err(Errno::NOENT))
            .map_err(|errno| failed(errno.into()))?
        {
            return Err(Error::new(
                ErrorKind::System,
                format!(
                    "{} is in no BPF file system: mount one with 'mount -t bpf bpf /sys/fs/bpf'",
                    self.directory.display()
                ),
            ));
        }
        let mut builder = DirBuilder::new();
        builder.mode(0o700);
        if let Some(parent) = self.directory.parent() {
            let made = builder.recursive(true).create(parent);
            made.map_err(failed)?;
        }
        // Another process may be removing it, so it is not looked at again.
        let made = builder.recursive(false).create(&self.directory);
        unless(Io::AlreadyExists, made).map_err(failed)
    }

    /// Makes the directory and takes its lock; `None` if another process has it.
    ///
    /// # Errors
    /// As [`create`](Self::create), and [`ErrorKind::System`] if the directory cannot be opened, or other users may write to
    /// it.
    pub fn take(&self) -> Result<Option<Lock>> {
        loop {
            self.create()?;
            match self.try_lock()? {
                Tried::Locked(lock) => return Ok(Some(lock)),
                Tried::Held => return Ok(None),
                Tried::Gone => {}
            }
        }
    }

    /// Takes the lock; `None` if another process has it, or has removed the directory.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if the directory cannot be opened, or other users may write to it.
    pub fn lock(&self) -> Result<Option<Lock>> {
        match self.try_lock()? {
            Tried::Locked(lock) => Ok(Some(lock)),
            Tried::Held | Tried::Gone => Ok(None),
        }
    }

    fn try_lock(&self) -> Result<Tried> {
        let failed =
            |error| Error::system(format!("cannot open {}", self.directory.display()), error);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = match open(&self.directory, flags, Mode::empty()) {
            Err(Errno::NOENT) => return Ok(Tried::Gone),
            directory => File::from(directory.map_err(|errno| failed(errno.into()))?),
        };
        let found = directory.metadata().map_err(failed)?;
        // A BPF file system lets everybody make directories, unless it is mounted with a mode.
        if is_of_other_users(&found) {
            return Err(Error::new(
                ErrorKind::System,
                format!(
                    "other users may write to {}: remove it, or choose another directory",
                    self.directory.display()
                ),
            ));
        }
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            // Else two would have a lock each: of the one that was removed, and of the next one by its name.
            Ok(()) if directory.metadata().map_err(failed)?.nlink() == 0 => Ok(Tried::Gone),
            Ok(()) => Ok(Tried::Locked(Lock(directory))),
            Err(Errno::WOULDBLOCK) => Ok(Tried::Held),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// That what is pinned is of another version, and what to do about it.
    pub fn foreign(&self, remedy: &'static str) -> Error {
        let what = format!(
            "what is pinned in {} is of another version",
            self.directory.display()
        );
        Error::new(ErrorKind::System, what).with_remedy(remedy)
    }

    /// Removes all names, attachments first: without them nothing new comes.
    ///
    /// # Errors
    /// [`ErrorKind::System`] if a name cannot be removed.
    pub fn empty(&self) -> Result<()> {
        let Names { kept, attached } = self.names;
        for name in attached.iter().chain(kept.iter().rev()) {
            let removed = fs::remove_file(self.path(name));
            unless(Io::NotFound, removed).map_err(|error| self.cannot_remove(error))?;
        }
        Ok(())
    }

    /// Removes all names, and the directory unless others have something there.
    ///
    /// # Errors
    /// As [`empty`](Self::empty).
    pub fn remove(&self) -> Result<()> {
        self.empty()?;
        match fs::remove_dir(&self.directory) {
            Err(error) if is_of_others(&error) => Ok(()),
            removed => unless(Io::NotFound, removed).map_err(|error| self.cannot_remove(error)),
        }
    }

    fn cannot_remove(&self, error: io::Error) -> Error {
        let what = format!("cannot remove the pins in {}", self.directory.display());
        Error::system(what, error)
    }
}

/// Has members leave, pass by pass, until none is left or `most` is over. A pass tells how many it has left.
///
/// # Errors
/// That of a pass.
pub fn leave(most: Duration, mut pass: impl FnMut() -> Result<usize>) -> Result<usize> {
    let deadline = Instant::now() + most;
    loop {
        let left = pass()?;
        if left == 0 || Instant::now() >= deadline {
            return Ok(left);
        }
        thread::sleep(LOOK_AGAIN);
    }
}

fn is_of_other_users(directory: &Metadata) -> bool {
    let own = rustix::process::geteuid().as_raw();
    let is_writable = directory.mode() & 0o022 != 0;
    is_writable || ![0, own].contains(&directory.uid())
}

fn unless(expected: Io, done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == expected => Ok(()),
        done => done,
    }
}

/// Whether a directory has names that are not the owner's, or is the root of a file system.
fn is_of_others(error: &io::Error) -> bool {
    matches!(error.kind(), Io::DirectoryNotEmpty | Io::ResourceBusy)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt as _, chown};
    use std::sync::atomic::{AtomicU32, Ordering};

    use netlab::{BpfFileSystem, Need, available};

    use super::*;

    const NONE: Names = Names {
        kept: &[],
        attached: &[],
    };

    /// A lock on a directory that was removed is none: the next owner makes another one by that name.
    #[test]
    fn a_directory_that_comes_and_goes_has_one_owner_at_a_time() {
        if !available(Need::Root) {
            return;
        }
        let file_system = BpfFileSystem::new("pins").expect("a BPF file system");
        let pins = Pins::at(&file_system.path().join("owned"), NONE);
        let (owners, turns) = (AtomicU32::new(0), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while turns.load(Ordering::Relaxed) < 500 {
                        let Some(_lock) = pins.take().expect("taken, or not") else {
                            continue;
                        };
                        assert_eq!(owners.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
                        turns.fetch_add(1, Ordering::Relaxed);
                        thread::yield_now();
                        owners.fetch_sub(1, Ordering::SeqCst);
                        pins.remove().expect("removed");
                    }
                });
            }
        });
    }

    #[test]
    fn a_child_that_has_not_executed_yet_does_not_keep_the_lock() {
        if !available(Need::Root) {
            return;
        }
        let file_system = BpfFileSystem::new("pins").expect("a BPF file system");
        let pins = Pins::at(&file_system.path().join("forked"), NONE);
        let lock = pins.take().expect("taken").expect("nobody has it");
        let _of_child = lock.0.try_clone().expect("duplicated");
        assert!(pins.lock().expect("tried").is_none());
        drop(lock);
        assert!(pins.lock().expect("tried").is_some());
    }

    #[test]
    fn a_directory_that_is_no_place_for_pins_is_refused_with_a_sentence() {
        if !available(Need::Root) {
            return;
        }
        let file_system = BpfFileSystem::new("pins").expect("a BPF file system");
        let refused = |directory: &Path| {
            let refused = Pins::at(directory, NONE).take().map(drop);
            refused.expect_err("it is refused").to_string()
        };
        let of_another = file_system.path().join("of-another");
        fs::create_dir(&of_another).expect("made");
        chown(&of_another, Some(1), Some(1)).expect("given away");
        let open = file_system.path().join("open");
        fs::create_dir(&open).expect("made");
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("opened");
        for directory in [of_another, open] {
            let said = refused(&directory);
            assert!(said.contains("other users may write to"), "{said}");
        }
        let pin = file_system.path().join("pin");
        let mut map = crate::SockMap::create(1).expect("a map");
        map.pin(&pin).expect("pinned");
        let said = refused(&pin);
        assert!(said.contains("Not a directory"), "{said}");
        let said = refused(&pin.join("below"));
        assert!(said.starts_with("cannot make the directory"), "{said}");
        let said = refused(Path::new("/proc/none/here"));
        assert!(said.contains("mount -t bpf"), "{said}");
    }
}
