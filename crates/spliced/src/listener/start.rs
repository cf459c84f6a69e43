//! A start at a path: it removes a stale file, binds and listens, and no other start does so meanwhile. Nor does a process
//! that ends remove its file meanwhile.
//!
//! Otherwise one could take the file of another one, which is bound and does not listen yet, for a stale one. And a file
//! could be removed in the place of one that a start has just replaced.

use std::fmt;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use rustix::fs::{Mode, OFlags, open};

use super::directory_lock::lock_for;
use super::socket_file::SocketFile;
use crate::file_lock::{FileLock, LockWait};
use crate::resource_limit::words;
use crate::socket_address::SocketAddress;

pub(crate) struct Start {
    /// The directory; `None` if this process cannot read it, or another one keeps the lock.
    _lock: Option<FileLock>,
    /// A descriptor for the file. Without one, that would be left behind.
    spare: OwnedFd,
    wait: Arc<LockWait>,
}

impl Start {
    /// # Errors
    /// If there is no descriptor left.
    pub(crate) fn at(path: &Path, wait: &Arc<LockWait>) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let spare = open("/", flags, Mode::empty()).map_err(|errno| {
            anyhow!(
                "cannot open its directory: {}; raise the limit",
                words(errno)
            )
        })?;
        Ok(Self {
            _lock: lock_for(path, wait),
            spare,
            wait: Arc::clone(wait),
        })
    }

    /// The file, once the socket is bound.
    pub(crate) fn bound(self, path: &Path) -> Result<Started> {
        let Self { _lock, spare, wait } = self;
        drop(spare);
        let mut file = SocketFile::of(path)?;
        file.remove_under_lock(wait);
        Ok(Started { _lock, file })
    }
}

/// A start that has made its file.
pub(crate) struct Started {
    /// Freed before a file that is not to stay takes it for itself.
    _lock: Option<FileLock>,
    pub(crate) file: SocketFile,
}

impl Started {
    /// The file, once the socket listens.
    ///
    /// # Errors
    /// If another start has replaced it, which can be without the lock only.
    pub(crate) fn listening(self, address: &SocketAddress) -> Result<SocketFile> {
        ensure!(self.file.is_in_place(), InUse(address.clone()));
        Ok(self.file)
    }
}

/// Another socket is bound to the address.
#[derive(Debug)]
pub(crate) struct InUse(pub(crate) SocketAddress);

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            // A name of a host has several addresses.
            SocketAddress::Inet(inet) => inet.fmt(f)?,
            _ => f.write_str("it")?,
        }
        f.write_str(" is in use by another socket; stop it or choose another")
    }
}

impl std::error::Error for InUse {}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;
    use std::thread;
    use std::time::{Duration, Instant};

    use netlab::Scratch;

    use super::*;
    use crate::file_access::FileAccess;
    use crate::file_lock::LOCK_WITHIN;
    use crate::listener::ListeningSockets;

    #[test]
    fn of_many_starts_at_one_path_one_listens() {
        const STARTS: usize = 4;
        let scratch = Scratch::new("start").expect("a directory");
        let path = scratch.path().join("socket");
        let text = format!("unix:{}", path.display());
        let typed = text.parse().expect("an address");
        for round in 0..100 {
            // What a killed process has left.
            drop(UnixListener::bind(&path).expect("bound"));
            let barrier = Barrier::new(STARTS);
            let start = || {
                let addresses = SocketAddress::to_listen(&typed).expect("an address");
                barrier.wait();
                ListeningSockets::bind(
                    &typed,
                    addresses,
                    1,
                    None,
                    FileAccess::default(),
                    &Arc::default(),
                )
            };
            let started: Vec<_> = thread::scope(|scope| {
                let threads = [(); STARTS].map(|()| scope.spawn(start));
                threads
                    .map(|thread| thread.join().expect("no panic"))
                    .into()
            });
            let (listening, refused): (Vec<_>, Vec<_>) =
                started.into_iter().partition(Result::is_ok);
            assert_eq!(listening.len(), 1, "round {round}: {refused:?}");
            for error in refused.into_iter().filter_map(Result::err) {
                assert!(error.is::<InUse>(), "round {round}: {error:#}");
            }
            UnixStream::connect(&path).expect("it listens");
            drop(listening);
            assert!(!path.exists());
        }
    }

    #[test]
    fn a_lock_that_somebody_keeps_delays_a_start_and_does_not_stop_it() {
        let scratch = Scratch::new("start").expect("a directory");
        let path = scratch.path().join("socket");
        let wait = Arc::default();
        let start = || Start::at(&path, &wait).expect("it goes on");
        let held = lock_for(&path, &LockWait::default()).expect("free");
        assert!(start()._lock.is_none());
        drop(held);
        let start = start();
        assert!(start._lock.is_some());
        let _listener = UnixListener::bind(&path).expect("bound");
        let started = start.bound(&path).expect("a file");
        std::fs::remove_file(&path).expect("removed");
        let address = SocketAddress::to_listen(
            &format!("unix:{}", path.display())
                .parse()
                .expect("an address"),
        );
        let told = started.listening(&address.expect("an address")[0]);
        assert!(told.expect_err("replaced").is::<InUse>());
    }

    /// Between its look at the file and the removal, a start could have replaced it.
    #[test]
    fn a_file_is_removed_under_the_lock_of_a_start() {
        let scratch = Scratch::new("start").expect("a directory");
        let path = scratch.path().join("socket");
        let wait = Arc::default();
        let listening = || {
            let start = Start::at(&path, &wait).expect("it can");
            let listener = UnixListener::bind(&path).expect("bound");
            (listener, start.bound(&path).expect("a file"))
        };
        let (_first, started) = listening();
        // It has the lock itself, and frees that first.
        drop(started);
        assert!(!path.exists());
        assert_eq!(wait.left(), LOCK_WITHIN);

        let (_second, Started { _lock, file }) = listening();
        drop(_lock);
        let held = lock_for(&path, &LockWait::default()).expect("free");
        let begin = Instant::now();
        drop(file);
        assert!(begin.elapsed() >= LOCK_WITHIN);
        assert!(!path.exists());
        drop(held);
    }

    #[test]
    fn one_who_keeps_the_locks_of_many_delays_as_long_as_one_who_keeps_one() {
        let scratch = Scratch::new("start").expect("a directory");
        let path = scratch.path().join("socket");
        let _held = lock_for(&path, &LockWait::default()).expect("free");
        let wait = Arc::default();
        assert!(Start::at(&path, &wait).is_ok());
        assert_eq!(wait.left(), Duration::ZERO);
        // Another process waits for itself.
        assert_eq!(LockWait::default().left(), LOCK_WITHIN);
    }
}
