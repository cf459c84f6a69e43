//! Rules that choose routes by ports or by the protocol (`ip rule ... dport`, `sport`, `ipproto`).

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use crate::netlink::{Attributes, DumpError, Socket};
use crate::segment::TCP;
use crate::way::Ends;

/// `RTM_GETRULE`.
const GET_RULE: u16 = 34;

/// `struct fib_rule_hdr`, and where it has the lengths of the prefixes, the number of the table, and flags.
const HEADER_BYTES: usize = 12;
const DESTINATION_BITS_AT: usize = 1;
const SOURCE_BITS_AT: usize = 2;
const TABLE_AT: usize = 4;
const FLAGS_AT: usize = 8;
/// `FIB_RULE_INVERT` (`ip rule add not ...`).
const INVERTED: u32 = 2;

/// `AF_INET`, `AF_INET6`.
const IPV4: u8 = 2;
const IPV6: u8 = 10;

/// How often to read what changes while it is read.
const TRIES: usize = 20;

/// `FRA_*` (linux/fib_rules.h).
mod fra {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const SOURCE: u16 = 2;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const TABLE: u16 = 15;
    pub(super) const IP_PROTOCOL: u16 = 22;
    pub(super) const SOURCE_PORTS: u16 = 23;
    pub(super) const DESTINATION_PORTS: u16 = 24;
}

/// A rule that chooses routes by ports or by the protocol, as `ip rule` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortRule {
    priority: u32,
    is_inverted: bool,
    source: Option<(IpAddr, u8)>,
    destination: Option<(IpAddr, u8)>,
    protocol: Option<u8>,
    source_ports: Option<RangeInclusive<u16>>,
    destination_ports: Option<RangeInclusive<u16>>,
    table: u32,
}

impl PortRule {
    /// Those of this thread's network namespace for this family, in the order in which the kernel asks them.
    ///
    /// # Errors
    /// If netlink fails.
    pub fn all(is_ipv4: bool) -> io::Result<Vec<Self>> {
        let mut socket = Socket::for_devices()?;
        let mut header = [0; HEADER_BYTES];
        header[0] = if is_ipv4 { IPV4 } else { IPV6 };
        for _ in 0..TRIES {
            let mut rules = Vec::new();
            let dumped = socket.dump_route(GET_RULE, &header, |header, attributes| {
                rules.extend(Self::read(header, attributes));
            });
            match dumped {
                Ok(()) => return Ok(rules),
                Err(DumpError::Changed) => {}
                Err(DumpError::System(error)) => return Err(error),
                Err(DumpError::Answer(errno)) => return Err(errno.into()),
            }
        }
        Err(io::Error::other(
            "the rules change faster than they can be read",
        ))
    }

    /// `None`: it asks neither for ports nor for the protocol.
    fn read(header: &[u8], attributes: Attributes<'_>) -> Option<Self> {
        let prefix = |kind, bits_at: usize| {
            let address = address(attributes.bytes(kind)?)?;
            Some((address, header[bits_at]))
        };
        let ports = |kind| {
            let [a, b, c, d] = *attributes.bytes(kind)?.first_chunk::<4>()?;
            Some(u16::from_ne_bytes([a, b])..=u16::from_ne_bytes([c, d]))
        };
        let flags = header[FLAGS_AT..].first_chunk::<4>()?;
        let rule = Self {
            priority: attributes.native_u32(fra::PRIORITY).unwrap_or(0),
            is_inverted: u32::from_ne_bytes(*flags) & INVERTED != 0,
            source: prefix(fra::SOURCE, SOURCE_BITS_AT),
            destination: prefix(fra::DESTINATION, DESTINATION_BITS_AT),
            protocol: attributes.u8(fra::IP_PROTOCOL).filter(|it| *it != 0),
            source_ports: ports(fra::SOURCE_PORTS),
            destination_ports: ports(fra::DESTINATION_PORTS),
            table: attributes
                .native_u32(fra::TABLE)
                .unwrap_or_else(|| header[TABLE_AT].into()),
        };
        let asks = rule.protocol.is_some()
            || rule.source_ports.is_some()
            || rule.destination_ports.is_some();
        asks.then_some(rule)
    }

    /// Whether it may choose a route for packets of this connection: of those that leave, or of those that come in. What it
    /// asks beside addresses, ports and the protocol counts as met.
    pub fn may_concern(&self, ends: &Ends) -> bool {
        if self.is_inverted {
            return true;
        }
        let Ends { local, peer, .. } = *ends;
        self.takes(local, peer) || self.takes(peer, local)
    }

    fn takes(&self, from: SocketAddr, to: SocketAddr) -> bool {
        let is_of = |prefix: &Option<(IpAddr, u8)>, address: IpAddr| {
            prefix.is_none_or(|(network, bits)| begin_alike(network, address, bits))
        };
        let has = |ports: &Option<RangeInclusive<u16>>, port: u16| {
            ports.as_ref().is_none_or(|ports| ports.contains(&port))
        };
        self.protocol.is_none_or(|protocol| protocol == TCP)
            && is_of(&self.source, from.ip())
            && is_of(&self.destination, to.ip())
            && has(&self.source_ports, from.port())
            && has(&self.destination_ports, to.port())
    }
}

