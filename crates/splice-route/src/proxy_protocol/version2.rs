//! Version 2: a binary header.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Endpoints, Header, SIGNATURE, Tlvs, tlv};
use crate::progress::{Fault, Progress};

/// The bytes before the addresses.
pub(super) const FIXED_BYTES: usize = 16;

/// The longest header in bytes, the limit of nginx (`NGX_PROXY_PROTOCOL_MAX_HEADER`). Certificates do not
/// fit, and nobody sends them.
pub(super) const LONGEST_BYTES: usize = 4096;

/// Version and command.
pub(super) const LOCAL: u8 = 0x20;
pub(super) const PROXY: u8 = 0x21;

/// Family and transport.
pub(super) const UNSPECIFIED: u8 = 0x00;
pub(super) const TCP_OVER_IPV4: u8 = 0x11;
pub(super) const TCP_OVER_IPV6: u8 = 0x21;
const UNIX_STREAM: u8 = 0x31;
const UDP_OVER_IPV4: u8 = 0x12;
const UDP_OVER_IPV6: u8 = 0x22;
const UNIX_DATAGRAM: u8 = 0x32;

/// The bytes of two UNIX addresses (section 2.2).
const UNIX_BYTES: usize = 2 * 108;

const VERSION: Fault = Fault("the PROXY header is of an unknown version");
const COMMAND: Fault = Fault("the PROXY header has an unknown command");
const FAMILY: Fault = Fault("the PROXY header has an unknown address family");
const TOO_LONG: Fault = Fault("the PROXY header is longer than 4096 bytes");
const TOO_SHORT: Fault = Fault("the PROXY header is too short for its addresses");
const CHECKSUM: Fault = Fault("the PROXY header does not match its checksum");

static CRC32C: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_ISCSI);

/// Reads a header, of which the bytes of the signature that have come are right.
pub(super) fn read(bytes: &[u8]) -> Progress<Header> {
    let mut fixed = bytes.iter().copied().skip(SIGNATURE.len());
    let Some(version_and_command) = fixed.next() else {
        return Progress::More;
    };
    if version_and_command >> 4 != LOCAL >> 4 {
        return Progress::Broken(VERSION);
    }
    if version_and_command != LOCAL && version_and_command != PROXY {
        return Progress::Broken(COMMAND);
    }
    let Some(family) = fixed.next() else {
        return Progress::More;
    };
    let address_bytes = match (version_and_command, address_bytes(family)) {
        (PROXY, Ok(address_bytes)) => address_bytes,
        (PROXY, Err(fault)) => return Progress::Broken(fault),
        _ => 0,
    };
    let (Some(high), Some(low)) = (fixed.next(), fixed.next()) else {
        return Progress::More;
    };
    let length_bytes = FIXED_BYTES + usize::from(u16::from_be_bytes([high, low]));
    if length_bytes > LONGEST_BYTES {
        return Progress::Broken(TOO_LONG);
    }
    if length_bytes < FIXED_BYTES + address_bytes {
        return Progress::Broken(TOO_SHORT);
    }
    let Some(header) = bytes.get(..length_bytes) else {
        return Progress::More;
    };
    let header = match version_and_command {
        LOCAL => local(header),
        _ => proxy(header, family),
    };
    header.map_or_else(Progress::Broken, Progress::Complete)
}

fn address_bytes(family: u8) -> Result<usize, Fault> {
    match family {
        UNSPECIFIED => Ok(0),
        TCP_OVER_IPV4 | UDP_OVER_IPV4 => Ok(12),
        TCP_OVER_IPV6 | UDP_OVER_IPV6 => Ok(36),
        UNIX_STREAM | UNIX_DATAGRAM => Ok(UNIX_BYTES),
        _ => Err(FAMILY),
    }
}

/// The sender's own connection. Family, addresses and fields have to be ignored, so that only a checksum
/// that can be found for sure is held against the header.
fn local(header: &[u8]) -> Result<Header, Fault> {
    let address_bytes = address_bytes(header[SIGNATURE.len() + 1]).unwrap_or(0);
    let tlvs_at = FIXED_BYTES + address_bytes;
    if let Some(fields) = header.get(tlvs_at..)
        && let Ok((_, Some(checksum_at))) = Tlvs::parse(fields)
    {
        verify(header, tlvs_at + checksum_at)?;
    }
    Ok(Header {
        length_bytes: header.len(),
        endpoints: None,
        tlvs: Tlvs::default(),
    })
}

fn proxy(header: &[u8], family: u8) -> Result<Header, Fault> {
    let tlvs_at = FIXED_BYTES + address_bytes(family)?;
    let (Some(addresses), Some(fields)) = (header.get(FIXED_BYTES..tlvs_at), header.get(tlvs_at..))
    else {
        return Err(TOO_SHORT);
    };
    let (mut tlvs, checksum_at) = match Tlvs::parse(fields) {
        // Addresses of a family that nobody knows, which have to be ignored.
        Err(_) if family == UNSPECIFIED => (Tlvs::default(), None),
        parsed => parsed?,
    };
    if let Some(at) = checksum_at {
        verify(header, tlvs_at + at)?;
    }
    if family == UNSPECIFIED && tlvs.get(tlv::UNASSIGNED).is_some() {
        // Such addresses, too, with zero bytes in them.
        tlvs = Tlvs::default();
    }
    Ok(Header {
        length_bytes: header.len(),
        endpoints: endpoints(family, addresses),
        tlvs,
    })
}

/// `None` for UNIX sockets, and for datagrams: "automatically falls back to the UNSPEC mode for the valid
/// combinations above that it does not support" (section 2.2).
fn endpoints(family: u8, addresses: &[u8]) -> Option<Endpoints> {
    let (addresses, ports) = addresses.split_at_checked(addresses.len().checked_sub(4)?)?;
    let (source, destination) = addresses.split_at(addresses.len() / 2);
    let (source, destination) = match family {
        TCP_OVER_IPV4 => (ipv4(source)?.into(), ipv4(destination)?.into()),
        TCP_OVER_IPV6 => (ipv6(source)?.into(), ipv6(destination)?.into()),
        _ => return None,
    };
    let port = |at: usize| Some(u16::from_be_bytes([*ports.get(at)?, *ports.get(at + 1)?]));
    Some(Endpoints::new(
        SocketAddr::new(source, port(0)?),
        SocketAddr::new(destination, port(2)?),
    ))
}

fn ipv4(bytes: &[u8]) -> Option<Ipv4Addr> {
    <[u8; 4]>::try_from(bytes).ok().map(Ipv4Addr::from)
}

fn ipv6(bytes: &[u8]) -> Option<Ipv6Addr> {
    <[u8; 16]>::try_from(bytes).ok().map(Ipv6Addr::from)
}

fn verify(header: &[u8], checksum_at: usize) -> Result<(), Fault> {
    let sent = header.get(checksum_at..checksum_at + 4);
    if sent == Some(&checksum(header, checksum_at).to_be_bytes()) {
        Ok(())
    } else {
        Err(CHECKSUM)
    }
}

/// The CRC32C of a header whose four bytes for it count as zero.
pub(super) fn checksum(header: &[u8], checksum_at: usize) -> u32 {
    let mut digest = CRC32C.digest();
    digest.update(&header[..checksum_at]);
    digest.update(&[0; 4]);
    digest.update(&header[checksum_at + 4..]);
    digest.finalize()
}
