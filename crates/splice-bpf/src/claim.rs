//! A claim on a name in a network namespace, exclusive across processes.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, connect_unspec,
    socket_with,
};

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
        let socket = socket()?;
        match bind(&socket, &address(name)?) {
            Ok(()) => Ok(Some(Self(socket))),
            Err(Errno::ADDRINUSE) => Ok(None),
            Err(errno) => Err(errno),
        }
    }
}

/// Asks whether names are claimed in one network namespace. That takes no descriptor, and does not keep a name from who
/// claims it meanwhile.
#[derive(Debug)]
pub(crate) struct Claims(OwnedFd);

impl Claims {
    /// In this thread's network namespace.
    pub(crate) fn here() -> Result<Self, Errno> {
        socket().map(Self)
    }

    /// Whether a socket has the name.
    pub(crate) fn have(&self, name: &str) -> Result<bool, Errno> {
        let connected = connect(&self.0, &address(name)?);
        // It keeps nothing of a socket that it was connected to. It cannot fail.
        let _ = connect_unspec(&self.0);
        match connected {
            // A socket may be connected to another one, or be of another kind (`unix_dgram_connect`).
            Ok(()) | Err(Errno::PERM | Errno::PROTOTYPE) => Ok(true),
            Err(Errno::CONNREFUSED) => Ok(false),
            // A security module may forbid it.
            Err(Errno::ACCESS) => Ok(Claim::on(name)?.is_none()),
            Err(errno) => Err(errno),
        }
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

fn address(name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(name.as_bytes())
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

    #[test]
    fn whoever_asks_hears_of_a_claim_and_does_not_have_it() -> Result<(), Errno> {
        let name = format!("spliced test {} asked for", std::process::id());
        let claims = Claims::here()?;
        for _ in 0..2 {
            assert!(!claims.have(&name)?);
            let held = socket()?;
            bind(&held, &address(&name)?)?;
            assert!(claims.have(&name)? && claims.have(&name)?);
            // One that hears of another one only.
            let other = format!("{name}, too");
            let _other = Claim::on(&other)?;
            connect(&held, &address(&other)?)?;
            assert!(claims.have(&name)?);
        }
        assert!(!claims.have(&name)?);
        Ok(())
    }
}
