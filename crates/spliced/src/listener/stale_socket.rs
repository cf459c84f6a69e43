//! The file that a UNIX socket has left which is gone.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::io::Errno;
use rustix::process::geteuid;

use crate::resource_limit::words;
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
    match address.connect(probe) {
        Err(Errno::CONNREFUSED) => {}
        // Another network namespace may have the socket, and no list here has it then.
        Err(Errno::ACCESS) => bail!(
            "whether somebody listens there cannot be told, since user {}, who runs this process, may not connect to the \
             socket file of user {}; remove it if nobody does, or choose another",
            geteuid().as_raw(),
            metadata.uid()
        ),
        _ => return Ok(false),
    }
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => bail!(
            "user {}, who runs this process, may not remove the stale socket file, which belongs to user {}: {error}; remove \
             it as that user, or listen in a directory that belongs to user {0}",
            geteuid().as_raw(),
            metadata.uid()
        ),
        Err(error) => {
            bail!("cannot remove the stale socket file: {error}; remove it or choose another")
        }
    }
}

pub(super) fn unix_socket(address: &SocketAddress) -> Result<OwnedFd> {
    address.socket().map_err(|errno| {
        anyhow!(
            "cannot create a UNIX socket: {}; raise the limit or listen on a TCP address",
            words(errno)
        )
    })
}
