//! Requests to the kernel about sockets by netlink, as sock_diag(7) describes them.

use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, bind, send, socket_with};

/// `NLM_F_REQUEST` of linux/netlink.h.
const REQUEST: u16 = 1;

/// The kind of an answer that has an error, or says that there was none (`NLMSG_ERROR`).
pub(crate) const ERROR: u16 = 2;

/// The bytes of `struct nlmsghdr`, with which each message begins.
pub(crate) const HEADER_BYTES: usize = 16;

/// The bytes of `struct inet_diag_req_v2`.
const BODY_BYTES: usize = 56;

/// What a request is about: the beginning of `struct inet_diag_req_v2`, up to `idiag_states`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject {
    pub(crate) family: AddressFamily,
    /// `IPPROTO_TCP` or `IPPROTO_UDP`.
    pub(crate) protocol: u8,
    /// A bit for each state of `include/net/tcp_states.h`.
    pub(crate) states: u32,
}

/// Sends a request of this kind, and returns the socket for its answers. `id` is what is known of a `struct
/// inet_diag_sockid`; the rest of it is zero.
///
/// # Errors
/// Of netlink(7).
pub(crate) fn ask(kind: u16, flags: u16, subject: Subject, id: &[u8]) -> Result<OwnedFd, Errno> {
    let mut request = Vec::with_capacity(HEADER_BYTES + BODY_BYTES);
    request.extend(((HEADER_BYTES + BODY_BYTES) as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend((REQUEST | flags).to_ne_bytes());
    // Its number and its sender's: there is one request.
    request.extend([0; 8]);
    request.extend([subject.family.as_raw() as u8, subject.protocol, 0, 0]);
    request.extend(subject.states.to_ne_bytes());
    request.extend(id);
    request.resize(HEADER_BYTES + BODY_BYTES, 0);
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    bind(&kernel, &SocketAddrNetlink::new(0, 0))?;
    send(&kernel, &request, SendFlags::empty())?;
    Ok(kernel)
}
