//! The host and port of a URI or a Host field.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

/// The longest host name in bytes (RFC 1035, section 2.3.4), without its trailing dot.
const LONGEST_HOST_BYTES: usize = 253;

/// A host with the port that was written behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    /// In lower case, without a trailing dot. Percent-encoded letters, digits, hyphens, dots, underscores and tildes are
    /// decoded: that is the same host (RFC 3986, section 6.2.2.2). An IPv6 address has its brackets and its shortest
    /// form.
    pub(crate) host: Box<str>,
    pub(crate) port: Option<u16>,
}

impl Authority {
    /// `None` if `text` is no `host` or `host:port`. Servers differ in what they make of other bytes
    /// (`user@a`, `a b`), so none is accepted. RFC 3986 has one more form that is not: other ASCII characters in
    /// percent-encoding, since `%2f` or `%00` may end the name where it is decoded.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (literal, port) = rest.split_once(']')?;
                let address: Ipv6Addr = literal.parse().ok()?;
                let mut host = String::new();
                write!(host, "[{address}]").ok()?;
                (host, port)
            }
            None => {
                let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
                let mut name = registered_name(name)?;
                if name.ends_with('.') {
                    name.pop();
                }
                if name.len() > LONGEST_HOST_BYTES || name.split('.').any(str::is_empty) {
                    return None;
                }
                (name, port)
            }
        };
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            None => return None,
            // RFC 3986 allows a colon without a port.
            Some("") => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                Some(digits.parse().ok()?)
            }
            Some(_) => return None,
        };
        Some(Self {
            host: host.into(),
            port,
        })
    }
}

/// What the names of hosts in the DNS are made of.
pub(crate) fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.".contains(&byte)
}

/// RFC 3986, section 2.3.
fn is_unreserved(byte: u8) -> bool {
    is_plain(byte) || byte == b'~'
}

/// A `reg-name` (RFC 3986, section 3.2.2) as [`Authority::host`] has it, with its trailing dot. `None` for what is none,
/// or what [`Authority::parse`] excludes.
fn registered_name(text: &str) -> Option<String> {
    let mut name = String::with_capacity(text.len());
    // What is encoded has to be UTF-8.
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let octet = match (*byte, behind) {
            (b'%', [high, low, behind @ ..]) => {
                rest = behind;
                let digit = |byte: u8| char::from(byte).to_digit(16);
                u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?
            }
            (byte, _) if is_unreserved(byte) || b"!$&'()*+,;=".contains(&byte) => {
                decoded.push(byte);
                name.push(byte.to_ascii_lowercase().into());
                continue;
            }
            _ => return None,
        };
        if octet.is_ascii() {
            if !is_unreserved(octet) {
                return None;
            }
            name.push(octet.to_ascii_lowercase().into());
        } else {
            write!(name, "%{octet:02x}").ok()?;
        }
        decoded.push(octet);
    }
    std::str::from_utf8(&decoded).is_ok().then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports() {
        for (text, expected) in [
            ("example.org", Some(("example.org", None))),
            ("EXAMPLE.org.:80", Some(("example.org", Some(80)))),
            ("example.org:", Some(("example.org", None))),
            ("a_b-c.org", Some(("a_b-c.org", None))),
            ("10.0.0.1:8080", Some(("10.0.0.1", Some(8080)))),
            ("[::1]", Some(("[::1]", None))),
            ("[2001:DB8:0::1]:443", Some(("[2001:db8::1]", Some(443)))),
            ("", None),
            (":80", None),
            (".", None),
            ("a..b", None),
            (".a", None),
            ("a b", None),
            ("A,b.org", Some(("a,b.org", None))),
            ("a:80,b:80", None),
            ("user@a", None),
            ("a/b", None),
            ("a!$&'()*+;=~b", Some(("a!$&'()*+;=~b", None))),
            (
                "M%C3%A4rz.example:80",
                Some(("m%c3%a4rz.example", Some(80))),
            ),
            ("%e2%82%ac", Some(("%e2%82%ac", None))),
            ("a%2Eb", Some(("a.b", None))),
            ("%61%4d%2d%5F%7e%30:80", Some(("am-_~0", Some(80)))),
            ("a%2e", Some(("a", None))),
            ("a%2e.", None),
            ("%2e", None),
            ("%2ea", None),
            ("a%2e.b", None),
            ("a%3a80", None),
            ("a%2c", None),
            ("a%21", None),
            ("a%40b", None),
            ("a%2fb", None),
            ("a%00", None),
            ("a%0d%0ab", None),
            ("a%25", None),
            ("%c3", None),
            ("%c3.%a4", None),
            ("%c0%af", None),
            ("%a", None),
            ("%", None),
            ("a%c3%a", None),
            ("%+c%a4", None),
            ("%zz", None),
            ("ex\u{e4}mple.org", None),
            ("a:65536", None),
            ("a:-1", None),
            ("a:+1", None),
            ("a:80:80", None),
            ("::1", None),
            ("[::1", None),
            ("[::1]80", None),
            ("[example.org]", None),
            ("[fe80::1%eth0]", None),
        ] {
            let parsed = Authority::parse(text.as_bytes());
            let parsed = parsed.as_ref().map(|it| (&*it.host, it.port));
            assert_eq!(parsed, expected, "{text}");
        }
        assert_eq!(Authority::parse(b"\xff.org"), None);
        assert_eq!(Authority::parse(&[b'a'; 254]), None);
    }
}
