//! The file of a listening UNIX socket.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, Stat, Uid, chmod, chownat, fstat, open, removexattr,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::file_access::{FileAccess, FileMode};
use crate::resource_limit::words;
use crate::socket_address::SocketAddress;

/// Of a mode, without the type.
const PERMISSIONS: u32 = 0o7777;

/// A socket file of this process. Drop removes it, unless another file has taken its path.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    /// Keeps the inode. Otherwise a file that takes the path could have the number of a former one.
    pin: OwnedFd,
    /// As bind(2) has made it.
    made: Stat,
}

impl SocketFile {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = open(path, flags, Mode::empty()).context("cannot open the socket file")?;
        let made = fstat(&pin).context("cannot stat the socket file")?;
        Ok(Self {
            path: path.into(),
            pin,
            made,
        })
    }

    /// Changes who may connect. What `access` leaves open is as bind(2) has made it. Meanwhile nobody may connect who may
    /// neither before nor afterwards.
    ///
    /// # Errors
    /// If this process lacks the right, or the file is not the one that it has made.
    pub(crate) fn set_access(&self, access: FileAccess) -> Result<()> {
        let shown = self.path.display();
        let now = fstat(&self.pin).context("cannot stat the socket file")?;
        // Whoever may write to the directory could have put another file there since bind(2), or a link to one.
        ensure!(
            FileType::from_raw_mode(self.made.st_mode).is_socket()
                && self.made.st_uid == geteuid().as_raw()
                && now.st_nlink == 1,
            "{shown} is not the socket of this process any more; choose a directory that nobody else can write to"
        );
        let mode = access
            .mode
            .map_or(self.made.st_mode & PERMISSIONS, FileMode::bits);
        let mode_now = now.st_mode & PERMISSIONS;
        let owner = access.owner.unwrap_or(self.made.st_uid);
        let group = access.group.unwrap_or(self.made.st_gid);
        let narrow = mode & mode_now;
        if narrow != mode_now {
            self.set_mode(narrow, now.st_uid)?;
        }
        if group != now.st_gid {
            chownat(
                &self.pin,
                "",
                None,
                Some(Gid::from_raw(group)),
                AtFlags::EMPTY_PATH,
            )
            .map_err(|errno| why_not_group(errno, &self.path, group))?;
        }
        if access.mode.is_some() {
            self.remove_list()?;
        }
        if narrow != mode {
            self.set_mode(mode, now.st_uid)?;
        }
        // Last: who gives the file away may lose the right to do the rest.
        if owner != now.st_uid {
            chownat(
                &self.pin,
                "",
                Some(Uid::from_raw(owner)),
                None,
                AtFlags::EMPTY_PATH,
            )
            .map_err(|errno| why_not_owner(errno, &self.path, owner))?;
        }
        Ok(())
    }

    fn set_mode(&self, mode: u32, owner: u32) -> Result<()> {
        let shown = self.path.display();
        let user = geteuid().as_raw();
        // fchmod(2) refuses a descriptor that is only a path, and a path could lead elsewhere.
        chmod(self.pinned()?, Mode::from_raw_mode(mode)).map_err(|errno| match errno {
            Errno::PERM => anyhow!(
                "user {user}, who runs this process, may not change the mode of {shown}, which belongs to user {owner}; run \
                 it as that user, or grant CAP_FOWNER"
            ),
            errno => anyhow!("cannot set the mode of {shown} to {mode:04o}: {}", words(errno)),
        })
    }

    /// Removes the access control list that the file has inherited from its directory: it would let others in, and what
    /// the mode says of the group would only be its mask.
    fn remove_list(&self) -> Result<()> {
        match removexattr(self.pinned()?, "system.posix_acl_access") {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
            Err(errno) => bail!(
                "cannot remove the access control list of {}, which could let others connect: {}; remove the default list of \
                 its directory with 'setfacl -k'",
                self.path.display(),
                words(errno)
            ),
        }
    }

    /// A path that leads to the file, whatever becomes of its own.
    fn pinned(&self) -> Result<String> {
        let pinned = format!("/proc/self/fd/{}", self.pin.as_raw_fd());
        ensure!(
            Path::new(&pinned).exists(),
            "the mode of {} cannot be set without /proc; mount it, or leave mode out",
            self.path.display()
        );
        Ok(pinned)
    }

    /// Device and inode of the file at `path`.
    pub(crate) fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
        let metadata = fs::symlink_metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let own = (self.made.st_dev, self.made.st_ino);
        if Self::identity(&self.path).is_ok_and(|now| now == own) {
            // A failure can be ignored: the next start removes a stale file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn why_not_group(errno: Errno, path: &Path, group: u32) -> anyhow::Error {
    let (shown, user) = (path.display(), geteuid().as_raw());
    match errno {
        Errno::PERM => anyhow!(
            "{shown} cannot have group {group}: user {user}, who runs this process, is not in it and has no CAP_CHOWN; add \
             that user to the group, grant the capability, or leave group out"
        ),
        errno => anyhow!("{shown} cannot have group {group}: {}", words(errno)),
    }
}

