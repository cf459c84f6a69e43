//! The directory with the admin sockets of a user.
//!
//! A socket is removed and made under a lock: otherwise one start could take the socket that another one has just made
//! from its place, and that would have to make it again. The lock is a file that only this user can open, since whoever can open a file can
//! lock it.

use std::ffi::CStr;
use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher as _, RandomState};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{
    AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, chmod, fchmod, flock, fstat,
    linkat, open, openat, renameat, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Uid, geteuid, pidfd_open};

use crate::listener::SocketFile;
use crate::resource_limit::words;

/// How long a start waits until no other one looks for its socket.
const LOCK_WITHIN: Duration = Duration::from_secs(1);

/// How often it looks.
const LOCK_EVERY: Duration = Duration::from_millis(10);

/// How long a start removes sockets of killed processes. The next one removes the others.
const CLEAN_WITHIN: Duration = Duration::from_millis(500);

/// How often it is looked whether the file of another process is gone.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often a process is connected to whose end cannot be waited for. One that is stopped keeps each of these
/// connections in its backlog.
const CONNECT_EVERY: Duration = Duration::from_secs(1);

const LOCK: &str = "lock";

/// A directory to which only this user and root can add files.
#[derive(Debug)]
pub(super) struct RunDirectory {
    path: PathBuf,
    handle: OwnedFd,
    user: Uid,
}

/// A living process has the socket.
#[derive(Debug)]
pub(super) struct Taken {
    path: PathBuf,
    /// `None` if it is gone already.
    file: Option<(u64, u64)>,
    /// The process, if the kernel tells.
    owner: Option<OwnedFd>,
}

/// A socket that listens, with its file.
pub(super) type Opened = (UnixListener, SocketFile);

/// Where the sockets of this user are.
pub(super) fn path_for_user() -> PathBuf {
    let user = geteuid();
    match user.is_root() {
        true => PathBuf::from("/run/spliced"),
        false => PathBuf::from(format!("/run/user/{}/spliced", user.as_raw())),
    }
}

impl RunDirectory {
    /// Opens `path`, and makes it if there is none.
    ///
    /// # Errors
    /// If somebody else could put a socket there.
    pub(super) fn open(path: PathBuf) -> Result<Self> {
        let shown = path.display();
        // One that is there already may be a symbolic link, or somebody else's.
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                anyhow!(
                    "cannot make {shown}: {}; {}",
                    words(errno),
                    remedy(errno, "make it, or remove what is in its place")
                )
            })?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let handle = match open(&path, flags, Mode::empty()) {
            Err(Errno::NOTDIR | Errno::LOOP) => {
                bail!("{shown} is a symbolic link, which is not followed; remove it")
            }
            opened => opened.with_context(|| format!("cannot open {shown}"))?,
        };
        let user = geteuid();
        let stat = fstat(&handle).with_context(|| format!("cannot stat {shown}"))?;
        let (owner, mode) = (stat.st_uid, stat.st_mode & 0o7777);
        ensure!(
            owner == 0 || owner == user.as_raw(),
            "{shown} belongs to user {owner}, who could answer in the place of this process; remove it, or give it to user {}",
            user.as_raw()
        );
        ensure!(
            mode & 0o022 == 0,
            "others may write to {shown} (mode {mode:04o}) and could answer in the place of this process; run 'chmod go-w \
             {shown}'"
        );
        Ok(Self { path, handle, user })
    }

    /// Waits until no other start of this user looks for its socket. That ends when the result is dropped.
    ///
    /// # Errors
    /// If another one keeps the lock, or it cannot be trusted.
    pub(super) fn lock(&self) -> Result<OwnedFd> {
        let path = self.path.join(LOCK);
        let shown = path.display();
        // A FIFO would not have to be waited for.
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let lock = openat(&self.handle, LOCK, flags, mode).map_err(|errno| {
            anyhow!(
                "cannot open {shown}: {}; {}",
                words(errno),
                remedy(errno, "remove it")
            )
        })?;
        let stat = fstat(&lock).with_context(|| format!("cannot stat {shown}"))?;
        ensure!(
            FileType::from_raw_mode(stat.st_mode).is_file()
                && self.is_own(&stat)
                && stat.st_mode & 0o077 == 0,
            "others can open {shown}, and so keep it locked; remove it"
        );
        // The umask may have taken the right to open it again.
        if stat.st_mode & mode.as_raw_mode() != mode.as_raw_mode() {
            let _ = fchmod(&lock, mode);
        }
        let until = Instant::now() + LOCK_WITHIN;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(lock),
                Err(Errno::WOULDBLOCK) if Instant::now() < until => thread::sleep(LOCK_EVERY),
                Err(Errno::WOULDBLOCK) => bail!(
                    "another process has kept {shown} locked for {} s; end it",
                    LOCK_WITHIN.as_secs()
                ),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno).with_context(|| format!("cannot lock {shown}")),
            }
        }
    }

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
            Ok(connected) => return Ok(Err(Taken::by(path, owner_of(&connected)))),
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

    fn is_own(&self, stat: &Stat) -> bool {
        stat.st_uid == self.user.as_raw()
    }
}

