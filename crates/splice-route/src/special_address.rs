//! Addresses that are not those of some host on the Internet.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::prefix::Prefix;

/// A range of addresses with a purpose of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Special {
    pub(crate) prefix: Prefix,
    /// With its article.
    pub(crate) kind: &'static str,
}

const PRIVATE: &str = "a private address";
const LINK_LOCAL: &str = "a link-local address";
const LOOPBACK: &str = "a loopback address";
const MULTICAST: &str = "a multicast address";
const UNSPECIFIED: &str = "an unspecified address";
const DOCUMENTATION: &str = "an address for documentation";
const BENCHMARKING: &str = "an address for benchmarks";
const RESERVED: &str = "a reserved address";
const TRANSLATED: &str = "an address of a transition mechanism";
const METADATA: &str = "an address of cloud metadata";

/// The registry of RFC 6890 (iana-ipv4-special-registry) without what is reachable from everywhere,
/// multicast, and where clouds tell an instance its credentials.
const IPV4: &[([u8; 4], u8, &str)] = &[
    ([0, 0, 0, 0], 8, UNSPECIFIED),
    ([10, 0, 0, 0], 8, PRIVATE),
    ([100, 64, 0, 0], 10, PRIVATE),
    // Alibaba Cloud, "Instance metadata".
    ([100, 100, 100, 200], 32, METADATA),
    ([127, 0, 0, 0], 8, LOOPBACK),
    // Azure, "What is IP address 168.63.129.16?".
    ([168, 63, 129, 16], 32, METADATA),
    ([169, 254, 0, 0], 16, LINK_LOCAL),
    // Scaleway, "Use instance metadata".
    ([169, 254, 42, 42], 32, METADATA),
    // Amazon EC2, Google, Azure, Oracle, DigitalOcean, OpenStack and others.
    ([169, 254, 169, 254], 32, METADATA),
    // Amazon ECS, "Task IAM role", and EKS, "Pod Identity".
    ([169, 254, 170, 2], 32, METADATA),
    ([169, 254, 170, 23], 32, METADATA),
    ([172, 16, 0, 0], 12, PRIVATE),
    ([192, 0, 0, 0], 24, RESERVED),
    ([192, 0, 2, 0], 24, DOCUMENTATION),
    ([192, 88, 99, 0], 24, TRANSLATED),
    ([192, 168, 0, 0], 16, PRIVATE),
    ([198, 18, 0, 0], 15, BENCHMARKING),
    ([198, 51, 100, 0], 24, DOCUMENTATION),
    ([203, 0, 113, 0], 24, DOCUMENTATION),
    ([224, 0, 0, 0], 4, MULTICAST),
    ([240, 0, 0, 0], 4, RESERVED),
    ([255, 255, 255, 255], 32, "the broadcast address"),
];

/// The same for IPv6 (iana-ipv6-special-registry). Only 2000::/3 has been given out (RFC 4291).
const IPV6: &[([u16; 8], u8, &str)] = &[
    ([0; 8], 3, RESERVED),
    ([0; 8], 128, UNSPECIFIED),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, LOOPBACK),
    // RFC 8215: translation to IPv4 by a prefix of the site's choice.
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, TRANSLATED),
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 23, RESERVED),
    // Teredo.
    ([0x2001, 0, 0, 0, 0, 0, 0, 0], 32, TRANSLATED),
    ([0x2001, 2, 0, 0, 0, 0, 0, 0], 48, BENCHMARKING),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32, DOCUMENTATION),
    // 6to4.
    ([0x2002, 0, 0, 0, 0, 0, 0, 0], 16, TRANSLATED),
    // RFC 9637.
    ([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20, DOCUMENTATION),
    ([0x4000, 0, 0, 0, 0, 0, 0, 0], 2, RESERVED),
    ([0x8000, 0, 0, 0, 0, 0, 0, 0], 1, RESERVED),
    ([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7, PRIVATE),
    // Scaleway, Oracle, Amazon EC2 and EKS, Google, in the pages named above.
    ([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42], 128, METADATA),
    ([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe], 128, METADATA),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128, METADATA),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23], 128, METADATA),
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, METADATA),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, LINK_LOCAL),
    // Site-local (RFC 3879).
    ([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10, PRIVATE),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, MULTICAST),
];

/// The narrowest special range that contains `address`.
pub(crate) fn special(address: IpAddr) -> Option<Special> {
    let ranges: Box<dyn Iterator<Item = (IpAddr, u8, &'static str)>> = match address {
        IpAddr::V4(_) => Box::new(
            IPV4.iter()
                .map(|(octets, length, kind)| (Ipv4Addr::from(*octets).into(), *length, *kind)),
        ),
        IpAddr::V6(_) => Box::new(
            IPV6.iter()
                .map(|(segments, length, kind)| (Ipv6Addr::from(*segments).into(), *length, *kind)),
        ),
    };
    ranges
        .map(|(address, length_bits, kind)| {
            let prefix = Prefix::of(address, length_bits);
            (length_bits, Special { prefix, kind })
        })
        .filter(|(_, special)| special.prefix.contains(address))
        .max_by_key(|(length_bits, _)| *length_bits)
        .map(|(_, special)| special)
}

/// The addresses that a connection to `address` may reach: itself, and the IPv4 address within it. Those
/// of NAT64 and IPv4-mapped ones are nothing but their IPv4 address.
pub(crate) fn reached(address: IpAddr) -> impl Iterator<Item = IpAddr> + Clone {
    let canonical = address.to_canonical();
    let (itself, within) = match canonical {
        IpAddr::V4(_) => (Some(canonical), None),
        IpAddr::V6(ip) => match ip.segments() {
            // RFC 6052, section 2.1.
            [0x64, 0xff9b, 0, 0, 0, 0, high, low] => (None, Some(ipv4(high, low))),
            // 6to4 (RFC 3056).
            [0x2002, high, low, ..] => (Some(canonical), Some(ipv4(high, low))),
            // IPv4-compatible (RFC 4291, section 2.5.5.1) and IPv4-translated (RFC 2765).
            [0, 0, 0, 0, 0 | 0xffff, 0, high, low] if high != 0 => {
                (Some(canonical), Some(ipv4(high, low)))
            }
            _ => (Some(canonical), None),
        },
    };
    itself.into_iter().chain(within)
}

fn ipv4(high: u16, low: u16) -> IpAddr {
    let bits = u32::from(high) << 16 | u32::from(low);
    IpAddr::V4(Ipv4Addr::from(bits))
}
