//! The file that a UNIX socket has left which is gone.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::io::Errno;

use crate::socket_address::SocketAddress;

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
