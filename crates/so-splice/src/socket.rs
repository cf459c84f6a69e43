//! What the rules ask about a descriptor.
#![allow(unsafe_code, reason = "a C program names descriptors by their numbers")]

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{BorrowedFd, RawFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, getpeername, getsockname, ipproto, sockopt};
use splice_base::socket_option;

/// The protocols that the rules tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// TCP, Multipath TCP included: a program cannot tell them apart, and some runtimes choose it.
    Tcp,
    Udp,
    Unix,
    Other,
}

/// A socket that a program names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Socket<'fd> {
    pub(crate) fd: BorrowedFd<'fd>,
    pub(crate) number: RawFd,
    /// What the kernel never gives to another socket.
    pub(crate) cookie: u64,
    pub(crate) protocol: Protocol,
    pub(crate) is_stream: bool,
}

/// The cookie of the socket that a descriptor names (`SO_COOKIE`).
///
/// # Errors
/// `EBADF`; `ENOTSOCK`.
pub fn cookie(number: RawFd) -> Result<u64, Errno> {
    sockopt::socket_cookie(borrow(number)?)
}

fn borrow<'fd>(number: RawFd) -> Result<BorrowedFd<'fd>, Errno> {
    if number < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: it is not -1. The program keeps it open during the call, as for a system call; if it
    // does not, a system call fails or reaches another descriptor of the program, as in C.
    Ok(unsafe { BorrowedFd::borrow_raw(number) })
}

impl<'fd> Socket<'fd> {
    /// # Errors
    /// `EBADF`; `ENOTSOCK`.
    pub(crate) fn at(number: RawFd) -> Result<Self, Errno> {
        let fd = borrow(number)?;
        let cookie = sockopt::socket_cookie(fd)?;
        let protocol = match (sockopt::socket_domain(fd)?, sockopt::socket_protocol(fd)?) {
            (AddressFamily::UNIX, _) => Protocol::Unix,
            (_, Some(ipproto::TCP | ipproto::MPTCP)) => Protocol::Tcp,
            (_, Some(ipproto::UDP)) => Protocol::Udp,
            _ => Protocol::Other,
        };
        Ok(Self {
            fd,
            number,
            cookie,
            protocol,
            is_stream: sockopt::socket_type(fd)? == SocketType::STREAM,
        })
    }

    pub(crate) fn is_listening(&self) -> bool {
        sockopt::socket_acceptconn(self.fd).unwrap_or(false)
    }

    /// Connected, or about to be.
    pub(crate) fn is_connected(&self) -> bool {
        let is_connecting = || {
            self.protocol == Protocol::Tcp && socket_option::is_connecting(self.fd).unwrap_or(false)
        };
        getpeername(self.fd).is_ok_and(|peer| peer.is_some()) || is_connecting()
    }

    /// Its own address, and its peer's if it has one. IPv4 addresses that are mapped into IPv6
    /// become IPv4 again, so that both ends of a connection have the same names for it.
    pub(crate) fn addresses(&self) -> Option<(SocketAddr, Option<SocketAddr>)> {
        let own = SocketAddr::try_from(getsockname(self.fd).ok()?).ok()?;
        let peer = getpeername(self.fd).ok().flatten();
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok());
        Some((plain(own), peer.map(plain)))
    }
}

fn plain(address: SocketAddr) -> SocketAddr {
    let ip: IpAddr = address.ip().to_canonical();
    SocketAddr::new(ip, address.port())
}
