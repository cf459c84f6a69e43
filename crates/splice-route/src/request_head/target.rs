//! What a request is for: its target, in each of its forms.

use std::ops::Range;

use crate::authority::Authority;

/// The target of a request (RFC 9112, section 3.2).
pub(super) struct Target {
    pub(super) authority: Option<Authority>,
    /// Of the authority, if its scheme has one.
    default_port: Option<u16>,
    pub(super) path: Range<usize>,
}

impl Target {
    pub(super) fn parse(method: &[u8], text: &str) -> Option<Self> {
        let mut target = Self {
            authority: None,
            default_port: None,
            path: 0..0,
        };
        if method == b"CONNECT" {
            let authority = Authority::parse(text.as_bytes())?;
            authority.port?;
            target.authority = Some(authority);
            return Some(target);
        }
        if text == "*" && method == b"OPTIONS" {
            return Some(target);
        }
        let mut path = 0;
        if !text.starts_with('/') {
            let (scheme, rest) = text.split_once("://")?;
            if scheme.is_empty() || !scheme.bytes().all(is_of_scheme) {
                return None;
            }
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            target.authority = Some(Authority::parse(&rest.as_bytes()[..end])?);
            target.default_port = default_port(scheme);
            path = scheme.len() + 3 + end;
        }
        let rest = &text[path..];
        target.path = path..path + rest.find(['?', '#']).unwrap_or(rest.len());
        Some(target)
    }

    /// Whether a Host field names the same. The port that it leaves out is that of the scheme; for
    /// CONNECT, which has no scheme, it is any.
    pub(super) fn agrees(&self, authority: &Authority, host: &Authority) -> bool {
        let ports = match (host.port.or(self.default_port), self.default_port) {
            (None, None) => true,
            (port, default) => port == authority.port.or(default),
        };
        host.host == authority.host && ports
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match &*scheme.to_ascii_lowercase() {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// RFC 3986, section 3.1.
fn is_of_scheme(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}
