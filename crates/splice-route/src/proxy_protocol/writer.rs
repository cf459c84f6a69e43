//! Headers for servers.
//!
//! If the client and the address that it has connected to are of different families, both are sent as
//! IPv6, the IPv4 one mapped (`::ffff:192.0.2.1`). Without addresses, which is so for a UNIX socket,
//! version 1 says UNKNOWN and version 2 LOCAL, as HAProxy does: every receiver has to accept LOCAL, but few
//! take the family for UNIX sockets, and HAProxy 2.6 resets a PROXY header without a family (UNSPEC). The fields
//! of a LOCAL header are for those who log whole headers: the specification has receivers ignore them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::tlv::{self, HEAD_BYTES, LONGEST_UNIQUE_ID_BYTES};
use super::version2::{
    self, FIXED_BYTES, LOCAL, LONGEST_BYTES, PROXY, TCP_OVER_IPV4, TCP_OVER_IPV6, UNSPECIFIED,
};
use super::{SIGNATURE, Tlvs, canonical};
use crate::progress::Fault;

const TOO_LONG: Fault = Fault("the PROXY header for the server would be too long");
const LONG_UNIQUE_ID: Fault = Fault("a unique ID for a PROXY header has at most 128 bytes");

/// A field with a CRC32C (section 2.2.3).
const CHECKSUM_BYTES: usize = HEAD_BYTES + 4;

/// What a header of version 2 tells besides the addresses.
///
/// The first three are written only where the header that has come in has none, or an empty one: they are
/// properties of the client's connection, which the first proxy knows best.
#[derive(Clone, Copy, Debug, Default)]
pub struct OutTlvs<'a> {
    /// The name that the client asks for: the SNI of its TLS hello.
    pub authority: Option<&'a [u8]>,
    /// The application protocol that the client uses.
    pub alpn: Option<&'a [u8]>,
    /// What identifies the connection in the logs of all proxies: at most 128 bytes.
    pub unique_id: Option<&'a [u8]>,
    /// The fields of the header that has come in. They are passed on as they are, except for its padding
    /// (NOOP) and its checksum, which are about that header. What finds no room in 4096 bytes is left out, the
    /// unique ID last.
    pub received: Option<&'a Tlvs>,
    /// Whether a checksum is sent. It is, too, where one has come in.
    pub checksum: bool,
}

/// A line for a client's connection. Without both addresses the client is unknown.
pub fn header_v1(source: Option<SocketAddr>, destination: Option<SocketAddr>) -> Vec<u8> {
    let line = match Addresses::of(source, destination) {
        Addresses::Unknown => "PROXY UNKNOWN\r\n".to_owned(),
        Addresses::V4([source, destination], [from, to]) => {
            format!("PROXY TCP4 {source} {destination} {from} {to}\r\n")
        }
        Addresses::V6([source, destination], [from, to]) => {
            let (source, destination) = (hexadecimal(source), hexadecimal(destination));
            format!("PROXY TCP6 {source} {destination} {from} {to}\r\n")
        }
    };
    line.into_bytes()
}

/// A binary header for a client's connection. Without both addresses the connection is the proxy's own.
/// An error if what is told here first is too long.
pub fn header_v2(
    source: Option<SocketAddr>,
    destination: Option<SocketAddr>,
    tlvs: &OutTlvs<'_>,
) -> Result<Vec<u8>, Fault> {
    if tlvs
        .unique_id
        .is_some_and(|id| id.len() > LONGEST_UNIQUE_ID_BYTES)
    {
        return Err(LONG_UNIQUE_ID);
    }
    let mut header = SIGNATURE.to_vec();
    match Addresses::of(source, destination) {
        Addresses::Unknown => header.extend([LOCAL, UNSPECIFIED, 0, 0]),
        Addresses::V4(ips, ports) => {
            header.extend([PROXY, TCP_OVER_IPV4, 0, 0]);
            header.extend(ips.iter().flat_map(Ipv4Addr::octets));
            header.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        }
        Addresses::V6(ips, ports) => {
            header.extend([PROXY, TCP_OVER_IPV6, 0, 0]);
            header.extend(ips.iter().flat_map(Ipv6Addr::octets));
            header.extend(ports.iter().flat_map(|port| port.to_be_bytes()));
        }
    }
    for (kind, value) in tlvs.made() {
        append(&mut header, kind, value)?;
    }
    let checksum = tlvs.has_checksum();
    let longest_bytes = match checksum {
        true => LONGEST_BYTES - CHECKSUM_BYTES,
        false => LONGEST_BYTES,
    };
    if header.len() > longest_bytes {
        return Err(TOO_LONG);
    }
    for (kind, value) in tlvs.passed_on() {
        if header.len() + HEAD_BYTES + value.len() <= longest_bytes {
            append(&mut header, kind, value)?;
        }
    }
    if checksum {
        append(&mut header, tlv::CRC32C, &[0; 4])?;
    }
    let length = u16::try_from(header.len() - FIXED_BYTES).map_err(|_| TOO_LONG)?;
    header[FIXED_BYTES - 2..FIXED_BYTES].copy_from_slice(&length.to_be_bytes());
    if checksum {
        let at = header.len() - 4;
        let checksum = version2::checksum(&header, at);
        header[at..].copy_from_slice(&checksum.to_be_bytes());
    }
    Ok(header)
}

