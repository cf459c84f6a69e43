//! The place of an admin socket in its directory: who has it, and what killed processes have left.

use std::ffi::CStr;
use std::fs;
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use rustix::fs::{AtFlags, Dir, FileType, Mode, chmod, linkat, renameat, statat, unlinkat};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::run_directory::{RunDirectory, remedy};
use super::taken::Taken;
use crate::listener::SocketFile;
use crate::resource_limit::words;

/// How long a start removes sockets of killed processes. The next one removes the others.
const CLEAN_WITHIN: Duration = Duration::from_millis(500);

/// A socket that listens, with its file.
pub(super) type Opened = (UnixListener, SocketFile);

impl RunDirectory {
    /// Removes the sockets of processes that were killed, as many as the time suffices for.
    pub(super) fn clean(&self) {
        let until = Instant::now() + CLEAN_WITHIN;
        let Ok(entries) = Dir::read_from(&self.handle) else {
            return;
        };
        // Nobody is harmed by those that stay.
        for entry in entries.flatten() {
            if Instant::now() >= until {
                return;
            }
            let name = entry.file_name();
            if !self.is_stale(name) {
                continue;
            }
            // For one of them only: a start waits for the lock.
            let Ok(_lock) = self.lock() else {
                return;
            };
            if self.is_stale(name) {
                let _ = unlinkat(&self.handle, name, AtFlags::empty());
            }
        }
    }

    /// Listens on the socket `name`, in the place of a process that was killed. This is done under the lock. Those who
    /// could not have it do no harm either: the name leads to a socket only once that listens, and takes the place of none.
    ///
    /// # Errors
    /// If the socket cannot be made, or it is not known whether a process listens on it.
    pub(super) fn listen(&self, name: &str) -> Result<Result<Opened, Taken>> {
        let path = self.path.join(name);
        let shown = path.display();
        let found = match statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if !FileType::from_raw_mode(stat.st_mode).is_socket() => {
                bail!("{shown} is not a socket; remove it")
            }
            Ok(stat) => Some((stat.st_dev, stat.st_ino)),
            Err(_) => None,
        };
        match self.probe(name) {
            Err(Errno::NOENT) => {}
            // Nobody listens (`unix_find_bsd`).
            Err(Errno::CONNREFUSED) if !self.remove(name, found)? => {
                return Ok(Err(Taken::by(path, None)));
            }
            Err(Errno::CONNREFUSED) => {}
            Ok(connected) => return Ok(Err(Taken::by(path, Some(&connected)))),
            // Its backlog is full.
            Err(Errno::AGAIN) => return Ok(Err(Taken::by(path, None))),
            Err(errno) => bail!(
                "whether another process runs it cannot be found out ({shown}: {}); {}",
                words(errno),
                remedy(errno, "remove that file if none does")
            ),
        }
        let failed = |errno: Errno| {
            anyhow!(
                "cannot listen on {shown}: {}; {}",
                words(errno),
                remedy(errno, "make its directory writable")
            )
        };
        let unnamed = unused_name();
        let path_of_unnamed = self.path.join(&unnamed);
        let listener = UnixListener::bind(&path_of_unnamed)
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let mut file = SocketFile::of(&path_of_unnamed).inspect_err(|_| {
            let _ = fs::remove_file(&path_of_unnamed);
        })?;
        // The umask may have taken the right to connect.
        chmod(&path_of_unnamed, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let here = &self.handle;
        match linkat(here, &unnamed, here, name, AtFlags::empty()) {
            Ok(()) => {
                let _ = unlinkat(here, &unnamed, AtFlags::empty());
                file.has_moved_to(&path);
                Ok(Ok((listener, file)))
            }
            // One that goes on without the lock has been faster.
            Err(Errno::EXIST) => Ok(Err(Taken::by(path, None))),
            Err(errno) => Err(failed(errno)),
        }
    }

    /// Removes the socket `name`, if it still is the one that was `found`. Returns false otherwise.
    fn remove(&self, name: &str, found: Option<(u64, u64)>) -> Result<bool> {
        let here = &self.handle;
        let moved = unused_name();
        match renameat(here, name, here, &moved) {
            // One that goes on without the lock has been faster.
            Err(Errno::NOENT) => return Ok(true),
            renamed => renamed.map_err(|errno| {
                anyhow!(
                    "cannot remove {}, which nobody uses: {}; {}",
                    self.path.join(name).display(),
                    words(errno),
                    remedy(errno, "make its directory writable")
                )
            })?,
        }
        let is_same = statat(here, &moved, AtFlags::SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| Some((stat.st_dev, stat.st_ino)) == found);
        if !is_same {
            // Its process makes it again if another one has the name by now.
            let _ = linkat(here, &moved, here, name, AtFlags::empty());
        }
        let _ = unlinkat(here, &moved, AtFlags::empty());
        Ok(is_same)
    }

