//! The file of a listening UNIX socket.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::fs::{FileType, Mode, OFlags, Stat, fchmod, fstat, open};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::directory_lock::lock_for;
use super::socket_access::{Access, AccessChange, PinnedFile, change_access};
use crate::file_access::{FileAccess, FileMode};
use crate::file_lock::LockWait;
use crate::resource_limit::{limit_met, words};

/// A bit that has no meaning for a socket file, so that no other one has it (`S_ISVTX`).
const MARK: u32 = 0o1000;

/// Has bind(2) mark the file of `socket`: the file gets the mode of the socket, less the umask (`unix_bind_bsd`).
/// [`SocketFile::set_first_access`] knows the file by that, and removes the mark.
pub(super) fn mark(socket: &OwnedFd) -> Result<()> {
    mark_with(socket, EVERYBODY)
        .context("cannot mark the file of the socket; leave mode, owner and group out")
}

/// As [`mark`], of a socket that needs no listen(2). Who is to be kept out could connect as soon as it is bound, and send for
/// ever. So with a mode nobody may, until [`SocketFile::open_to`].
pub(crate) fn mark_closed(socket: &OwnedFd, access: FileAccess) -> Result<(), Errno> {
    match access.mode {
        Some(_) => mark_with(socket, 0),
        None => mark_with(socket, EVERYBODY),
    }
}

fn mark_with(socket: &OwnedFd, bits: u32) -> Result<(), Errno> {
    match can_mark() {
        true => fchmod(socket, Mode::from_raw_mode(bits | MARK)),
        false => Ok(()),
    }
}

/// The mode that a socket has from the start (`sock_alloc`).
const EVERYBODY: u32 = 0o777;

/// The bits that the files of this process do not get (`Umask:` of proc_pid_status(5)). umask(2) could tell only by a change,
/// for all threads.
fn umask() -> Option<u32> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let bits = status
        .lines()
        .find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(bits.trim(), 8).ok()
}

/// Without /proc the mark could not be removed.
fn can_mark() -> bool {
    Path::new("/proc/self/fd").exists()
}

/// A socket file of this process. Drop removes it, unless another file has taken its path.
#[derive(Debug)]
pub(crate) struct SocketFile {
    file: PinnedFile,
    stat: Stat,
    /// As bind(2) has made it.
    made: Access,
    /// It was found to be another one's.
    is_foreign: bool,
    /// Of the lock under which it is removed; `None` if no other process takes it for stale before.
    lock_wait: Option<Arc<LockWait>>,
}

