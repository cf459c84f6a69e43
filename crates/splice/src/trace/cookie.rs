//! The connection of a socket whose cookie is known (`SO_COOKIE`), as sock_diag(7) lists the sockets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, recv};

use crate::sock_diag::{ERROR, HEADER_BYTES, Subject, ask};

/// `SOCK_DIAG_BY_FAMILY` of linux/sock_diag.h.
const BY_FAMILY: u16 = 20;

/// `NLM_F_DUMP` of linux/netlink.h.
const DUMP: u16 = 0x300;

/// `NLMSG_DONE`.
const DONE: u16 = 3;

/// `TCP_TIME_WAIT` of `include/net/tcp_states.h`, as a bit: no process has the socket any more.
const GONE: u32 = 1 << 6;

/// The kernel fills the reader's buffer, up to 32 KiB a message (`netlink_dump`).
const BUFFER_BYTES: usize = 64 << 10;

/// The two ends of a socket of this thread's network namespace; the remote one has no port without a connection. `None`
/// if no TCP or UDP socket has this cookie.
///
/// # Errors
/// Of netlink(7).
pub(super) fn socket_of(cookie: u64) -> Result<Option<(SocketAddr, SocketAddr)>, Errno> {
    for family in [AddressFamily::INET, AddressFamily::INET6] {
        for protocol in [libc::IPPROTO_TCP, libc::IPPROTO_UDP] {
            match look(family, protocol as u8, cookie) {
                // This kernel cannot list them.
                Err(Errno::NOENT) => {}
                Ok(None) => {}
                found => return found,
            }
        }
    }
    Ok(None)
}

fn look(
    family: AddressFamily,
    protocol: u8,
    cookie: u64,
) -> Result<Option<(SocketAddr, SocketAddr)>, Errno> {
    let subject = Subject {
        family,
        protocol,
        states: !GONE,
    };
    let kernel = ask(BY_FAMILY, DUMP, subject, &[])?;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (count, _) = recv(&kernel, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..count.min(BUFFER_BYTES)];
        while let Some(header) = rest.get(..HEADER_BYTES) {
            let bytes = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
            let message = rest.get(HEADER_BYTES..bytes).ok_or(Errno::PROTO)?;
            match u16::from_ne_bytes([header[4], header[5]]) {
                DONE => return Ok(None),
                ERROR => {
                    let code = message.first_chunk().ok_or(Errno::PROTO)?;
                    return Err(Errno::from_raw_os_error(-i32::from_ne_bytes(*code)));
                }
                _ => {}
            }
            if let Some((found, ends)) = told(message)
                && found == cookie
            {
                return Ok(Some(ends));
            }
            // Each message begins at a multiple of four (NLMSG_ALIGN).
            rest = rest.get(bytes.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// The cookie and the ends in a `struct inet_diag_msg`.
fn told(message: &[u8]) -> Option<(u64, (SocketAddr, SocketAddr))> {
    let family = AddressFamily::from_raw(u16::from(*message.first()?));
    let port = |at: usize| Some(u16::from_be_bytes(*message.get(at..)?.first_chunk()?));
    let address = |at: usize| -> Option<IpAddr> {
        let bytes = message.get(at..)?;
        Some(match family {
            AddressFamily::INET => Ipv4Addr::from(*bytes.first_chunk::<4>()?).into(),
            _ => Ipv6Addr::from(*bytes.first_chunk::<16>()?).into(),
        })
    };
    let half = |at: usize| Some(u32::from_ne_bytes(*message.get(at..)?.first_chunk()?));
    let cookie = u64::from(half(44)?) | u64::from(half(48)?) << 32;
    let local = SocketAddr::new(address(8)?, port(4)?);
    let remote = SocketAddr::new(address(24)?, port(6)?);
    Some((cookie, (local, remote)))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use rustix::net::sockopt::socket_cookie;

    use super::*;

    #[test]
    fn each_socket_is_found_by_its_cookie() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(host).expect("a listener");
            let address = listener.local_addr().expect("an address");
            let client = std::net::TcpStream::connect(address).expect("connected");
            let own = client.local_addr().expect("an address");
            let cookie = socket_cookie(&client).expect("a cookie");
            assert_eq!(socket_of(cookie), Ok(Some((own, address))));
            let datagrams = UdpSocket::bind(host).expect("a socket");
            datagrams.connect(address).expect("connected");
            let own = datagrams.local_addr().expect("an address");
            let cookie = socket_cookie(&datagrams).expect("a cookie");
            assert_eq!(socket_of(cookie), Ok(Some((own, address))));
        }
        assert_eq!(socket_of(u64::MAX), Ok(None));
    }
}
