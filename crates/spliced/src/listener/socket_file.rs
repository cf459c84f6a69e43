//! The file of a listening UNIX socket.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::io::Errno;

use crate::socket_address::SocketAddress;

/// A socket file of this process. Drop removes it, unless another file has taken its path.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    device_and_inode: (u64, u64),
    /// Keeps the inode. Otherwise a file that takes the path could have the number of a former one.
    _pin: OwnedFd,
}

impl SocketFile {
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let pin = open(path, flags, Mode::empty()).context("cannot open the socket file")?;
        let stat = fstat(&pin).context("cannot stat the socket file")?;
        Ok(Self {
            path: path.into(),
            device_and_inode: (stat.st_dev, stat.st_ino),
            _pin: pin,
        })
    }

    /// Device and inode of the file at `path`.
    pub(crate) fn identity(path: &Path) -> std::io::Result<(u64, u64)> {
        let metadata = fs::symlink_metadata(path)?;
        Ok((metadata.dev(), metadata.ino()))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if Self::identity(&self.path).is_ok_and(|now| now == self.device_and_inode) {
            // A failure can be ignored: the next start removes a stale file.
            let _ = fs::remove_file(&self.path);
        }
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
