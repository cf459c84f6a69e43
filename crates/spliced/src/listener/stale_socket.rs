//! The file that a UNIX socket has left which is gone.

use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
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
        // A former process may have given it away.
        Err(Errno::ACCESS) if !is_bound(path, &metadata)? => {}
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

/// Whether a socket is bound to the file at `path`, to which this process may not connect. The kernel lists those of the
/// network namespace.
fn is_bound(path: &Path, metadata: &Metadata) -> Result<bool> {
    let sockets = fs::read("/proc/self/net/unix").map_err(|error| {
        anyhow!(
            "user {}, who runs this process, may not connect to it, and whether somebody listens on it cannot be found out \
             (/proc/net/unix: {error}); remove it if nobody does",
            geteuid().as_raw()
        )
    })?;
    // Such a name takes several lines.
    if path.as_os_str().as_bytes().contains(&b'\n') {
        return Ok(true);
    }
    let own = (metadata.dev(), metadata.ino());
    let mut names = sockets.split(|byte| *byte == b'\n').filter_map(bound_name);
    Ok(names.any(|name| {
        // A name may be relative to the directory of its process, or lead elsewhere than here.
        let is_another = name.is_absolute()
            && fs::symlink_metadata(name).is_ok_and(|found| (found.dev(), found.ino()) != own);
        name.file_name() == path.file_name() && !is_another
    }))
}

/// The name of a line of /proc/net/unix, unless the socket is that of a connection (`unix_seq_show`).
fn bound_name(line: &[u8]) -> Option<&Path> {
    let mut rest = line;
    let mut fields = [&line[..0]; 7];
    for field in &mut fields {
        let begin = rest.iter().position(|byte| *byte != b' ')?;
        let end = rest[begin..].iter().position(|byte| *byte == b' ')? + begin;
        *field = &rest[begin..end];
        rest = &rest[end..];
    }
    let [_, _, _, _, kind, state, _] = fields;
    // SOCK_DGRAM, SS_UNCONNECTED
    (kind == b"0002" || state == b"01").then(|| Path::new(OsStr::from_bytes(&rest[1..])))
}

pub(super) fn unix_socket(address: &SocketAddress) -> Result<OwnedFd> {
    address.socket().map_err(|errno| {
        anyhow!(
            "cannot create a UNIX socket: {}; raise the limit or listen on a TCP address",
            words(errno)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_bound_has_a_name() {
        let name = |line: &str| bound_name(line.as_bytes()).map(Path::to_owned);
        let path = |text: &str| Some(Path::new(text).to_owned());
        let listening = "0000000000000000: 00000002 00000000 00010000 0001 01    42 /run/a b";
        assert_eq!(name(listening), path("/run/a b"));
        let of_datagrams = "0000000000000000: 00000002 00000000 00000000 0002 03 3632812 x";
        assert_eq!(name(of_datagrams), path("x"));
        let accepted = "0000000000000000: 00000003 00000000 00000000 0001 03 3632812 /run/a";
        assert_eq!(name(accepted), None);
        let nameless = "0000000000000000: 00000003 00000000 00000000 0001 01 3632812";
        assert_eq!(name(nameless), None);
        assert_eq!(
            name("Num       RefCount Protocol Flags    Type St Inode Path"),
            None
        );
        assert_eq!(name(""), None);
    }
}