    /// Connects without waiting for a process that does not accept.
    fn probe(&self, name: &str) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        connect(&socket, &SocketAddrUnix::new(self.path.join(name))?)?;
        Ok(socket)
    }

    /// Whether `name` is an admin socket of this user that nobody listens on.
    fn is_stale(&self, name: &CStr) -> bool {
        let Some(text) = name.to_str().ok().filter(|name| is_name(name)) else {
            return false;
        };
        statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode).is_socket() && self.is_own(&stat)
        }) && self.probe(text).err() == Some(Errno::CONNREFUSED)
    }
}

/// The name of an admin socket that no configuration has. A start removes it if its process was killed.
fn unused_name() -> String {
    // The standard library seeds each of them at random.
    format!("{:016x}.sock", RandomState::new().hash_one(()))
}

/// Whether an admin socket may have the name.
fn is_name(name: &str) -> bool {
    let hexadecimal = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    name.strip_suffix(".sock")
        .is_some_and(|hash| hash.len() == 16 && hash.bytes().all(hexadecimal))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::path::Path;
    use std::sync::Barrier;
    use std::thread;

    use netlab::{Need, Scratch, available};
    use rustix::net::{bind, listen};

    use super::*;

    const NAME: &str = "0123456789abcdef.sock";

    /// Owns nothing, by convention.
    const NOBODY: u32 = 65534;

    fn directory() -> (Scratch, RunDirectory) {
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = RunDirectory::open(scratch.path().into()).expect("usable");
        (scratch, directory)
    }

    /// A listening socket that takes at most one client, and that client.
    fn busy(path: &Path) -> (OwnedFd, UnixStream) {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None);
        let socket = socket.expect("a socket");
        bind(&socket, &SocketAddrUnix::new(path).expect("a path")).expect("bound");
        listen(&socket, 0).expect("it listens");
        let client = UnixStream::connect(path).expect("in the backlog");
        (socket, client)
    }

    fn abandoned(path: &Path) {
        drop(UnixListener::bind(path).expect("bound"));
    }

    #[test]
    fn of_many_starts_at_once_one_gets_the_socket() {
        const STARTS: usize = 4;
        let (scratch, directory) = directory();
        let path = scratch.path().join(NAME);
        for round in 0..200 {
            // What a killed process has left.
            abandoned(&path);
            let barrier = Barrier::new(STARTS);
            let start = || {
                barrier.wait();
                let started = {
                    let _lock = directory.lock().expect("locked");
                    directory.listen(NAME).expect("known")
                };
                directory.clean();
                started
            };
            let started: Vec<_> = thread::scope(|scope| {
                let threads = [(); STARTS].map(|()| scope.spawn(start));
                threads
                    .map(|thread| thread.join().expect("no panic"))
                    .into()
            });
            let alive: Vec<_> = started.into_iter().filter_map(Result::ok).collect();
            assert_eq!(alive.len(), 1, "round {round}");
            assert!(directory.probe(NAME).is_ok(), "round {round}");
        }
    }

    /// Each of them may have seen what a killed process has left.
    #[test]
    fn starts_without_the_lock_do_not_take_each_others_socket() {
        const STARTS: usize = 4;
        let (scratch, directory) = directory();
        for round in 0..200 {
            abandoned(&scratch.path().join(NAME));
            let barrier = Barrier::new(STARTS);
            let start = || {
                barrier.wait();
                directory.listen(NAME).expect("known")
            };
            let started: Vec<_> = thread::scope(|scope| {
                let threads = [(); STARTS].map(|()| scope.spawn(start));
                threads
                    .map(|thread| thread.join().expect("no panic"))
                    .into()
            });
            let files: Vec<_> = started.into_iter().filter_map(Result::ok).collect();
            let in_place = |(_, file): &&Opened| file.is_in_place();
            assert!(files.iter().filter(in_place).count() <= 1, "round {round}");
            let Some(place) = files.iter().position(|opened| in_place(&opened)) else {
                continue;
            };
            // The end of the others leaves it.
            let kept = files.into_iter().nth(place);
            assert!(directory.probe(NAME).is_ok(), "round {round}");
            drop(kept);
            assert!(!scratch.path().join(NAME).exists());
        }
        let left = fs::read_dir(scratch.path()).expect("read").count();
        assert_eq!(left, 0);
    }

    #[test]
    fn what_is_in_the_place_of_a_socket_is_named_and_stays() {
        let (scratch, directory) = directory();
        let path = scratch.path().join(NAME);
        symlink("/nowhere", &path).expect("linked");
        let told = directory.listen(NAME).expect_err("refused").to_string();
        assert!(told.contains("is not a socket; remove it"), "{told}");
        assert!(path.symlink_metadata().is_ok());
        assert_eq!(fs::read_dir(scratch.path()).expect("read").count(), 1);
    }

    #[test]
    fn a_process_that_does_not_accept_is_not_waited_for() {
        let (scratch, directory) = directory();
        let path = scratch.path().join(NAME);
        let _busy = busy(&path);
        assert!(directory.listen(NAME).expect("known").is_err());
        directory.clean();
        assert!(path.exists());
    }

    #[test]
    fn only_a_socket_that_nobody_uses_is_replaced() {
        let (scratch, directory) = directory();
        let path = scratch.path().join(NAME);
        let listen = || directory.listen(NAME).map_err(|error| error.to_string());
        let (listener, file) = listen().expect("known").expect("free");
        let taken = listen().expect("known").expect_err("taken");
        assert!(taken.owner.is_some() && taken.file.is_some(), "{taken:?}");
        drop(listener);
        let (listener, _file) = listen().expect("known").expect("free");
        // It has the number of the former file if nothing keeps that.
        drop(file);
        assert!(path.exists());
        drop(listener);
        fs::remove_file(&path).expect("removed");
        // connect(2) says EPROTOTYPE, which is no answer.
        let _datagrams = UnixDatagram::bind(&path).expect("bound");
        let error = listen().expect_err("not known");
        assert!(error.contains("cannot be found out"), "{error}");
        assert!(path.exists());
    }

    #[test]
    fn a_start_removes_every_admin_socket_of_its_user_that_nobody_uses() {
        let (scratch, directory) = directory();
        let path = |name: &str| scratch.path().join(name);
        let gone = ["0000000000000000.sock", "ffffffffffffffff.sock", NAME];
        for name in gone {
            abandoned(&path(name));
        }
        let others = [
            "000000000000000G.sock",
            "0000000000000000.sock.old",
            "x.sock",
        ];
        for name in others {
            abandoned(&path(name));
        }
        let (_busy, _client) = busy(&path("1111111111111111.sock"));
        let _datagrams = UnixDatagram::bind(path("2222222222222222.sock")).expect("bound");
        fs::write(path("3333333333333333.sock"), "").expect("written");
        abandoned(&path("target"));
        symlink(path("target"), path("4444444444444444.sock")).expect("linked");
        let mut kept = others.to_vec();
        kept.extend([
            "1111111111111111.sock",
            "2222222222222222.sock",
            "3333333333333333.sock",
            "4444444444444444.sock",
            "target",
        ]);
        if available(Need::Root) {
            let anothers = "5555555555555555.sock";
            abandoned(&path(anothers));
            chown(path(anothers), Some(NOBODY), None).expect("given away");
            kept.push(anothers);
        }
        directory.clean();
        for name in gone {
            assert!(!path(name).exists(), "{name}");
        }
        for name in kept {
            assert!(path(name).symlink_metadata().is_ok(), "{name}");
        }
    }

    /// Each of them takes a connection into its backlog and answers nothing.
    #[test]
    fn many_processes_that_do_not_answer_cost_no_time() {
        const MANY: usize = 300;
        let (scratch, directory) = directory();
        let listeners: Vec<_> = (0..MANY)
            .map(|number| scratch.path().join(format!("{number:016x}.sock")))
            .map(|path| UnixListener::bind(path).expect("bound"))
            .collect();
        let begin = Instant::now();
        directory.clean();
        let elapsed = begin.elapsed();
        assert!(elapsed < 2 * CLEAN_WITHIN, "{elapsed:?}");
        let left = fs::read_dir(scratch.path()).expect("read").count();
        assert_eq!(left, listeners.len());
    }
}
