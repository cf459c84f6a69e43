//! Which connections are meant.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// What a connection has to be for a rule to match: all that is given. Written as conditions with commas between:
/// `net:10.0.0.0/8,port:5432,uid:70`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    network: Option<(IpAddr, u8)>,
    ports: Option<RangeInclusive<u16>>,
    user: Option<u32>,
}

/// Rules. One that denies wins; with one that allows, at least one of those has to match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// What is taken, if anything is said.
    pub allow: Vec<Rule>,
    /// What is left alone.
    pub deny: Vec<Rule>,
}

/// What the rules ask about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// All that either end calls its own or its peer's.
    pub(super) addresses: [IpAddr; 4],
    /// What the client has connected to, and what the server listens on.
    pub(super) server_ports: [u16; 2],
    pub(super) users: [u32; 2],
}

impl Rules {
    pub(super) fn accept(&self, facts: &Facts) -> bool {
        !self.deny.iter().any(|rule| rule.matches(facts))
            && (self.allow.is_empty() || self.allow.iter().any(|rule| rule.matches(facts)))
    }
}

impl Rule {
    fn matches(&self, facts: &Facts) -> bool {
        self.network.is_none_or(|(network, bits)| {
            let inside = |address: &IpAddr| is_within(*address, network, bits);
            facts.addresses.iter().any(inside)
        }) && self.ports.as_ref().is_none_or(|ports| {
            let inside = |port: &u16| ports.contains(port);
            facts.server_ports.iter().any(inside)
        }) && self.user.is_none_or(|user| facts.users.contains(&user))
    }
}

fn is_within(address: IpAddr, network: IpAddr, bits: u8) -> bool {
    let leading = |of: u128, width: u8| of.checked_shr(u32::from(width - bits)).unwrap_or(0);
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) => {
            let [address, network] = [address, network].map(|of| u128::from(of.to_bits()));
            leading(address, 32) == leading(network, 32)
        }
        (IpAddr::V6(address), IpAddr::V6(network)) => {
            leading(address.to_bits(), 128) == leading(network.to_bits(), 128)
        }
        _ => false,
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut rule = Self::default();
        for condition in text.split(',') {
            let wrong = || {
                format!(
                    "'{condition}' is no condition: write net:ADDRESS/BITS, port:FIRST-LAST or uid:NUMBER"
                )
            };
            let (name, value) = condition.split_once(':').ok_or_else(wrong)?;
            let is_new = match name {
                "net" => rule
                    .network
                    .replace(network(value).ok_or_else(wrong)?)
                    .is_none(),
                "port" => rule
                    .ports
                    .replace(ports(value).ok_or_else(wrong)?)
                    .is_none(),
                "uid" => rule
                    .user
                    .replace(value.parse().map_err(|_| wrong())?)
                    .is_none(),
                _ => return Err(wrong()),
            };
            if !is_new {
                return Err(format!("'{name}' is there twice: write two rules"));
            }
        }
        Ok(rule)
    }
}

fn network(text: &str) -> Option<(IpAddr, u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let width = if address.is_ipv4() { 32 } else { 128 };
    let bits = bits.unwrap_or(width);
    (bits <= width).then_some((address, bits))
}

fn ports(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some(first..=last)
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = [
            self.network
                .map(|(network, bits)| format!("net:{network}/{bits}")),
            (self.ports.as_ref()).map(|ports| format!("port:{}-{}", ports.start(), ports.end())),
            self.user.map(|user| format!("uid:{user}")),
        ];
        let conditions: Vec<_> = conditions.into_iter().flatten().collect();
        f.pad(&conditions.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let ip = |text: &str| text.parse().expect("an address");
        Facts {
            addresses: [
                ip("10.1.2.3"),
                ip("10.96.0.1"),
                ip("10.1.2.9"),
                ip("10.1.2.3"),
            ],
            server_ports: [80, 8080],
            users: [1000, 33],
        }
    }

    #[test]
    fn a_rule_matches_if_all_of_it_does() {
        for (text, matches) in [
            ("net:10.0.0.0/8", true),
            ("net:10.96.0.1", true),
            ("net:0.0.0.0/0", true),
            ("net:::/0", false),
            ("net:192.168.0.0/16", false),
            ("port:80", true),
            ("port:8000-9000", true),
            ("port:81-8079", false),
            ("uid:33", true),
            ("uid:0", false),
            ("net:10.0.0.0/8,port:80,uid:1000", true),
            ("net:10.0.0.0/8,port:80,uid:0", false),
        ] {
            let rule: Rule = text.parse().expect("a rule");
            assert_eq!(rule.matches(&facts()), matches, "{text}");
            assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule), "{text}");
        }
        for text in [
            "",
            "net:",
            "net:10.0.0.0/33",
            "port:9-1",
            "port:70000",
            "uid:x",
            "80",
            "uid:1,uid:2",
        ] {
            assert!(text.parse::<Rule>().is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_denied_is_not_taken_even_if_it_is_allowed() {
        let rule = |text: &str| vec![text.parse().expect("a rule")];
        let of = |allow, deny| Rules { allow, deny };
        assert!(of(vec![], vec![]).accept(&facts()));
        assert!(of(rule("port:80"), vec![]).accept(&facts()));
        assert!(!of(rule("port:81"), vec![]).accept(&facts()));
        assert!(!of(rule("port:80"), rule("uid:33")).accept(&facts()));
    }
}
