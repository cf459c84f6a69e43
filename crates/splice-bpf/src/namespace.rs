//! The identity of a network namespace.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use splice_base::error::{Result, ResultExt as _};
use splice_base::socket_option;

/// The cookie of this thread's network namespace. The inode of /proc/thread-self/ns/net would not
/// do: the kernel gives it to another namespace once this one is gone, even if its programs and
/// maps still exist (`ns_free_inum`).
///
/// # Errors
/// [`ErrorKind::System`](splice_base::ErrorKind::System) if no socket can be created.
pub fn namespace() -> Result<u64> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let cookie = socket.and_then(socket_option::namespace_cookie);
    cookie.context("cannot read the cookie of the thread's network namespace")
}
