//! A claim on a name in a network namespace, exclusive across processes.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket_with};

/// A name that nobody else in this network namespace can claim until this is dropped or the process
/// ends, in whatever way it ends.
///
/// It is the name of an abstract UNIX socket. The kernel keeps these names per network namespace,
/// independent of PID and mount namespaces. It gives each name to one socket and requires no
/// capability. So any process of the namespace can claim a name before we do. A name that is taken
/// does not prove that a spliced process holds it; a name that can be claimed proves that nobody
/// does.
#[derive(Debug)]
pub(crate) struct Claim(#[expect(dead_code, reason = "open, it holds the name")] OwnedFd);

impl Claim {
    /// Claims a name in this thread's network namespace; `None` if another socket has it.
    pub(crate) fn on(name: &str) -> Result<Option<Self>, Errno> {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        match bind(
            &socket,
            &SocketAddrUnix::new_abstract_name(name.as_bytes())?,
        ) {
            Ok(()) => Ok(Some(Self(socket))),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_owner_at_a_time() -> Result<(), Errno> {
        let name = format!("spliced test {}", std::process::id());
        let held = Claim::on(&name)?;
        assert!(held.is_some());
        assert!(Claim::on(&name)?.is_none());
        drop(held);
        assert!(Claim::on(&name)?.is_some());
        Ok(())
    }
}
