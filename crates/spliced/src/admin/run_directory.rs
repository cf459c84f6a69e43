//! The directory of a control socket.
//!
//! A socket is removed and made under a lock. Otherwise one start could take the socket that another one has just made
//! from its place, and that would have to make it again. The lock is a file that only this user can open: whoever can
//! open a file can lock it.

use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::fs::{Access, AtFlags, accessat};
use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, open, openat};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};

use crate::file_lock::{FileLock, LOCK_WITHIN, LockWait};
use crate::resource_limit::words;

/// A directory to which only this user and root can add files.
#[derive(Debug)]
pub(super) struct RunDirectory {
    pub(super) path: PathBuf,
    pub(super) handle: OwnedFd,
    /// The name of its lock.
    lock: String,
    user: Uid,
}

impl RunDirectory {
    /// Opens `path`, and makes it if there is none. Others may enter it if it `lets_in`, as far as it is this user's: a
    /// group may then connect to a socket in it.
    ///
    /// # Errors
    /// If somebody else could put a socket there.
    pub(super) fn open(path: PathBuf, lock: &str, lets_in: bool) -> Result<Self> {
        let shown = path.display();
        // One that is there already may be a symbolic link, or somebody else's.
        DirBuilder::new()
            .recursive(true)
            .mode(if lets_in { 0o711 } else { 0o700 })
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
            opened => opened.map_err(|errno| {
                anyhow!(
                    "cannot open {shown}: {}; {}",
                    words(errno),
                    remedy(errno, "make it readable for its user")
                )
            })?,
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
            "others may write to {shown} (mode {mode:04o}) and could answer in the place of this process; {}",
            match mode & 0o1000 {
                0 => format!("run 'chmod go-w {shown}'"),
                // It is for everybody, such as /tmp.
                _ => "choose a directory below it".into(),
            }
        );
        let wanted = Access::WRITE_OK | Access::EXEC_OK;
        accessat(&handle, "", wanted, AtFlags::EACCESS | AtFlags::EMPTY_PATH)
            .or_else(|errno| match errno {
                // Before Linux 5.8 there is no faccessat2(2).
                Errno::NOSYS | Errno::INVAL => Ok(()),
                errno => Err(errno),
            })
            .map_err(|errno| {
                anyhow!(
                    "user {} cannot write to {shown}: {}; give the directory to this user",
                    user.as_raw(),
                    words(errno)
                )
            })?;
        if lets_in && owner == user.as_raw() && mode & 0o011 != 0o011 {
            fchmod(&handle, Mode::from_raw_mode(mode | 0o011))
                .with_context(|| format!("cannot let others enter {shown}"))?;
        }
        Ok(Self {
            path,
            handle,
            lock: lock.into(),
            user,
        })
    }

    /// Waits until no other start of this user looks for its socket. That ends when the result is dropped.
    ///
    /// # Errors
    /// If another one keeps the lock, or it cannot be trusted.
    pub(super) fn lock(&self) -> Result<FileLock> {
        let path = self.path.join(&self.lock);
        let shown = path.display();
        // A FIFO would not have to be waited for.
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mode = Mode::RUSR | Mode::WUSR;
        let lock = openat(&self.handle, &self.lock, flags, mode).map_err(|errno| {
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
        FileLock::of(lock, &LockWait::default()).map_err(|errno| match errno {
            Errno::WOULDBLOCK => anyhow!(
                "another process has kept {shown} locked for {} s; end it",
                LOCK_WITHIN.as_secs()
            ),
            errno => anyhow!("cannot lock {shown}: {}", words(errno)),
        })
    }

    pub(super) fn is_own(&self, stat: &Stat) -> bool {
        stat.st_uid == self.user.as_raw()
    }
}

/// What to do against `errno`.
pub(super) fn remedy(errno: Errno, otherwise: &'static str) -> &'static str {
    match errno {
        Errno::ROFS => "mount its file system writable",
        Errno::NOSPC | Errno::DQUOT => "free space or files on its file system",
        Errno::MFILE | Errno::NFILE => "raise the limit",
        Errno::NOMEM | Errno::NOBUFS => "free memory",
        _ => otherwise,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::Path;
    use std::time::Instant;

    use netlab::{Need, Scratch, available};
    use rustix::fs::{FlockOperation, flock};

    use super::*;

    const LOCK: &str = "lock";

    /// Owns nothing, by convention.
    const NOBODY: u32 = 65534;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn a_directory_that_others_can_write_to_is_refused() {
        let scratch = Scratch::new("admin").expect("a directory");
        let path = scratch.path().join("run");
        let refusal = || {
            RunDirectory::open(path.clone(), "lock", false)
                .expect_err("refused")
                .to_string()
        };
        fs::create_dir(&path).expect("made");
        for mode in [0o777, 0o770, 0o1702] {
            set_mode(&path, mode);
            let told = refusal();
            let is_for_all = mode & 0o1000 != 0;
            assert_eq!(told.contains("choose a directory"), is_for_all, "{told}");
            assert!(told.contains("others may write to /"), "{told}");
            assert!(told.contains(&format!("(mode {mode:04o})")), "{told}");
        }
        set_mode(&path, 0o755);
        RunDirectory::open(path.clone(), "lock", false).expect("usable");
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
        let scratch = Scratch::new("admin").expect("a directory");
        let directory = RunDirectory::open(scratch.path().into(), LOCK, false).expect("usable");
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
