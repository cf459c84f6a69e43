//! The host and port of a URI or a Host field.

use std::fmt::Write as _;
use std::net::Ipv6Addr;

/// The longest host name in bytes (RFC 1035, section 2.3.4), without its trailing dot.
const LONGEST_HOST_BYTES: usize = 253;

/// A host with the port that was written behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authority {
    /// In lower case, without a trailing dot. An IPv6 address has its brackets and its shortest form.
    pub(crate) host: Box<str>,
    pub(crate) port: Option<u16>,
}

impl Authority {
    /// `None` if `text` is no `host` or `host:port`. Servers differ in what they make of other bytes
    /// (`user@a`, `a b`), so none is accepted, and neither are two forms that RFC 3986 has:
    ///
    /// - A comma. `a,b` is also what a proxy makes of two Host fields (RFC 9110, section 5.3).
    /// - A percent-encoded ASCII character. `%61` is the same host as `a` (RFC 9110, section 4.2.3), but few
    ///   servers decode it, and `%2f` may become a slash. Nobody has to encode but what is not ASCII (RFC 3986,
    ///   section 3.2.2).
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
                let name = name.strip_suffix('.').unwrap_or(name);
                let is_long = name.len() > LONGEST_HOST_BYTES;
                if is_long || name.split('.').any(str::is_empty) || !is_registered_name(name) {
                    return None;
                }
                (name.to_ascii_lowercase(), port)
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

/// RFC 3986, section 3.2.2, without what [`Authority::parse`] excludes.
fn is_registered_name(name: &str) -> bool {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    loop {
        rest = match rest {
            [] => return std::str::from_utf8(&decoded).is_ok(),
            [b'%', high, low, behind @ ..] => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (Some(high), Some(low)) = (digit(*high), digit(*low)) else {
                    return false;
                };
                match u8::try_from(high << 4 | low) {
                    Ok(octet @ 0x80..) => decoded.push(octet),
                    _ => return false,
                }
                behind
            }
            [byte, behind @ ..] if is_plain(*byte) || b"~!$&'()*+;=".contains(byte) => {
                decoded.push(*byte);
                behind
            }
            _ => return false,
        };
    }
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
            ("a,b", None),
            ("user@a", None),
            ("a/b", None),
            ("a!$&'()*+;=~b", Some(("a!$&'()*+;=~b", None))),
            (
                "M%C3%A4rz.example:80",
                Some(("m%c3%a4rz.example", Some(80))),
            ),
            ("%e2%82%ac", Some(("%e2%82%ac", None))),
            ("a%2eb", None),
            ("%61", None),
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