impl OutTlvs<'_> {
    /// What is told here first.
    fn made(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let own = [
            (tlv::ALPN, self.alpn),
            (tlv::AUTHORITY, self.authority),
            (tlv::UNIQUE_ID, self.unique_id),
        ];
        let own = own
            .into_iter()
            .filter_map(|(kind, value)| Some((kind, value?)));
        own.filter(|own| {
            !self
                .received()
                .any(|tlv| tlv.0 == own.0 && says_something(tlv))
        })
    }

    /// What has come in, with what identifies the connection first.
    fn passed_on(&self) -> impl Iterator<Item = (u8, &[u8])> {
        let is_id = |tlv: &(u8, &[u8])| tlv.0 == tlv::UNIQUE_ID;
        let others = self.received().filter(move |tlv| !is_id(tlv));
        let passed_on = self.received().filter(is_id).chain(others);
        passed_on.filter(|tlv| !is_about_header(tlv.0) && says_something(*tlv))
    }

    fn received(&self) -> impl Iterator<Item = (u8, &[u8])> {
        self.received.into_iter().flat_map(Tlvs::iter)
    }

    fn has_checksum(&self) -> bool {
        self.checksum || self.received().any(|tlv| tlv.0 == tlv::CRC32C)
    }
}

/// Sections 2.2.3 and 2.2.4: a checksum and padding are true of one header only. All other types tell of the
/// client, its connection to the first proxy, or that proxy.
fn is_about_header(kind: u8) -> bool {
    matches!(kind, tlv::CRC32C | tlv::NOOP)
}

/// Of the types that can be made here, an empty one is as none.
fn says_something((kind, value): (u8, &[u8])) -> bool {
    !matches!(kind, tlv::ALPN | tlv::AUTHORITY | tlv::UNIQUE_ID) || !value.is_empty()
}

fn append(header: &mut Vec<u8>, kind: u8, value: &[u8]) -> Result<(), Fault> {
    let length = u16::try_from(value.len()).map_err(|_| TOO_LONG)?;
    header.push(kind);
    header.extend(length.to_be_bytes());
    header.extend(value);
    Ok(())
}

/// Source and destination, and their ports.
enum Addresses {
    Unknown,
    V4([Ipv4Addr; 2], [u16; 2]),
    V6([Ipv6Addr; 2], [u16; 2]),
}

impl Addresses {
    fn of(source: Option<SocketAddr>, destination: Option<SocketAddr>) -> Self {
        let (Some(source), Some(destination)) = (source, destination) else {
            return Self::Unknown;
        };
        let ports = [source.port(), destination.port()];
        match (canonical(source).ip(), canonical(destination).ip()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => Self::V4([source, destination], ports),
            (source, destination) => Self::V6([mapped(source), mapped(destination)], ports),
        }
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    }
}

/// The specification knows no dots in IPv6 addresses, which `Display` gives to mapped ones.
fn hexadecimal(address: Ipv6Addr) -> String {
    if address.to_ipv4_mapped().is_none() {
        return address.to_string();
    }
    let [.., high, low] = address.segments();
    format!("::ffff:{high:x}:{low:x}")
}
