//! Connected sockets of every kind that a map of sockets takes.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::time::{Duration, Instant};

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, VsockAddr, bind, connect, getsockname, socket,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, listen};
use splice_base::loopback;

use crate::SocketKind;
use crate::protocol;

/// How long a connection on loopback may take.
const PATIENCE: Duration = Duration::from_secs(1);

/// A socket that becomes a member of a map, and its peer.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) member: OwnedFd,
    pub(crate) peer: OwnedFd,
}

impl Pair {
    /// A connected pair of a kind.
    ///
    /// # Errors
    /// Why this host cannot make one.
    pub(crate) fn of(kind: SocketKind) -> Result<Self, String> {
        let words = |error: std::io::Error| format!("cannot make {kind} sockets: {error}");
        let (member, peer): (OwnedFd, OwnedFd) = match kind {
            SocketKind::Tcp => {
                let deadline = Instant::now() + PATIENCE;
                let connected = loopback::connection(deadline);
                let (one, other) = connected.map_err(|error| error.to_string())?;
                (one.into(), other.into())
            }
            SocketKind::Udp => udp().map_err(words)?,
            SocketKind::UnixStream => {
                let (one, other) = UnixStream::pair().map_err(words)?;
                (one.into(), other.into())
            }
            SocketKind::UnixDatagram => {
                let (one, other) = UnixDatagram::pair().map_err(words)?;
                (one.into(), other.into())
            }
            SocketKind::VsockStream => vsock(SockType::Stream)?,
            SocketKind::VsockSeqpacket => vsock(SockType::SeqPacket)?,
        };
        Ok(Self { member, peer })
    }
}

fn udp() -> std::io::Result<(OwnedFd, OwnedFd)> {
    let one = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    Ok((one.into(), other.into()))
}

/// A connection over the loopback of VSOCK (the module vsock_loopback, Linux 5.6). Without it a connection may go to the
/// hypervisor, where nobody answers. So the listener has the address of the loopback, which the kernel gives only if there
/// is one (`__vsock_bind`, `vsock_find_cid`, seen on 6.18).
fn vsock(of: SockType) -> Result<(OwnedFd, OwnedFd), String> {
    // `vsock_proto` and the module's name (net/vmw_vsock).
    protocol::require("AF_VSOCK", "vsock")
        .map_err(|why| format!("there is no loopback of VSOCK here: {why}"))?;
    let words = |errno: nix::errno::Errno| format!("there is no loopback of VSOCK here: {errno}");
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fresh = || socket(AddressFamily::Vsock, of, flags, None).map_err(words);
    let (listener, one) = (fresh()?, fresh()?);
    let any_port = VsockAddr::new(libc::VMADDR_CID_LOCAL, libc::VMADDR_PORT_ANY);
    bind(listener.as_raw_fd(), &any_port).map_err(|errno| match errno {
        nix::errno::Errno::EADDRNOTAVAIL => {
            "there is no loopback of VSOCK here: the module vsock_loopback is not loaded".into()
        }
        errno => words(errno),
    })?;
    // Room for one waiting connection, ours.
    listen(&listener, 1).map_err(|errno| errno.to_string())?;
    let address: VsockAddr = getsockname(listener.as_raw_fd()).map_err(words)?;
    match connect(one.as_raw_fd(), &address) {
        Ok(()) | Err(nix::errno::Errno::EINPROGRESS) => {}
        Err(errno) => return Err(words(errno)),
    }
    let late = || "a connection over the loopback of VSOCK did not come about in time".to_owned();
    if !becomes(&listener, PollFlags::IN) {
        return Err(late());
    }
    let accepted = accept_with(&listener, SocketFlags::CLOEXEC);
    let other = accepted.map_err(|errno| errno.to_string())?;
    if !becomes(&one, PollFlags::OUT) {
        return Err(late());
    }
    fcntl_getfl(&one)
        .and_then(|flags| fcntl_setfl(&one, flags - OFlags::NONBLOCK))
        .map_err(|errno: Errno| errno.to_string())?;
    Ok((other, one))
}

fn becomes(socket: impl AsFd, ready: PollFlags) -> bool {
    let timeout = Timespec {
        tv_sec: PATIENCE.as_secs().cast_signed(),
        tv_nsec: 0,
    };
    let mut polled = [PollFd::new(&socket, ready)];
    matches!(poll(&mut polled, Some(&timeout)), Ok(1..))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A trial would wait for an answer that does not come.
    #[test]
    fn a_missing_loopback_of_vsock_is_known_without_a_trial() {
        // The socket of this test would make the kernel load the module.
        if protocol::require("AF_VSOCK", "vsock").is_err() {
            return;
        }
        for (kind, of) in [
            (SocketKind::VsockStream, SockType::Stream),
            (SocketKind::VsockSeqpacket, SockType::SeqPacket),
        ] {
            let flags = SockFlag::SOCK_CLOEXEC;
            let Ok(probe) = socket(AddressFamily::Vsock, of, flags, None) else {
                continue;
            };
            let local = VsockAddr::new(libc::VMADDR_CID_LOCAL, libc::VMADDR_PORT_ANY);
            if bind(probe.as_raw_fd(), &local) == Err(nix::errno::Errno::EADDRNOTAVAIL) {
                let why = Pair::of(kind).expect_err("there is no loopback");
                let known = "there is no loopback of VSOCK here: the module vsock_loopback";
                assert!(why.starts_with(known), "{why}");
            }
        }
    }
}