impl SocketFile {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = open(path, flags, Mode::empty()).map_err(|errno| {
            anyhow!(
                "cannot open the socket file: {}; {}",
                words(errno),
                match limit_met(errno) {
                    Some(_) => "raise the limit",
                    None => "choose a directory that nobody else can write to",
                }
            )
        })?;
        let stat = fstat(&pin).context("cannot stat the socket file")?;
        let path = path.into();
        let file = PinnedFile { path, pin };
        let made = Access::of(&file)?.without_bits(MARK);
        Ok(Self {
            file,
            stat,
            made,
            is_foreign: false,
            lock_wait: None,
        })
    }

    /// Has drop remove the file under the lock of those who start at its path.
    pub(super) fn remove_under_lock(&mut self, wait: Arc<LockWait>) {
        self.lock_wait = Some(wait);
    }

    /// Sets who may connect, before anybody can: the socket is bound and does not listen yet.
    ///
    /// # Errors
    /// If this process lacks the right, or the file is not the one that it has made.
    pub(crate) fn set_first_access(&mut self, access: FileAccess) -> Result<()> {
        // Whoever may write to the directory could have put another file there since bind(2), or a link to one.
        let is_marked = !can_mark() || self.stat.st_mode & MARK != 0;
        self.is_foreign = !FileType::from_raw_mode(self.stat.st_mode).is_socket()
            || self.stat.st_uid != geteuid().as_raw()
            || !is_marked;
        ensure!(
            !self.is_foreign,
            "{} is not the socket of this process any more; choose a directory that nobody else can write to",
            self.file.path.display()
        );
        let marked = FileAccess {
            mode: Some(FileMode::ALL),
            ..FileAccess::default()
        };
        change_access(&[self.change(marked, access)?], || Ok(()))
    }

    /// Sets who may send to a datagram socket that [`mark_closed`] has marked.
    ///
    /// # Errors
    /// As [`set_first_access`](Self::set_first_access).
    pub(crate) fn open_to(&mut self, access: FileAccess) -> Result<()> {
        if access.mode.is_some() {
            // What bind(2) would have made: a reload may have no mode any more.
            let bits = EVERYBODY & !umask().unwrap_or(0o077);
            self.made = self.made.clone().with_bits(bits);
        }
        self.set_first_access(access)
    }

    /// The change of who may connect from `former` to `wanted`, which can be made unless something fails that cannot be
    /// known before. A key that `wanted` has no more goes back to what bind(2) has made; one that neither has stays.
    ///
    /// # Errors
    /// If this process lacks a right, or the path leads to another file.
    pub(crate) fn change(
        &self,
        former: FileAccess,
        wanted: FileAccess,
    ) -> Result<AccessChange<'_>> {
        ensure!(self.is_in_place(), "{}", self.words_if_gone());
        AccessChange::checked(&self.file, &self.made, former, wanted)
    }

    /// What to say if the path does not lead to the socket any more.
    pub(crate) fn words_if_gone(&self) -> String {
        format!(
            "{} is not the socket of this process any more: it was removed or replaced; remove the listener in a reload and \
             add it in another one, or restart the process",
            self.file.path.display()
        )
    }

    /// The file has another name by now.
    pub(crate) fn has_moved_to(&mut self, path: &Path) {
        self.file.path = path.into();
    }

    /// Whether the path leads to the file.
    pub(crate) fn is_in_place(&self) -> bool {
        let own = (self.stat.st_dev, self.stat.st_ino);
        Self::identity(&self.file.path).is_ok_and(|now| now == own)
    }

    /// Device and inode of the file at `path`.
    pub(crate) fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
        let metadata = fs::symlink_metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_foreign || !self.is_in_place() {
            return;
        }
        // Its socket may be closed, and then a start replaces it.
        let wait = self.lock_wait.as_ref();
        let _lock = wait.and_then(|wait| lock_for(&self.file.path, wait));
        if self.is_in_place() {
            let removed = fs::remove_file(&self.file.path);
            if removed.is_err() && self.file.take_back().is_ok() {
                // In a directory with the sticky bit, only its owner may. A failure can be ignored: the next start
                // removes a stale file.
                let _ = fs::remove_file(&self.file.path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use netlab::{Need, Scratch, available, present};
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use rustix::process::Uid;
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities, set_thread_res_uid};

    use super::*;

    /// Owns nothing, by convention.
    const NOBODY: u32 = 65534;

    /// A list that lets [`NOBODY`] write, as setfacl(1) stores `u::rwx,u:nobody:rw,g::-,m::rwx,o::-`
    /// (`posix_acl_xattr_header`).
    fn list() -> Vec<u8> {
        let mut list = 2_u32.to_le_bytes().to_vec();
        for (tag, bits, id) in [
            (0x01_u16, 7_u16, u32::MAX),
            (0x02, 6, NOBODY),
            (0x04, 0, u32::MAX),
            (0x10, 7, u32::MAX),
            (0x20, 0, u32::MAX),
        ] {
            list.extend(tag.to_le_bytes());
            list.extend(bits.to_le_bytes());
            list.extend(id.to_le_bytes());
        }
        list
    }

    fn access(mode: &str, owner: Option<u32>, group: Option<u32>) -> FileAccess {
        FileAccess {
            mode: Some(mode.parse().expect(mode)),
            owner,
            group,
        }
    }

    fn shown(path: &Path) -> (u32, u32, u32) {
        let metadata = fs::metadata(path).expect("a file");
        (metadata.mode() & 0o7777, metadata.uid(), metadata.gid())
    }

    /// What connect(2) answers another user.
    fn connect_as_nobody(path: &Path) -> std::io::Result<()> {
        thread::scope(|scope| {
            let client = scope.spawn(|| {
                let user = Uid::from_raw(NOBODY);
                // Of this thread alone.
                set_thread_res_uid(user, user, user).expect("another user");
                UnixStream::connect(path).map(drop)
            });
            client.join().expect("no panic")
        })
    }

    /// A socket file and the access that it was given last.
    fn change(file: &SocketFile, last: &mut FileAccess, wanted: FileAccess) {
        let change = file.change(*last, wanted).expect("possible");
        change_access(&[change], || Ok(())).expect("made");
        *last = wanted;
    }

    /// A directory whose files inherit [`list`]; `None` if there are no lists here.
    fn with_default_list(scratch: &Scratch) -> Option<()> {
        let flags = XattrFlags::empty();
        let set = setxattr(scratch.path(), "system.posix_acl_default", &list(), flags);
        let missing = set.err().map(|errno| errno.to_string());
        present("access control lists", missing).then_some(())
    }

    fn list_of(path: &Path) -> Option<Vec<u8>> {
        let mut list = vec![0; 128];
        let length = getxattr(path, "system.posix_acl_access", &mut list).ok()?;
        list.truncate(length);
        Some(list)
    }

    #[test]
    fn who_may_connect_is_changed_and_changed_back() {
        if !available(Need::Root) {
            return;
        }
        let scratch = Scratch::new("access").expect("a directory");
        let path = scratch.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("bound");
        let made = shown(&path);
        let file = SocketFile::of(&path).expect("a file");
        let may_connect = || connect_as_nobody(&path).is_ok();
        let mut last = FileAccess::default();
        let mut change = |wanted| change(&file, &mut last, wanted);
        change(access("0600", None, None));
        assert_eq!(shown(&path), (0o600, made.1, made.2));
        assert!(!may_connect());
        change(access("0606", None, Some(NOBODY)));
        assert_eq!(shown(&path), (0o606, made.1, NOBODY));
        assert!(may_connect());
        change(access("0600", Some(NOBODY), Some(1)));
        assert_eq!(shown(&path), (0o600, NOBODY, 1));
        assert!(may_connect());
        // An owner may have linked it elsewhere.
        fs::hard_link(&path, scratch.path().join("link")).expect("linked");
        change(FileAccess::default());
        assert_eq!(shown(&path), made);
    }

    #[test]
    fn a_list_that_the_directory_passes_on_lets_nobody_in() {
        if !available(Need::Root) {
            return;
        }
        let scratch = Scratch::new("access").expect("a directory");
        if with_default_list(&scratch).is_none() {
            return;
        }
        let path = scratch.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("bound");
        // Of what the list allows, bind(2) leaves what the umask does. A mode of the group is the mask of the list.
        fs::set_permissions(&path, Permissions::from_mode(0o660)).expect("set");
        let file = SocketFile::of(&path).expect("a file");
        let (made, list_made) = (shown(&path), list_of(&path));
        assert!(list_made.is_some());
        connect_as_nobody(&path).expect("the list lets it in");
        let mut last = FileAccess::default();
        change(&file, &mut last, access("0660", None, Some(1234)));
        assert_eq!(shown(&path).0, 0o660);
        assert_eq!(list_of(&path), None);
        connect_as_nobody(&path).expect_err("the mode keeps it out");
        // Without the list, its mask would be what the group may do, and the list gives the group nothing.
        change(&file, &mut last, FileAccess::default());
        assert_eq!((shown(&path), list_of(&path)), (made, list_made));
        connect_as_nobody(&path).expect("the list lets it in");
    }

    /// What an administrator has changed meanwhile is a part of that.
    #[test]
    fn a_change_that_fails_restores_what_was_there() {
        if !available(Need::Root) {
            return;
        }
        let scratch = Scratch::new("access").expect("a directory");
        let has_lists = with_default_list(&scratch).is_some();
        let [first, second] = ["first", "second"].map(|name| scratch.path().join(name));
        let _listeners = [&first, &second].map(|path| UnixListener::bind(path).expect("bound"));
        let files = [&first, &second].map(|path| SocketFile::of(path).expect("a file"));
        fs::set_permissions(&first, Permissions::from_mode(0o640)).expect("set");
        chown(&first, None, Some(1234)).expect("set");
        let all = || [&first, &second].map(|path| (shown(path), list_of(path)));
        let before = all();
        assert_eq!(before[0].1.is_some(), has_lists);
        // With CAP_FOWNER the owner changes before anybody is let in, without it afterwards.
        for dropped in [
            CapabilitySet::CHOWN,
            CapabilitySet::CHOWN | CapabilitySet::FOWNER,
        ] {
            thread::scope(|scope| {
                let changing = scope.spawn(|| {
                    let former = FileAccess::default();
                    let mut held = capabilities(None).expect("known");
                    let all_held = held.effective;
                    // Of this thread alone.
                    let mut set = |effective: CapabilitySet| {
                        held.effective = effective;
                        set_capabilities(None, held).expect("set");
                    };
                    set((all_held - dropped) | CapabilitySet::CHOWN);
                    let changes = [
                        files[0].change(former, access("0606", None, None)),
                        files[1].change(former, access("0666", Some(NOBODY), None)),
                    ];
                    let changes = changes.map(|change| change.expect("possible"));
                    set(all_held - dropped);
                    let told = change_access(&changes, || Ok(())).expect_err("not allowed");
                    let told = told.to_string();
                    assert!(told.contains("cannot belong to user"), "{told}");
                });
                changing.join().expect("no panic");
            });
            assert_eq!(all(), before);
        }
    }

    /// Whoever may write to the directory could have the process open up another file.
    #[test]
    fn another_file_at_the_path_is_left_alone() {
        let scratch = Scratch::new("access").expect("a directory");
        let [path, secret, other] =
            ["socket", "secret", "other"].map(|name| scratch.path().join(name));
        fs::write(&secret, "").expect("written");
        fs::set_permissions(&secret, Permissions::from_mode(0o600)).expect("set");
        let _other = UnixListener::bind(&other).expect("bound");
        let before = shown(&other);
        let tried = || {
            let mut file = SocketFile::of(&path).expect("a file");
            let error = file.set_first_access(access("0666", None, None));
            drop(file);
            assert!(path.symlink_metadata().is_ok(), "it is another one's");
            error.expect_err("refused").to_string()
        };
        symlink(&secret, &path).expect("linked");
        assert!(tried().contains("is not the socket of this process"));
        fs::remove_file(&path).expect("removed");
        fs::hard_link(&secret, &path).expect("linked");
        assert!(tried().contains("is not the socket of this process"));
        fs::remove_file(&path).expect("removed");
        fs::hard_link(&other, &path).expect("linked");
        assert!(tried().contains("is not the socket of this process"));
        // It has one name only.
        fs::remove_file(&other).expect("removed");
        assert!(tried().contains("is not the socket of this process"));
        assert_eq!((shown(&secret).0, shown(&path)), (0o600, before));
        fs::remove_file(&path).expect("removed");
        // It is replaced between the two.
        let listener = UnixListener::bind(&path).expect("bound");
        let file = SocketFile::of(&path).expect("a file");
        let made = shown(&path);
        fs::rename(&path, scratch.path().join("moved")).expect("moved");
        symlink(&secret, &path).expect("linked");
        let change = file.change(FileAccess::default(), access("0666", None, None));
        let told = change.expect_err("another file").to_string();
        assert!(told.contains("removed or replaced"), "{told}");
        assert_eq!(shown(&secret).0, 0o600);
        assert_eq!(shown(&scratch.path().join("moved")), made);
        drop((listener, file));
        assert!(path.symlink_metadata().is_ok());
    }
}
