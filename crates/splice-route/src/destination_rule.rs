//! Which destinations clients of SOCKS and CONNECT may reach.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::destination::{Destination, Host};
use crate::name::NamePattern;
use crate::prefix::Prefix;
use crate::special_address::{reached, special};

/// A destination that a SOCKS or CONNECT client may reach: `HOSTS:PORTS`, such as `*.example.org:443`,
/// `10.0.0.0/8:*`, `[2001:db8::]/32:80-90` or `public:443`. An IPv6 address has brackets, so that its ports
/// cannot be mistaken for a part of it; `[2001:db8::/32]` is `[2001:db8::]/32`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DestinationRule {
    /// Which hosts.
    pub hosts: DestinationHosts,
    /// From and to, both inclusive.
    pub ports: (u16, u16),
}

/// The hosts of a [`DestinationRule`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DestinationHosts {
    /// Every public address: not this host, its links, private networks or its cloud's metadata.
    Public,
    /// A name that the client asks for, if its address is public.
    Named(NamePattern),
    /// Addresses: the client's or those that a name resolves to. Of addresses that are not public only
    /// those of a range that the prefix lies within: `10.0.0.0/8` allows private addresses, `0.0.0.0/0`
    /// does not.
    Addresses(Prefix),
}

/// Why a client must not reach an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// No rule is about it.
    NoRule,
    /// It is an address of this host, and no rule is about it alone.
    Own(IpAddr),
    /// It may be an address of this host, and no rule is about it alone.
    MaybeOwn(IpAddr),
    /// It is not public, and no rule is about its range or a part of that.
    NotPublic {
        /// The address, or the IPv4 address within it.
        address: IpAddr,
        /// Such as "a loopback address".
        kind: &'static str,
        /// The range of such addresses.
        range: Prefix,
    },
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRule => f.write_str("no rule allows it"),
            Self::Own(address) => {
                write!(
                    f,
                    "{address} is an address of this host, and no rule allows just that"
                )
            }
            Self::MaybeOwn(address) => write!(
                f,
                "whether {address} is an address of this host cannot be found out, and no rule allows just that"
            ),
            Self::NotPublic {
                address,
                kind,
                range,
            } if *range == Prefix::of(*address, u8::MAX) => {
                write!(f, "{address} is {kind}, and no rule allows just that")
            }
            Self::NotPublic {
                address,
                kind,
                range,
            } => write!(
                f,
                "{address} is {kind}, and no rule allows {range} or a part of it"
            ),
        }
    }
}

impl std::error::Error for Denied {}

/// Whether a client that asks for `asked` may reach `resolved`, which is its address or one that its name
/// resolves to. Connect to that address, not to the name: the name could resolve to another one later.
///
/// Names say nothing about where a connection goes, because whoever asks for one may also be the one that
/// makes it resolve. So an address that is not public has to be named by its prefix. `is_own` tells the
/// addresses of this host, `None` if it cannot; each has to be named alone, except for those of loopback.
pub fn permits(
    rules: &[DestinationRule],
    asked: &Destination,
    resolved: IpAddr,
    is_own: impl Fn(IpAddr) -> Option<bool>,
) -> Result<(), Denied> {
    let rules = || rules.iter().filter(|rule| rule.is_for_port(asked.port));
    let mut public = true;
    for address in reached(resolved) {
        let not_public = || {
            special(address).map(|special| {
                let denied = Denied::NotPublic {
                    address,
                    kind: special.kind,
                    range: special.prefix,
                };
                (special.prefix, denied)
            })
        };
        let alone = Prefix::of(address, u8::MAX);
        let range = match is_own(address) {
            _ if address.is_loopback() => not_public(),
            Some(false) => not_public(),
            Some(true) => Some((alone, Denied::Own(address))),
            None => Some((alone, Denied::MaybeOwn(address))),
        };
        if let Some((range, denied)) = range {
            let names = |prefix: &Prefix| prefix.contains(address) && range.covers(prefix);
            if !rules()
                .any(|rule| matches!(&rule.hosts, DestinationHosts::Addresses(it) if names(it)))
            {
                return Err(denied);
            }
            public = false;
        }
    }
    let allowed = |rule: &DestinationRule| match (&rule.hosts, &asked.host) {
        (DestinationHosts::Public, _) => true,
        (DestinationHosts::Named(pattern), Host::Name(name)) => pattern.matches(name),
        (DestinationHosts::Named(_), Host::Address(_)) => false,
        (DestinationHosts::Addresses(prefix), _) => {
            // A prefix may also name the translator's addresses.
            prefix.contains(resolved) || reached(resolved).any(|address| prefix.contains(address))
        }
    };
    if !public || rules().any(allowed) {
        Ok(())
    } else {
        Err(Denied::NoRule)
    }
}

impl DestinationRule {
    fn is_for_port(&self, port: u16) -> bool {
        (self.ports.0..=self.ports.1).contains(&port)
    }
}

/// A text is no rule for destinations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotARule(String);

impl fmt::Display for NotARule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotARule {}

impl From<&str> for NotARule {
    fn from(why: &str) -> Self {
        Self(why.into())
    }
}

impl FromStr for DestinationRule {
    type Err = NotARule;

    fn from_str(text: &str) -> Result<Self, NotARule> {
        // The last colon may be one of an address.
        let (hosts, ports) = text
            .rsplit_once(':')
            .filter(|(_, ports)| !ports.contains(']'))
            .ok_or("the ports are missing; write *.example.org:443, or :* for every port")?;
        Ok(Self {
            hosts: self::hosts(hosts)?,
            ports: self::ports(ports)?,
        })
    }
}

fn hosts(text: &str) -> Result<DestinationHosts, NotARule> {
    if text == "public" {
        return Ok(DestinationHosts::Public);
    }
    if let Some(rest) = text.strip_prefix('[') {
        let (address, length) = rest
            .split_once(']')
            .filter(|(address, _)| address.contains(':'))
            .ok_or("write an IPv6 prefix as [2001:db8::]/32")?;
        let prefix = format!("{address}{length}");
        return prefix
            .parse()
            .map(DestinationHosts::Addresses)
            .map_err(|why| NotARule(format!("{why}")));
    }
    if text.contains(':') {
        return Err("put the IPv6 address in brackets: [2001:db8::]/32:443".into());
    }
    // What looks like an address is one, even if it is wrong.
    let numeric = |byte: u8| byte.is_ascii_digit() || b"./".contains(&byte);
    if text.contains('/') || (!text.is_empty() && text.bytes().all(numeric)) {
        return text
            .parse()
            .map(DestinationHosts::Addresses)
            .map_err(|why| NotARule(format!("{why}")));
    }
    text.parse()
        .map(DestinationHosts::Named)
        .map_err(|why| NotARule(format!("{why}")))
}

fn ports(text: &str) -> Result<(u16, u16), NotARule> {
    let number = |text: &str| {
        let decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        let port = text.parse::<u16>().ok().filter(|port| decimal && *port > 0);
        port.ok_or("write a port, a range such as 80-90, or * for every port")
    };
    let (from, to) = match text.split_once('-') {
        None if text == "*" => (1, u16::MAX),
        None => (number(text)?, number(text)?),
        Some((from, to)) => (number(from)?, number(to)?),
    };
    if from > to {
        return Err("the range of ports is empty; write the lower one first".into());
    }
    Ok((from, to))
}

#[cfg(test)]
mod tests;
