//! A socket that another process has.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::listener::SocketFile;

/// How often it is looked whether the file of another process is gone.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// How often a process is connected to whose end cannot be waited for. One that is stopped keeps each of these
/// connections in its backlog.
const CONNECT_EVERY: Duration = Duration::from_secs(1);

/// A living process has the socket.
#[derive(Debug)]
pub(super) struct Taken {
    path: PathBuf,
    /// `None` if it is gone already.
    pub(super) file: Option<(u64, u64)>,
    /// The process, if the kernel tells.
    pub(super) owner: Option<OwnedFd>,
}

impl Taken {
    /// `connected` is a connection to it.
    pub(super) fn by(path: PathBuf, connected: Option<&OwnedFd>) -> Self {
        Self {
            file: SocketFile::identity(&path).ok(),
            path,
            owner: connected.and_then(owner_of),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
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
fn owner_of(connected: &OwnedFd) -> Option<OwnedFd> {
    let id = getsockopt(&connected.as_fd(), PeerCredentials).ok()?.pid();
    // It has no number in this PID namespace if it is in another one.
    pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()
}
