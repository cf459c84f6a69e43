//! A connection is reset: its reader can neither see what was redirected nor go on behind it.

use std::net::{IpAddr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, recv};

use crate::sock_diag::{ERROR, Subject, ask};

/// `SOCK_DESTROY` of linux/sock_diag.h.
const DESTROY: u16 = 21;

/// `NLM_F_ACK` of linux/netlink.h: an answer also to what has succeeded.
const ACKNOWLEDGED: u16 = 4;

/// Aborts a socket of this thread's network namespace: its owner gets `ECONNABORTED`, its peer a reset
/// (`tcp_diag_destroy`, with `CONFIG_INET_DIAG_DESTROY`).
///
/// # Errors
/// `EOPNOTSUPP` if the kernel cannot, `EPERM` without CAP_NET_ADMIN, `ENOENT` if it is gone.
pub(super) fn reset(local: SocketAddr, remote: SocketAddr, cookie: u64) -> Result<(), Errno> {
    let subject = Subject {
        family: match local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        },
        protocol: libc::IPPROTO_TCP as u8,
        // Any.
        states: u32::MAX,
    };
    let kernel = ask(DESTROY, ACKNOWLEDGED, subject, &id(local, remote, cookie))?;
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

/// A `struct inet_diag_sockid`.
fn id(local: SocketAddr, remote: SocketAddr, cookie: u64) -> Vec<u8> {
    let mut id = Vec::new();
    id.extend(local.port().to_be_bytes());
    id.extend(remote.port().to_be_bytes());
    id.extend(address(local.ip()));
    id.extend(address(remote.ip()));
    // On any device.
    id.extend(0u32.to_ne_bytes());
    id.extend((cookie as u32).to_ne_bytes());
    id.extend(((cookie >> 32) as u32).to_ne_bytes());
    id
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
