//! The control socket of another process.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, open};
use rustix::process::geteuid;
use tokio::net::UnixStream;

/// The longest path of a UNIX socket (`sun_path` of `sockaddr_un`, less the NUL).
const PATH_MOST_BYTES: usize = 107;

/// A control socket that this user may ask, perhaps.
#[derive(Debug)]
pub(crate) struct ControlSocket {
    pub(crate) path: PathBuf,
    /// Its file, unless somebody has named the socket.
    file: Option<File>,
}

#[derive(Debug)]
struct File {
    pin: OwnedFd,
    stat: Stat,
}

impl ControlSocket {
    /// One that somebody has named.
    pub(crate) fn named(path: &Path) -> Self {
        Self {
            path: path.into(),
            file: None,
        }
    }

    /// One that was found at `path`, and is `pin`; `None` if that is no socket.
    pub(super) fn found(path: PathBuf, pin: OwnedFd) -> Option<Self> {
        let stat = fstat(&pin).ok()?;
        let is_socket = FileType::from_raw_mode(stat.st_mode).is_socket();
        is_socket.then_some(Self {
            path,
            file: Some(File { pin, stat }),
        })
    }

    /// Device and inode of the file.
    pub(super) fn identity(&self) -> Option<(u64, u64)> {
        let file = self.file.as_ref();
        file.map(|file| (file.stat.st_dev, file.stat.st_ino))
    }

    /// The user to whom the file belongs.
    pub(crate) fn owner(&self) -> Option<u32> {
        self.file.as_ref().map(|file| file.stat.st_uid)
    }

    /// Whether it was found, and belongs to another user, who may have made it to deceive those who look for others. Root has
    /// no need to.
    pub(crate) fn is_anothers(&self) -> bool {
        let user = geteuid().as_raw();
        self.owner()
            .is_some_and(|owner| owner != user && owner != 0)
    }

    /// # Errors
    /// If nobody takes the connection.
    pub(super) async fn connect(&self) -> io::Result<UnixStream> {
        let named;
        let pin = match &self.file {
            Some(file) => &file.pin,
            None if self.path.as_os_str().len() <= PATH_MOST_BYTES => {
                return UnixStream::connect(&self.path).await;
            }
            None => {
                named = open(&self.path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
                &named
            }
        };
        // Another file may be at the path by now.
        let pinned = PathBuf::from(format!("/proc/self/fd/{}", pin.as_raw_fd()));
        match pinned.parent().is_some_and(Path::exists) {
            true => UnixStream::connect(pinned).await,
            false => UnixStream::connect(&self.path).await,
        }
    }
}
