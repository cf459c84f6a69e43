//! A connection is reset: its reader can neither see what was redirected nor go on behind it.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::netlink::{SOCK_DIAG, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
};

/// `SOCK_DESTROY` of linux/sock_diag.h.
const DESTROY: u16 = 21;

/// `NLM_F_REQUEST | NLM_F_ACK` of linux/netlink.h.
const FLAGS: u16 = 1 | 4;

/// `NLMSG_ERROR`: the answer, also to what has succeeded.
const ERROR: u16 = 2;

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
const REQUEST_BYTES: usize = 16 + 56;

/// Aborts a socket of this thread's network namespace: its owner gets `ECONNABORTED`, its peer a reset
/// (`tcp_diag_destroy`, with `CONFIG_INET_DIAG_DESTROY`).
///
/// # Errors
/// `EOPNOTSUPP` if the kernel cannot, `EPERM` without CAP_NET_ADMIN, `ENOENT` if it is gone.
pub(super) fn reset(local: SocketAddr, remote: SocketAddr, cookie: u64) -> Result<(), Errno> {
    let kernel = socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        SocketFlags::CLOEXEC,
        Some(SOCK_DIAG),
    )?;
    bind(&kernel, &SocketAddrNetlink::new(0, 0))?;
    send(&kernel, &request(local, remote, cookie), SendFlags::empty())?;
    let mut answer = [0; 512];
    let (count, _) = recv(&kernel, &mut answer, RecvFlags::empty())?;
    let field = |at: usize| answer.get(at..at + 4).filter(|_| at + 4 <= count);
    let kind = field(4).map(|bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let code = field(16).map(|bytes| i32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    match (kind, code) {
        (Some(ERROR), Some(0)) => Ok(()),
        (Some(ERROR), Some(code)) => Err(Errno::from_raw_os_error(-code)),
        _ => Err(Errno::PROTO),
    }
}

fn request(local: SocketAddr, remote: SocketAddr, cookie: u64) -> Vec<u8> {
    let family = match local {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let mut request = Vec::with_capacity(REQUEST_BYTES);
    request.extend((REQUEST_BYTES as u32).to_ne_bytes());
    request.extend(DESTROY.to_ne_bytes());
    request.extend(FLAGS.to_ne_bytes());
    // Its number and its sender's: there is one request.
    request.extend([0; 8]);
    request.extend([family.as_raw() as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    // In any state.
    request.extend(u32::MAX.to_ne_bytes());
    request.extend(local.port().to_be_bytes());
    request.extend(remote.port().to_be_bytes());
    request.extend(address(local.ip()));
    request.extend(address(remote.ip()));
    // On any device.
    request.extend(0u32.to_ne_bytes());
    request.extend((cookie as u32).to_ne_bytes());
    request.extend(((cookie >> 32) as u32).to_ne_bytes());
    request
}

fn address(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let mut bytes = [0; 16];
            bytes[..4].copy_from_slice(&ip.octets());
            bytes
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}
