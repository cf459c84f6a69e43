//! Network namespaces, told apart.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use splice_base::error::{Result, ResultExt as _};
use splice_base::socket_option;

/// This thread's network namespace, by a socket of it: its cookie. The inode of
/// /proc/thread-self/ns/net is given to another namespace once this one is gone, whatever programs and
/// maps of it are left (`ns_free_inum`).
///
/// # Errors
/// [`ErrorKind::System`] without a socket.
pub fn namespace() -> Result<u64> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        None,
    );
    let cookie = socket.and_then(socket_option::namespace_cookie);
    cookie.context("cannot tell the thread's network namespace")
}
