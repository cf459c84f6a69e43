//! What a TLS hello says.

use std::net::IpAddr;

use super::fields::Fields;
use crate::conditions::TlsVersion;
use crate::progress::Fault;

/// What a TLS client says first, as far as a route may ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    server_name: Option<Box<str>>,
    /// As in the message: each name behind a byte with its length, none empty.
    alpn: Box<[u8]>,
    newest_version: TlsVersion,
    has_ech: bool,
}

/// Type and length of a handshake message (RFC 8446, section 4).
pub(super) const HEADER_BYTES: usize = 4;

/// Extensions, as IANA numbers them (TLS ExtensionType Values).
const SERVER_NAME: u16 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;
const ENCRYPTED_CLIENT_HELLO: u16 = 0xfe0d;

/// RFC 6066, section 3.
const HOST_NAME: u8 = 0;
/// The longest host name and the longest label in it (RFC 1035, section 2.3.4).
const LONGEST_NAME_BYTES: usize = 253;
const LONGEST_LABEL_BYTES: usize = 63;

impl ClientHello {
    /// The host that the client asks for, in lower case and without a trailing dot.
    ///
    /// It consists of letters, digits, hyphens, underscores and dots. An address, which RFC 6066
    /// does not permit but some clients send, is given as it is written: it matches only a rule that
    /// names it, and is never taken for no name. With ECH it is the outer name.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The application protocols that the client offers, its favourite first. None is empty.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.alpn;
        std::iter::from_fn(move || {
            let (length, names) = rest.split_first()?;
            let (name, next) = names.split_at_checked(usize::from(*length))?;
            rest = next;
            Some(name)
        })
    }

    /// The newest version that the client offers.
    pub fn newest_version(&self) -> TlsVersion {
        self.newest_version
    }

    /// Whether the hello has an encrypted one inside, or pretends to: browsers always send the
    /// extension, with random bytes where they have no key. So [`Self::server_name`] may be a name
    /// that many servers share.
    pub fn has_ech(&self) -> bool {
        self.has_ech
    }

    /// Reads the `body` of a hello, which follows its header (RFC 8446, section 4.1.2).
    pub(super) fn parse(body: &[u8]) -> Result<Self, Fault> {
        let mut fields = Fields::of(body);
        let legacy_version = fields.u16()?;
        fields.bytes(32)?;
        if fields.vector8()?.len() > 32 {
            return Err(Fault("the TLS hello has a session id beyond 32 bytes"));
        }
        let cipher_suites = fields.vector16()?;
        if cipher_suites.is_empty() || cipher_suites.len() % 2 != 0 {
            return Err(Fault("the TLS hello has a malformed list of cipher suites"));
        }
        if fields.vector8()?.is_empty() {
            return Err(Fault("the TLS hello has no compression method"));
        }
        // TLS before 1.3 allows a hello to end here.
        let mut extensions = if fields.is_empty() {
            fields
        } else {
            Fields::of(fields.vector16()?)
        };
        fields.end()?;

        let mut hello = Self {
            server_name: None,
            alpn: Box::default(),
            newest_version: legacy(legacy_version)?,
            has_ech: false,
        };
        let mut types = Vec::new();
        while !extensions.is_empty() {
            let extension = extensions.u16()?;
            let content = extensions.vector16()?;
            types.push(extension);
            match extension {
                SERVER_NAME => hello.server_name = Some(server_name(content)?),
                ALPN => hello.alpn = alpn(content)?,
                SUPPORTED_VERSIONS => hello.newest_version = newest(content)?,
                ENCRYPTED_CLIENT_HELLO => hello.has_ech = true,
                _ => {}
            }
        }
        types.sort_unstable();
        if types.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Fault("the TLS hello has the same extension twice"));
        }
        Ok(hello)
    }
}

/// The version of a client that sends no list. Numbers beyond TLS 1.2 mean TLS 1.2 (RFC 8446,
/// section 4.2.1).
fn legacy(version: u16) -> Result<TlsVersion, Fault> {
    match version {
        0..0x0300 => Err(Fault("the TLS hello has a version before SSL 3.0")),
        0x0300 | 0x0301 => Ok(TlsVersion::Tls10),
        0x0302 => Ok(TlsVersion::Tls11),
        0x0303.. => Ok(TlsVersion::Tls12),
    }
}

/// The newest version of a list. What is no version of TLS is ignored: GREASE (RFC 8701) and drafts.
fn newest(content: &[u8]) -> Result<TlsVersion, Fault> {
    let mut fields = Fields::of(content);
    let list = fields.vector8()?;
    fields.end()?;
    if list.is_empty() || list.len() % 2 != 0 {
        return Err(Fault("the TLS hello has a malformed list of versions"));
    }
    let known = |pair: &[u8]| match (pair[0], pair[1]) {
        (3, 0 | 1) => Some(TlsVersion::Tls10),
        (3, 2) => Some(TlsVersion::Tls11),
        (3, 3) => Some(TlsVersion::Tls12),
        (3, 4..) => Some(TlsVersion::Tls13),
        _ => None,
    };
    list.chunks_exact(2)
        .filter_map(known)
        .max()
        .ok_or(Fault("the TLS hello offers no known version"))
}

/// The names of a list, as they are written there.
fn alpn(content: &[u8]) -> Result<Box<[u8]>, Fault> {
    let mut fields = Fields::of(content);
    let list = fields.vector16()?;
    fields.end()?;
    let mut names = Fields::of(list);
    loop {
        if names.vector8()?.is_empty() {
            return Err(Fault("the TLS hello has an empty ALPN name"));
        }
        if names.is_empty() {
            return Ok(list.into());
        }
    }
}

/// The only name of a list. The format was meant to have further types of names, but servers accept
/// one host name and nothing else.
fn server_name(content: &[u8]) -> Result<Box<str>, Fault> {
    let mut fields = Fields::of(content);
    let mut list = Fields::of(fields.vector16()?);
    fields.end()?;
    if list.u8()? != HOST_NAME {
        return Err(Fault(
            "the TLS hello has a server name that is no host name",
        ));
    }
    let name = list.vector16()?;
    if !list.is_empty() {
        return Err(Fault("the TLS hello has two server names"));
    }
    host_name(name).ok_or(Fault("the TLS hello has an invalid server name"))
}

fn host_name(name: &[u8]) -> Option<Box<str>> {
    let name = name.strip_suffix(b".").unwrap_or(name);
    let text = std::str::from_utf8(name).ok()?.to_ascii_lowercase();
    // Only the colons of an IPv6 address are not allowed in a host name.
    let is_address = text.parse::<IpAddr>().is_ok();
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label = |label: &str| {
        (1..=LONGEST_LABEL_BYTES).contains(&label.len()) && label.bytes().all(allowed)
    };
    let is_name = text.len() <= LONGEST_NAME_BYTES && text.split('.').all(is_label);
    (is_address || is_name).then(|| text.into())
}