impl fmt::Display for PortRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ip rule {}:", self.priority)?;
        if self.is_inverted {
            f.write_str(" not")?;
        }
        match self.source {
            Some((address, bits)) => write!(f, " from {address}/{bits}")?,
            None => f.write_str(" from all")?,
        }
        if let Some((address, bits)) = self.destination {
            write!(f, " to {address}/{bits}")?;
        }
        match self.protocol {
            Some(TCP) => f.write_str(" ipproto tcp")?,
            Some(protocol) => write!(f, " ipproto {protocol}")?,
            None => {}
        }
        for (word, ports) in [
            ("sport", &self.source_ports),
            ("dport", &self.destination_ports),
        ] {
            match ports {
                Some(ports) if ports.start() == ports.end() => {
                    write!(f, " {word} {}", ports.start())?
                }
                Some(ports) => write!(f, " {word} {}-{}", ports.start(), ports.end())?,
                None => {}
            }
        }
        match self.table {
            0 => Ok(()),
            253 => f.write_str(" lookup default"),
            254 => f.write_str(" lookup main"),
            255 => f.write_str(" lookup local"),
            table => write!(f, " lookup {table}"),
        }
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(Ipv4Addr::from(*bytes.first_chunk::<4>()?).into()),
        16 => Some(Ipv6Addr::from(*bytes.first_chunk::<16>()?).into()),
        _ => None,
    }
}

/// Whether an address belongs to a network.
fn begin_alike(network: IpAddr, address: IpAddr, bits: u8) -> bool {
    let differ = match (network, address.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => u128::from(one.to_bits() ^ other.to_bits()) << 96,
        (IpAddr::V6(one), IpAddr::V6(other)) => one.to_bits() ^ other.to_bits(),
        _ => return false,
    };
    differ.leading_zeros() >= bits.into()
}

#[cfg(test)]
mod tests {
    use netlab::{Namespace, Need, available};

    use super::*;

    fn ends(local: &str, peer: &str) -> Ends {
        Ends {
            local: local.parse().expect("an address"),
            peer: peer.parse().expect("an address"),
            type_of_service: 0,
            is_transparent: false,
        }
    }

    #[test]
    fn rules_are_read_as_ip_shows_them() {
        if !available(Need::Netns) {
            return;
        }
        let here = Namespace::new("rules").expect("a namespace");
        for (version, host, network) in [
            ("-4", "198.18.0.", "198.18.0.0/24"),
            ("-6", "[2001:2::", "2001:2::/64"),
        ] {
            let end = |number: u8, port: u16| match version {
                "-4" => format!("{host}{number}:{port}"),
                _ => format!("{host}{number}]:{port}"),
            };
            let client = ends(&end(1, 80), &end(2, 9));
            let server = ends(&end(1, 40_000), &end(9, 5432));
            let of_network = format!("from {network} dport 80");
            for (rule, action, shown, concerned) in [
                ("from all", " lookup main", None, [false, false]),
                (
                    "dport 5432",
                    " lookup 77",
                    Some("from all dport 5432"),
                    [false, true],
                ),
                // What comes from the server has it, too.
                (
                    "sport 5000-6000",
                    " lookup main",
                    Some("from all sport 5000-6000"),
                    [false, true],
                ),
                (
                    "ipproto 6",
                    " lookup main",
                    Some("from all ipproto tcp"),
                    [true, true],
                ),
                (
                    "ipproto 17",
                    " lookup 253",
                    Some("from all ipproto 17"),
                    [false, false],
                ),
                (
                    "not dport 7",
                    " lookup main",
                    Some("not from all dport 7"),
                    [true, true],
                ),
                (
                    &of_network,
                    " lookup main",
                    Some(&*of_network),
                    [true, false],
                ),
            ] {
                let ip = |how: &str| {
                    let mut command = here.command("ip");
                    command.args([version, "rule", how, "pref", "5"]);
                    let command = command.args(format!("{rule}{action}").split(' '));
                    assert!(command.status().expect("ip runs").success(), "{rule}");
                };
                ip("add");
                let rules = here.enter(|| PortRule::all(version == "-4"));
                let rules = rules.expect("entered").expect("read");
                ip("del");
                let words: Vec<_> = rules.iter().map(ToString::to_string).collect();
                let action = action.replace("253", "default");
                let expected: Vec<_> = shown
                    .iter()
                    .map(|it| format!("ip rule 5: {it}{action}"))
                    .collect();
                assert_eq!(words, expected);
                for rule in &rules {
                    let concerns = [&client, &server].map(|ends| rule.may_concern(ends));
                    assert_eq!(concerns, concerned, "{rule}");
                }
            }
        }
    }
}
