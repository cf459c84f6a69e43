//! What clients of SOCKS and CONNECT ask for.

use std::fmt;
use std::net::IpAddr;

use crate::authority::{Authority, is_plain};

/// A host with its port.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Destination {
    /// Where.
    pub host: Host,
    /// The TCP port; 0 is sent by no honest client, and allowed by no rule.
    pub port: u16,
}

/// A host, as a client has written it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// A name in lower case without a trailing dot: letters, digits, hyphens, underscores and dots.
    Name(String),
    /// An address, which may be an IPv4-mapped one.
    Address(IpAddr),
}

/// The longest label of a name in bytes (RFC 1035, section 2.3.4).
const LONGEST_LABEL_BYTES: usize = 63;

impl Host {
    /// A name, or an address written as text, in brackets or without. `None` if it is neither.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let bare = text
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if let Some(literal) = bare {
            return Some(Self::Address(IpAddr::V6(literal.parse().ok()?)));
        }
        if let Ok(address) = text.parse() {
            return Some(Self::Address(address));
        }
        // What has a colon is no name, and what has other characters is in no DNS.
        if !text.bytes().all(is_plain) {
            return None;
        }
        let name = Authority::parse(text.as_bytes())?;
        // `10.0.0.1.`
        if let Ok(address) = name.host.parse() {
            return Some(Self::Address(address));
        }
        let short = |label: &str| label.len() <= LONGEST_LABEL_BYTES;
        name.host
            .split('.')
            .all(short)
            .then(|| Self::Name(name.host.into()))
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Name(name) => write!(f, "{name}:{}", self.port),
            Host::Address(IpAddr::V4(address)) => write!(f, "{address}:{}", self.port),
            Host::Address(IpAddr::V6(address)) => write!(f, "[{address}]:{}", self.port),
        }
    }
}

/// Why a client does not get its destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Failure {
    /// No rule allows it.
    NotAllowed,
    /// There is no route to it.
    NetworkUnreachable,
    /// It does not answer, or its name has no address.
    HostUnreachable,
    /// Nothing listens there.
    ConnectionRefused,
    /// It did not answer in time.
    TimedOut,
    /// Anything else.
    Other,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts() {
        for (text, expected) in [
            ("Example.ORG.", Some("example.org:1")),
            ("a_b.example", Some("a_b.example:1")),
            ("10.0.0.1", Some("10.0.0.1:1")),
            ("10.0.0.1.", Some("10.0.0.1:1")),
            ("::1", Some("[::1]:1")),
            ("[2001:DB8::1]", Some("[2001:db8::1]:1")),
            // Resolvers take these for addresses. The rules are held against what they resolve to.
            ("127.1", Some("127.1:1")),
            ("0x7f000001", Some("0x7f000001:1")),
            ("", None),
            (".", None),
            ("a..b", None),
            ("a b", None),
            ("a\0b", None),
            ("a\r\nb", None),
            ("example.org:80", None),
            ("example.org:", None),
            ("fe80::1%eth0", None),
            ("[10.0.0.1]", None),
            ("[::1", None),
            ("[::1]:80", None),
            ("ex\u{e4}mple.org", None),
            ("a/b", None),
            ("a!b", None),
            ("a~b", None),
            ("%c3%a4", None),
            ("*.example.org", None),
        ] {
            let host = Host::parse(text.as_bytes());
            let shown = host.map(|host| Destination { host, port: 1 }.to_string());
            assert_eq!(shown.as_deref(), expected, "{text}");
        }
        assert_eq!(Host::parse(b"\xff.org"), None);
        assert_eq!(Host::parse(&[b'a'; 64]), None);
    }
}
