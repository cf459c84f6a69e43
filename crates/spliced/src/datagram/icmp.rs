//! What a client of UDP is told by ICMP, as the router does it that the relay is to the client.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketFlags, SocketType, bind, ipproto, sendto, socket_with,
};

/// How many messages a thread sends within [`WINDOW`]: as many as the kernel sends of its own
/// (`net.ipv4.icmp_msgs_per_sec` before Linux 6.11).
const MOST: u32 = 1000;

const WINDOW: Duration = Duration::from_secs(1);

/// The header of a datagram, in bytes.
const UDP_HEADER: usize = 8;

const IPV4_HEADER: usize = 20;

const IPV6_HEADER: usize = 40;

/// The protocol number of UDP.
const UDP: u8 = 17;

/// An IPv6 link takes packets of this length, in bytes (RFC 8200).
const LEAST_IPV6_MTU: u32 = 1280;

/// What has become of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// It is longer than the path to the target takes. A datagram may have so many bytes.
    TooBig { most: u32 },
    /// Nobody receives at the target.
    PortUnreachable,
    /// A router or a filter does not let it pass.
    Prohibited,
}

impl Trouble {
    /// What an error of the target's says to a client. `None`: it says nothing about the target.
    pub(crate) fn of(errno: Errno) -> Option<Self> {
        match errno {
            Errno::CONNREFUSED | Errno::NOENT => Some(Self::PortUnreachable),
            Errno::HOSTUNREACH | Errno::ACCESS => Some(Self::Prohibited),
            _ => None,
        }
    }
}

/// A datagram of a client, as far as it is still known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quoted<'a> {
    pub(crate) client: SocketAddr,
    /// Where the client has sent it to.
    pub(crate) own: SocketAddr,
    pub(crate) length: usize,
    /// All bytes, or none.
    pub(crate) bytes: &'a [u8],
}

/// Tells clients, but no more of them than the kernel would.
#[derive(Debug)]
pub(crate) struct Notices {
    since: Instant,
    sent: u32,
}

impl Notices {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            since: now,
            sent: 0,
        }
    }

    /// Sends a message. Returns false if there were too many of late.
    ///
    /// # Errors
    /// `EPERM` without CAP_NET_RAW; whatever else the kernel says to a raw socket.
    pub(crate) fn tell(
        &mut self,
        trouble: Trouble,
        quoted: &Quoted<'_>,
        now: Instant,
    ) -> Result<bool, Errno> {
        if now.saturating_duration_since(self.since) >= WINDOW {
            *self = Self::new(now);
        }
        if self.sent >= MOST {
            return Ok(false);
        }
        send(trouble, quoted)?;
        self.sent += 1;
        Ok(true)
    }
}

/// The longest datagram that fits a path whose packets have at most `mtu` bytes.
pub(crate) fn most_of_path(mtu: u32, is_ipv6: bool) -> u32 {
    let header = if is_ipv6 { IPV6_HEADER } else { IPV4_HEADER };
    let most = mtu.saturating_sub((header + UDP_HEADER) as u32);
    most.min(most_of_family(is_ipv6))
}

/// The longest datagram of a family. The length of a packet has 16 bits; that of IPv6 does not count its own header.
pub(crate) fn most_of_family(is_ipv6: bool) -> u32 {
    let header = if is_ipv6 { 0 } else { IPV4_HEADER };
    u32::from(u16::MAX) - (header + UDP_HEADER) as u32
}

/// Through a socket for this message alone: a raw socket that stays open receives a copy of all that comes.
fn send(trouble: Trouble, quoted: &Quoted<'_>) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let ends = (
        quoted.own.ip().to_canonical(),
        quoted.client.ip().to_canonical(),
    );
    let (family, protocol) = match ends {
        (IpAddr::V4(_), _) => (AddressFamily::INET, ipproto::ICMP),
        (IpAddr::V6(_), _) => (AddressFamily::INET6, ipproto::ICMPV6),
    };
    let raw = |from: SocketAddr| {
        let kind = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::RAW, kind, Some(protocol))?;
        bind(&socket, &from)?;
        Ok::<_, Errno>(socket)
    };
    let (socket, message, to) = match ends {
        (IpAddr::V4(own), IpAddr::V4(client)) => (
            raw(SocketAddr::from((own, 0)))?,
            message_v4(trouble, quoted, own, client),
            SocketAddr::from((client, 0)),
        ),
        (IpAddr::V6(own), IpAddr::V6(client)) => {
            let scope = match quoted.client {
                SocketAddr::V6(client) => client.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            (
                raw(SocketAddrV6::new(own, 0, 0, scope).into())?,
                message_v6(trouble, quoted, own, client),
                SocketAddrV6::new(client, 0, 0, scope).into(),
            )
        }
        _ => return Err(Errno::AFNOSUPPORT),
    };
    sendto(&socket, &message, flags, &to).map(drop)
}

