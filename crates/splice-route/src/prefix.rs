//! Ranges of addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An address prefix, such as 10.0.0.0/8 or 2001:db8::/32. A single address is one of full length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Prefix {
    address: IpAddr,
    length_bits: u8,
}

impl Prefix {
    /// The prefix of `length_bits` that contains `address`, or the whole address if it is shorter. An
    /// IPv4-mapped address is its IPv4 address.
    pub fn of(address: IpAddr, length_bits: u8) -> Self {
        let address = address.to_canonical();
        let length_bits = length_bits.min(width_bits(address));
        let masked = match address {
            IpAddr::V4(ip) => IpAddr::V4((u32::from(ip) & mask_v4(length_bits)).into()),
            IpAddr::V6(ip) => IpAddr::V6((u128::from(ip) & mask_v6(length_bits)).into()),
        };
        Self {
            address: masked,
            length_bits,
        }
    }

    /// The first address; never an IPv4-mapped one.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits all its addresses share.
    pub fn length_bits(&self) -> u8 {
        self.length_bits
    }

    /// Whether `address` is in the prefix. An IPv4-mapped address counts as its IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        address.is_ipv4() == self.address.is_ipv4() && Self::of(address, self.length_bits) == *self
    }

    /// Whether every address of `other` is in this prefix.
    pub fn covers(&self, other: &Self) -> bool {
        self.length_bits <= other.length_bits && self.contains(other.address)
    }
}

fn width_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn mask_v4(length_bits: u8) -> u32 {
    u32::MAX
        .checked_shl(32 - u32::from(length_bits))
        .unwrap_or(0)
}

fn mask_v6(length_bits: u8) -> u128 {
    u128::MAX
        .checked_shl(128 - u32::from(length_bits))
        .unwrap_or(0)
}

/// A text is no address prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAPrefix(&'static str);

impl fmt::Display for NotAPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotAPrefix {}

impl FromStr for Prefix {
    type Err = NotAPrefix;

    fn from_str(text: &str) -> Result<Self, NotAPrefix> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address
            .parse()
            .map_err(|_| NotAPrefix("it is not an address; write 10.0.0.0/8 or 2001:db8::/32"))?;
        let width = width_bits(address);
        let length_bits = match length {
            None => width,
            Some(length) => length
                .parse()
                .ok()
                .filter(|length| *length <= width)
                .ok_or(NotAPrefix(
                    "its length is not a number from 0 to 32, or to 128 for IPv6",
                ))?,
        };
        let mapped = address.to_canonical().is_ipv4() != address.is_ipv4();
        if mapped {
            return Err(NotAPrefix(
                "write an IPv4-mapped address as the IPv4 address",
            ));
        }
        let prefix = Self::of(address, length_bits);
        if prefix.address != address {
            return Err(NotAPrefix("bits behind its length are set; clear them"));
        }
        Ok(prefix)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.length_bits == width_bits(self.address) {
            return self.address.fmt(f);
        }
        write!(f, "{}/{}", self.address, self.length_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_contain_their_addresses() {
        for (prefix, address, contained) in [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.0.0.0/8", "::1", false),
            ("0.0.0.0/0", "255.255.255.255", true),
            ("0.0.0.0/0", "::1", false),
            ("::/0", "::1", true),
            ("::/0", "127.0.0.1", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("192.0.2.7", "192.0.2.7", true),
            ("192.0.2.7", "192.0.2.6", false),
        ] {
            let parsed: Prefix = prefix.parse().expect(prefix);
            let address = address.parse().expect(address);
            assert_eq!(parsed.contains(address), contained, "{prefix} {address}");
            assert_eq!(parsed.to_string(), prefix);
        }
    }

    #[test]
    fn a_text_that_is_no_prefix_is_refused() {
        for text in [
            "",
            "10",
            "10.0.0.0/33",
            "10.0.0.1/8",
            "::1/129",
            "a/8",
            "::ffff:10.0.0.1",
            "10.0.0.0/",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_prefix_covers_narrower_ones() {
        let covers = |wide: &str, narrow: &str| {
            let wide: Prefix = wide.parse().expect("a prefix");
            wide.covers(&narrow.parse().expect("a prefix"))
        };
        assert!(covers("10.0.0.0/8", "10.1.0.0/16"));
        assert!(covers("10.0.0.0/8", "10.0.0.0/8"));
        assert!(!covers("10.1.0.0/16", "10.0.0.0/8"));
        assert!(!covers("::/0", "10.0.0.0/8"));
    }
}