impl Taken {
    fn by(path: PathBuf, owner: Option<OwnedFd>) -> Self {
        let file = SocketFile::identity(&path).ok();
        Self { path, file, owner }
    }

    /// Waits until the process seems to be gone, or has to be asked again.
    pub(super) fn wait(&self) {
        let Some(owner) = &self.owner else {
            return thread::sleep(CONNECT_EVERY);
        };
        while self.file.is_some() && SocketFile::identity(&self.path).ok() == self.file {
            let mut ended = [PollFd::new(owner, PollFlags::IN)];
            let time = Timespec::try_from(LOOK_EVERY).ok();
            if poll(&mut ended, time.as_ref()).is_ok_and(|count| count > 0) {
                return;
            }
        }
    }
}

/// The process at the other end.
fn owner_of(connected: &impl AsFd) -> Option<OwnedFd> {
    let id = getsockopt(&connected.as_fd(), PeerCredentials).ok()?.pid();
    // It has no number in this PID namespace if it is in another one.
    pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()
}

/// What to do against `errno`.
fn remedy(errno: Errno, otherwise: &'static str) -> &'static str {
    match errno {
        Errno::ROFS => "mount its file system writable",
        Errno::NOSPC | Errno::DQUOT => "free space or files on its file system",
        Errno::MFILE | Errno::NFILE => "raise the limit",
        Errno::NOMEM | Errno::NOBUFS => "free memory",
        _ => otherwise,
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
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::{UnixDatagram, UnixStream};
    use std::path::Path;
    use std::sync::Barrier;

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

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
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

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("run");
        let refusal = || {
            RunDirectory::open(path.clone())
                .expect_err("refused")
                .to_string()
        };
        fs::create_dir(&path).expect("made");
        for mode in [0o777, 0o770, 0o1702] {
            set_mode(&path, mode);
            let told = refusal();
            assert!(told.contains("others may write to /"), "{told}");
            assert!(told.contains(&format!("(mode {mode:04o})")), "{told}");
        }
        set_mode(&path, 0o755);
        RunDirectory::open(path.clone()).expect("usable");
        if available(Need::Root) {
            chown(&path, Some(NOBODY), None).expect("given away");
            let told = refusal();
            assert!(told.contains("belongs to user 65534"), "{told}");
        }
        fs::remove_dir(&path).expect("removed");
        symlink(scratch.path(), &path).expect("linked");
        let told = refusal();
        assert!(told.contains("is a symbolic link"), "{told}");
    }

    #[test]
    fn a_lock_is_for_its_user_alone_and_not_waited_for_long() {
        let (scratch, directory) = directory();
        let path = scratch.path().join(LOCK);
        let held = directory.lock().expect("locked");
        let mode = fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Whoever may open the directory can lock that, and disturbs nobody.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let of_another = open(scratch.path(), flags, Mode::empty()).expect("opened");
        flock(&of_another, FlockOperation::NonBlockingLockExclusive).expect("free");
        let begin = Instant::now();
        let told = directory.lock().expect_err("held").to_string();
        assert!(told.contains("kept /") && told.contains("end it"), "{told}");
        assert!(begin.elapsed() < 5 * LOCK_WITHIN);
        drop(held);
        directory.lock().expect("locked");
        set_mode(&path, 0o644);
        let told = directory.lock().expect_err("not trusted").to_string();
        assert!(told.contains("others can open"), "{told}");
    }
}