/// RFC 792 and RFC 1191; how much is quoted: RFC 1812.
fn message_v4(trouble: Trouble, quoted: &Quoted<'_>, own: Ipv4Addr, client: Ipv4Addr) -> Vec<u8> {
    const LONGEST: usize = 576 - IPV4_HEADER;
    const UNREACHABLE: u8 = 3;
    let (code, mtu) = match trouble {
        Trouble::PortUnreachable => (3, 0),
        Trouble::TooBig { most } => (4, most + (IPV4_HEADER + UDP_HEADER) as u32),
        Trouble::Prohibited => (13, 0),
    };
    let mtu = u16::try_from(mtu).unwrap_or(u16::MAX);
    let mut message = vec![UNREACHABLE, code, 0, 0, 0, 0];
    message.extend(mtu.to_be_bytes());
    let packet = u16::try_from(IPV4_HEADER + UDP_HEADER + quoted.length).unwrap_or(u16::MAX);
    // Version and length; no type of service.
    let mut header = vec![0x45, 0];
    header.extend(packet.to_be_bytes());
    // No identification; the don't-fragment bit; a time to live; no checksum yet.
    header.extend([0, 0, 0x40, 0, 64, UDP, 0, 0]);
    header.extend(client.octets());
    header.extend(own.octets());
    let checksum = internet_checksum([&header[..]]);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    let addresses = [client.octets(), own.octets()].concat();
    message.extend(header);
    message.extend(datagram(quoted, &addresses));
    message.truncate(LONGEST);
    let checksum = internet_checksum([&message[..]]);
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

/// RFC 4443. The kernel adds the checksum.
fn message_v6(trouble: Trouble, quoted: &Quoted<'_>, own: Ipv6Addr, client: Ipv6Addr) -> Vec<u8> {
    const LONGEST: usize = LEAST_IPV6_MTU as usize - IPV6_HEADER;
    let (kind, code, mtu) = match trouble {
        Trouble::PortUnreachable => (1, 4, 0),
        Trouble::Prohibited => (1, 1, 0),
        Trouble::TooBig { most } => (
            2,
            0,
            (most + (IPV6_HEADER + UDP_HEADER) as u32).max(LEAST_IPV6_MTU),
        ),
    };
    let mut message = vec![kind, code, 0, 0];
    message.extend(mtu.to_be_bytes());
    let payload = u16::try_from(UDP_HEADER + quoted.length).unwrap_or(u16::MAX);
    message.extend([0x60, 0, 0, 0]);
    message.extend(payload.to_be_bytes());
    message.extend([UDP, 64]);
    message.extend(client.octets());
    message.extend(own.octets());
    let addresses = [client.octets(), own.octets()].concat();
    message.extend(datagram(quoted, &addresses));
    message.truncate(LONGEST);
    message
}

/// The header of the quoted datagram, and what is known of its bytes.
fn datagram(quoted: &Quoted<'_>, addresses: &[u8]) -> Vec<u8> {
    let length = u16::try_from(UDP_HEADER + quoted.length).unwrap_or(u16::MAX);
    let mut datagram = Vec::with_capacity(UDP_HEADER + quoted.bytes.len());
    datagram.extend(quoted.client.port().to_be_bytes());
    datagram.extend(quoted.own.port().to_be_bytes());
    datagram.extend(length.to_be_bytes());
    datagram.extend([0, 0]);
    datagram.extend(quoted.bytes);
    if quoted.bytes.len() == quoted.length {
        let [high, low] = length.to_be_bytes();
        let checksum = match internet_checksum([addresses, &[0, UDP, high, low], &datagram]) {
            // Zero means none (RFC 768).
            0 => u16::MAX,
            checksum => checksum,
        };
        datagram[6..8].copy_from_slice(&checksum.to_be_bytes());
    }
    datagram
}

/// RFC 1071. Each part but the last has an even length.
fn internet_checksum<const PARTS: usize>(parts: [&[u8]; PARTS]) -> u16 {
    let words = parts.iter().flat_map(|part| part.chunks(2));
    let mut sum: u32 = words
        .map(|word| {
            u32::from(u16::from_be_bytes([
                word[0],
                word.get(1).copied().unwrap_or(0),
            ]))
        })
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RFC 1071, section 3.
    #[test]
    fn the_checksum_is_that_of_the_internet() {
        let bytes = [0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7];
        assert_eq!(internet_checksum([&bytes]), !0xddf2);
        let odd = [0x00, 0x01, 0xf2];
        assert_eq!(internet_checksum([&odd]), !0xf201);
    }

    #[test]
    fn a_message_quotes_the_datagram_whole_as_far_as_it_may_be_long() {
        let bytes = [7; 2000];
        let quoted = Quoted {
            client: "192.0.2.1:1000".parse().expect("an address"),
            own: "192.0.2.2:53".parse().expect("an address"),
            length: bytes.len(),
            bytes: &bytes,
        };
        let [own, client] = [2, 1].map(|last| Ipv4Addr::new(192, 0, 2, last));
        let message = message_v4(Trouble::TooBig { most: 1252 }, &quoted, own, client);
        assert_eq!(message.len(), 556);
        assert_eq!(message[..2], [3, 4]);
        assert_eq!(message[6..8], 1280u16.to_be_bytes());
        assert_eq!(internet_checksum([&message]), 0);
        let (header, datagram) = message[8..].split_at(IPV4_HEADER);
        assert_eq!(internet_checksum([header]), 0);
        assert_eq!(header[2..4], 2028u16.to_be_bytes());
        assert_eq!(
            datagram[..4],
            [1000u16.to_be_bytes(), 53u16.to_be_bytes()].concat()
        );
        assert_eq!(datagram[4..6], 2008u16.to_be_bytes());
    }
}