fn why_not_owner(errno: Errno, path: &Path, owner: u32) -> anyhow::Error {
    let (shown, user) = (path.display(), geteuid().as_raw());
    match errno {
        Errno::PERM => anyhow!(
            "{shown} cannot belong to user {owner}: user {user}, who runs this process, has no CAP_CHOWN; grant it, or leave \
             owner out"
        ),
        errno => anyhow!("{shown} cannot belong to user {owner}: {}", words(errno)),
    }
}

/// Removes the file at `path` if it is a socket on which nobody listens any more. Returns false if
/// somebody does.
pub(super) fn remove_stale(path: &Path, address: &SocketAddress) -> Result<bool> {
    remove_stale_by(path, address, &unix_socket(address)?)
}

/// The same with `probe`, a socket of the kind that the file should have.
pub(crate) fn remove_stale_by(
    path: &Path,
    address: &SocketAddress,
    probe: &OwnedFd,
) -> Result<bool> {
    let metadata = fs::symlink_metadata(path).with_context(|| format!("cannot stat {address}"))?;
    if !metadata.file_type().is_socket() {
        bail!("the file exists and is not a socket; remove it or choose another");
    }
    if address.connect(probe) != Err(Errno::CONNREFUSED) {
        return Ok(false);
    }
    fs::remove_file(path).map_err(|error| {
        anyhow!("cannot remove the stale socket file: {error}; remove it or choose another")
    })?;
    Ok(true)
}

pub(super) fn unix_socket(address: &SocketAddress) -> Result<OwnedFd> {
    address.socket().map_err(|errno| {
        anyhow!(
            "cannot create a UNIX socket: {}; raise the limit or listen on a TCP address",
            std::io::Error::from(errno)
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::thread;

    use netlab::{Need, Scratch, available, present};
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    use rustix::thread::set_thread_res_uid;

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
        file.set_access(access("0600", None, None)).expect("set");
        assert_eq!(shown(&path), (0o600, made.1, made.2));
        assert!(!may_connect());
        file.set_access(access("0606", None, Some(NOBODY)))
            .expect("set");
        assert_eq!(shown(&path), (0o606, made.1, NOBODY));
        assert!(may_connect());
        file.set_access(access("0600", Some(NOBODY), Some(1)))
            .expect("set");
        assert_eq!(shown(&path), (0o600, NOBODY, 1));
        assert!(may_connect());
        file.set_access(FileAccess::default()).expect("set");
        assert_eq!(shown(&path), made);
    }

    #[test]
    fn a_list_that_the_directory_passes_on_lets_nobody_in() {
        if !available(Need::Root) {
            return;
        }
        let scratch = Scratch::new("access").expect("a directory");
        let of_directory = setxattr(
            scratch.path(),
            "system.posix_acl_default",
            &list(),
            XattrFlags::empty(),
        );
        let missing = of_directory.err().map(|errno| errno.to_string());
        if !present("access control lists", missing) {
            return;
        }
        let path = scratch.path().join("socket");
        let _listener = UnixListener::bind(&path).expect("bound");
        let file = SocketFile::of(&path).expect("a file");
        // Of what the list allows, bind(2) leaves what the umask does. A mode of the group is the mask of the list.
        fs::set_permissions(&path, Permissions::from_mode(0o660)).expect("set");
        connect_as_nobody(&path).expect("the list lets it in");
        file.set_access(access("0660", None, Some(1234)))
            .expect("set");
        assert_eq!(shown(&path).0, 0o660);
        let left = getxattr(&path, "system.posix_acl_access", &mut [0; 128]);
        assert_eq!(left, Err(Errno::NODATA));
        connect_as_nobody(&path).expect_err("the mode keeps it out");
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
            let file = SocketFile::of(&path).expect("a file");
            let error = file.set_access(access("0666", None, None));
            std::mem::forget(file);
            fs::remove_file(&path).expect("removed");
            error.expect_err("refused").to_string()
        };
        symlink(&secret, &path).expect("linked");
        assert!(tried().contains("is not the socket of this process"));
        fs::hard_link(&secret, &path).expect("linked");
        assert!(tried().contains("is not the socket of this process"));
        fs::hard_link(&other, &path).expect("linked");
        assert!(tried().contains("is not the socket of this process"));
        assert_eq!((shown(&secret).0, shown(&other)), (0o600, before));
        // It is replaced between the two.
        let listener = UnixListener::bind(&path).expect("bound");
        let file = SocketFile::of(&path).expect("a file");
        fs::rename(&path, scratch.path().join("moved")).expect("moved");
        symlink(&secret, &path).expect("linked");
        file.set_access(access("0666", None, None)).expect("set");
        assert_eq!(shown(&secret).0, 0o600);
        assert_eq!(shown(&scratch.path().join("moved")).0, 0o666);
        drop((listener, file));
        assert!(path.symlink_metadata().is_ok());
    }
}
