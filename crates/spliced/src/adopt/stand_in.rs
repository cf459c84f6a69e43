//! The socket that takes the place of an adopted one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::{Context, Result};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl, fstat};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{AddressFamily, getsockname};

/// A TCP connection on loopback. The owner gets one end of it and meets no other kind of socket than it had.
#[derive(Debug)]
pub(super) struct StandIn {
    /// The end of this process.
    pub(super) near: OwnedFd,
    /// The end that the owner gets.
    pub(super) far: OwnedFd,
}

impl StandIn {
    /// A connection whose far end blocks and times out as `real` does.
    ///
    /// # Errors
    /// If loopback does not work here.
    pub(super) fn of(real: BorrowedFd<'_>) -> Result<Self> {
        let made = match sockopt::socket_domain(real) {
            Ok(AddressFamily::INET6) => connection(Ipv6Addr::LOCALHOST.into()),
            _ => connection(Ipv4Addr::LOCALHOST.into()),
        };
        // A host without IPv6 on loopback.
        let (near, far) = made
            .or_else(|_| connection(Ipv4Addr::LOCALHOST.into()))
            .context("cannot make a connection on loopback to stand in; set the interface lo up")?;
        let stand_in = Self { near, far };
        stand_in
            .behave_as(real)
            .context("cannot set up a stand-in")?;
        Ok(stand_in)
    }

    fn behave_as(&self, real: BorrowedFd<'_>) -> rustix::io::Result<()> {
        // splice(2) has no flag of its own for that.
        fcntl_setfl(&self.near, fcntl_getfl(&self.near)? | OFlags::NONBLOCK)?;
        // splice(2) does not pass an urgent byte over, and this way it is in the stream.
        sockopt::set_socket_oobinline(&self.near, true)?;
        let is_non_blocking = fcntl_getfl(real)? & OFlags::NONBLOCK;
        fcntl_setfl(&self.far, fcntl_getfl(&self.far)? | is_non_blocking)?;
        for which in [Timeout::Recv, Timeout::Send] {
            let time = sockopt::socket_timeout(real, which)?;
            sockopt::set_socket_timeout(&self.far, which, time)?;
        }
        sockopt::set_tcp_nodelay(&self.far, true)
    }
}

/// The number by which `/proc/PID/fd` names a socket.
pub(super) fn inode(socket: impl AsFd) -> rustix::io::Result<u64> {
    Ok(fstat(socket)?.st_ino)
}

fn connection(host: IpAddr) -> std::io::Result<(OwnedFd, OwnedFd)> {
    let listener = std::net::TcpListener::bind((host, 0))?;
    let near = std::net::TcpStream::connect(listener.local_addr()?)?;
    let own: SocketAddr = near.local_addr()?;
    loop {
        let (far, from) = listener.accept()?;
        // Anybody may connect to a port of loopback.
        if from == own {
            return Ok((near.into(), far.into()));
        }
    }
}

/// The two addresses of a connection, as a person reads them.
pub(super) fn addresses(socket: BorrowedFd<'_>) -> String {
    let text = |address: Option<rustix::net::SocketAddrAny>| {
        address
            .and_then(|address| SocketAddr::try_from(address).ok())
            .map_or_else(|| "somewhere".into(), |address| address.to_string())
    };
    let peer = rustix::net::getpeername(socket).ok().flatten();
    format!("{} to {}", text(getsockname(socket).ok()), text(peer))
}
