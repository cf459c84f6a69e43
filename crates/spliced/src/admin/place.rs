//! The place of a control socket in its directory: who has it, and what killed processes have left.
//!
//! A socket is bound at its path and a suffix, and then linked to its path. So the kernel's list of sockets has the suffix
//! for good, by which others find it ([`path_of_bound`](super::name::path_of_bound)).

use std::ffi::CStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail, ensure};
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, chmod, chownat, linkat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::Gid;

use super::name::{Name, bound_name};
use super::run_directory::{RunDirectory, remedy};
use super::taken::Taken;
use crate::listener::SocketFile;
use crate::resource_limit::words;

/// How long a start removes sockets of killed processes. The next one removes the others.
const CLEAN_WITHIN: Duration = Duration::from_millis(500);

/// The longest path of a UNIX socket (`sun_path` of `sockaddr_un`, less the NUL).
const PATH_MOST_BYTES: usize = 107;

/// A socket that listens, with its file.
pub(super) type Opened = (UnixListener, SocketFile);

impl RunDirectory {
    /// Removes the sockets of processes that were killed, as many as the time suffices for.
    pub(super) fn clean(&self, naming: &Name) {
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
            if !name.to_str().is_ok_and(|name| naming.covers(name)) || !self.is_stale(name) {
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

    /// Listens on the socket `name`, which members of `group` may connect to, too, in the place of a process that was killed. This is done under the lock. Those who
    /// could not have it do no harm either: the name leads to a socket only once that listens, and takes the place of none.
    ///
    /// # Errors
    /// If the socket cannot be made, or it is not known whether a process listens on it.
    pub(super) fn listen(&self, name: &str, group: Option<u32>) -> Result<Result<Opened, Taken>> {
        let path = self.path.join(name);
        let shown = path.display();
        let unnamed = bound_name(name);
        let path_of_unnamed = self.path.join(&unnamed);
        let length = path_of_unnamed.as_os_str().as_bytes().len();
        ensure!(
            length <= PATH_MOST_BYTES,
            "{shown} is {} bytes too long for a UNIX socket; choose a shorter path",
            length - PATH_MOST_BYTES
        );
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
        let listener = UnixListener::bind(&path_of_unnamed)
            .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        let mut file = SocketFile::of(&path_of_unnamed).inspect_err(|_| {
            let _ = fs::remove_file(&path_of_unnamed);
        })?;
        let here = &self.handle;
        let mut mode = Mode::RUSR | Mode::WUSR;
        if let Some(group) = group {
            let id = Some(Gid::from_raw(group));
            chownat(here, &unnamed, None, id, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| {
                anyhow!(
                    "cannot give {shown} to group {group}: {}; give the process CAP_CHOWN, or a group that it is in",
                    words(errno)
                )
            })?;
            mode |= Mode::RGRP | Mode::WGRP;
        }
        // The umask may have taken the right to connect.
        chmod(&path_of_unnamed, mode).map_err(failed)?;
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
        let moved = bound_name(name);
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

    /// Whether `name` is a socket of this user that nobody listens on.
    fn is_stale(&self, name: &CStr) -> bool {
        let Ok(text) = name.to_str() else {
            return false;
        };
        statat(&self.handle, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| {
            FileType::from_raw_mode(stat.st_mode).is_socket() && self.is_own(&stat)
        }) && self.is_abandoned(text)
    }

    /// Whether no process has the socket. Nobody is disturbed: a stream socket takes no connection of a datagram socket
    /// (`unix_find_bsd`, Linux 6.18).
    fn is_abandoned(&self, name: &str) -> bool {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let Ok(socket) = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None) else {
            return false;
        };
        let address = SocketAddrUnix::new(self.path.join(name));
        address.and_then(|address| connect(&socket, &address)) == Err(Errno::CONNREFUSED)
    }
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

    const NAME: &str = "4711.sock";

    /// Owns nothing, by convention.
    const NOBODY: u32 = 65534;

    fn directory() -> (Scratch, RunDirectory) {
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = RunDirectory::open(scratch.path().into(), "lock", false).expect("usable");
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
                    directory.listen(NAME, None).expect("known")
                };
                directory.clean(&Name::OfProcess);
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
                directory.listen(NAME, None).expect("known")
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
        let told = directory
            .listen(NAME, None)
            .expect_err("refused")
            .to_string();
        assert!(told.contains("is not a socket; remove it"), "{told}");
        assert!(path.symlink_metadata().is_ok());
        assert_eq!(fs::read_dir(scratch.path()).expect("read").count(), 1);
    }

    #[test]
    fn a_process_that_does_not_accept_is_not_waited_for() {
        let (scratch, directory) = directory();
        let path = scratch.path().join(NAME);
        let _busy = busy(&path);
        assert!(directory.listen(NAME, None).expect("known").is_err());
        directory.clean(&Name::OfProcess);
        assert!(path.exists());
    }

    #[test]
    fn only_a_socket_that_nobody_uses_is_replaced() {
        let (scratch, directory) = directory();
        let path = scratch.path().join(NAME);
        let listen = || {
            directory
                .listen(NAME, None)
                .map_err(|error| error.to_string())
        };
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
        let gone = [
            "1.sock",
            "1-2.sock",
            "12.sock.spliced-0123abcd",
            "1-2.sock.spliced-0123abcd",
            NAME,
        ];
        for name in gone {
            abandoned(&path(name));
        }
        let others = [
            ".sock",
            "1-.sock",
            "1.sock.old",
            "1.sock.spliced-0123abc",
            "1.sock.spliced-0123abcG",
            "x.sock",
            "x.sock.spliced-0123abcd",
        ];
        for name in others {
            abandoned(&path(name));
        }
        let (_busy, _client) = busy(&path("1111.sock"));
        let _datagrams = UnixDatagram::bind(path("2222.sock")).expect("bound");
        fs::write(path("3333.sock"), "").expect("written");
        abandoned(&path("target"));
        symlink(path("target"), path("4444.sock")).expect("linked");
        let mut kept = others.to_vec();
        kept.extend(["1111.sock", "2222.sock", "3333.sock", "4444.sock", "target"]);
        if available(Need::Root) {
            let anothers = "5555.sock";
            abandoned(&path(anothers));
            chown(path(anothers), Some(NOBODY), None).expect("given away");
            kept.push(anothers);
        }
        directory.clean(&Name::OfProcess);
        for name in gone {
            assert!(!path(name).exists(), "{name}");
        }
        for name in kept {
            assert!(path(name).symlink_metadata().is_ok(), "{name}");
        }
    }

    /// Not even by a connection, which would take a descriptor.
    #[test]
    fn a_start_does_not_disturb_other_processes() {
        let (scratch, directory) = directory();
        let other = UnixListener::bind(scratch.path().join(NAME)).expect("bound");
        directory.clean(&Name::OfProcess);
        assert!(scratch.path().join(NAME).exists());
        other.set_nonblocking(true).expect("set");
        assert!(other.accept().is_err(), "somebody has connected");
    }

    /// Each of them takes a connection into its backlog and answers nothing.
    #[test]
    fn many_processes_that_do_not_answer_cost_no_time() {
        const MANY: usize = 300;
        let (scratch, directory) = directory();
        let listeners: Vec<_> = (0..MANY)
            .map(|number| scratch.path().join(format!("{number}.sock")))
            .map(|path| UnixListener::bind(path).expect("bound"))
            .collect();
        let begin = Instant::now();
        directory.clean(&Name::OfProcess);
        let elapsed = begin.elapsed();
        assert!(elapsed < 2 * CLEAN_WITHIN, "{elapsed:?}");
        let left = fs::read_dir(scratch.path()).expect("read").count();
        assert_eq!(left, listeners.len());
    }

    /// A directory may have other things in it than control sockets.
    #[test]
    fn a_start_at_a_path_of_its_own_removes_what_was_bound_for_that_path_only() {
        let (scratch, directory) = directory();
        let path = |name: &str| scratch.path().join(name);
        let gone = "web.spliced-0123abcd";
        let kept = [
            "web",
            "1.sock",
            "1.sock.spliced-0123abcd",
            "db.spliced-0123abcd",
        ];
        for name in kept.into_iter().chain([gone]) {
            abandoned(&path(name));
        }
        directory.clean(&Name::Given("web".into()));
        assert!(!path(gone).exists());
        for name in kept {
            assert!(path(name).exists(), "{name}");
        }
    }

    #[test]
    fn a_group_may_connect_and_nobody_else() {
        if !available(Need::Root) {
            return;
        }
        let (scratch, directory) = directory();
        let listen = |group| directory.listen(NAME, group).expect("known").expect("free");
        let access = || {
            let stat = rustix::fs::stat(scratch.path().join(NAME)).expect("a file");
            (stat.st_mode & 0o7777, stat.st_gid)
        };
        let opened = listen(Some(1234));
        assert_eq!(access(), (0o660, 1234));
        drop(opened);
        let _opened = listen(None);
        assert_eq!(access().0, 0o600);
    }

    #[test]
    fn a_path_that_is_too_long_is_told_as_such() {
        let (_scratch, directory) = directory();
        let told = directory
            .listen(&"x".repeat(100), None)
            .expect_err("refused");
        assert!(told.to_string().contains("choose a shorter path"), "{told}");
    }
}
