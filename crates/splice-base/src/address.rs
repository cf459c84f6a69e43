//! Addresses to listen on and to connect to, as text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// The longest path that fits into `sockaddr_un.sun_path` with its terminating zero, in bytes
/// (unix(7)).
const UNIX_PATH_MAX_BYTES: usize = 107;

/// Where a socket that has connections listens, or connects to. Every option and message writes an address in this one
/// form.
///
/// | written | means |
/// |---|---|
/// | `127.0.0.1:80`, `[::1]:80` | this address and port |
/// | `:80` | every local address when listening, this host's loopback when connecting |
/// | `host:port` | every address that the name resolves to, in the order in which to try them; `localhost` is 127.0.0.1 and ::1 |
/// | `unix:/path` | a UNIX stream socket in the file system |
/// | `unix:@name` | a UNIX stream socket in the abstract namespace of unix(7) |
///
/// These are what it is parsed from. A [`SocketName`](crate::socket_name::SocketName) may also have one of VSOCK, or of a
/// socket that keeps messages apart.
///
/// ```
/// use splice_base::address::Address;
/// let address: Address = "[::1]:8080".parse()?;
/// assert_eq!(address.to_string(), "[::1]:8080");
/// # Ok::<(), splice_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// A host (a name or a literal address without brackets; empty for `:port`) and a TCP port.
    Inet {
        /// The host as written, without the brackets of an IPv6 literal.
        host: String,
        /// The TCP port.
        port: u16,
    },
    /// A UNIX stream socket with a name in the file system.
    UnixPath(PathBuf),
    /// A UNIX stream socket with a name in the abstract namespace, without the leading `@`.
    UnixAbstract(String),
    /// A VSOCK stream socket.
    Vsock(VsockAddress),
    /// A socket of type `SOCK_SEQPACKET`, which keeps messages apart.
    Seqpacket(SeqpacketAddress),
}

/// Where a VSOCK socket listens or connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VsockAddress {
    /// The context identifier; `VMADDR_CID_ANY` if none was written.
    pub cid: u32,
    /// The port, which has 32 bits.
    pub port: u32,
}

impl VsockAddress {
    /// `VMADDR_CID_ANY` (vsock(7)): every context identifier of this host.
    pub const ANY_CID: u32 = u32::MAX;
}

/// Where a socket of type `SOCK_SEQPACKET` listens or connects to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SeqpacketAddress {
    /// A UNIX socket with a name in the file system.
    UnixPath(PathBuf),
    /// A UNIX socket with a name in the abstract namespace, without the leading `@`.
    UnixAbstract(String),
    /// A VSOCK socket.
    Vsock(VsockAddress),
}

impl FromStr for Address {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidAddress`], with the text, what is wrong with it and how to write it.
    fn from_str(text: &str) -> Result<Self> {
        match text.strip_prefix("unix:") {
            Some(name) => parse_unix(text, name, "unix:"),
            None if OTHER_KINDS.iter().any(|kind| text.starts_with(kind)) => Err(invalid(
                text,
                "a stream socket is needed here; write HOST:PORT, :PORT or unix:/path",
            )),
            None => parse_inet(text, "", "HOST:PORT, :PORT or unix:/path"),
        }
    }
}

impl Address {
    /// Whether it is of TCP.
    pub fn is_tcp(&self) -> bool {
        matches!(self, Self::Inet { .. })
    }

    /// Whether its socket keeps messages apart. Other sockets have streams.
    pub fn keeps_messages(&self) -> bool {
        matches!(self, Self::Seqpacket(_))
    }

    /// The file of its socket, if it has one.
    pub fn socket_file(&self) -> Option<&Path> {
        match self {
            Self::UnixPath(path) | Self::Seqpacket(SeqpacketAddress::UnixPath(path)) => Some(path),
            _ => None,
        }
    }

    /// Its context identifier and port, if it is one of VSOCK.
    pub fn vsock(&self) -> Option<VsockAddress> {
        match self {
            Self::Vsock(vsock) | Self::Seqpacket(SeqpacketAddress::Vsock(vsock)) => Some(*vsock),
            _ => None,
        }
    }

    /// Whether it is one to listen on only: every context identifier of VSOCK.
    pub fn names_no_peer(&self) -> bool {
        self.vsock()
            .is_some_and(|vsock| vsock.cid == VsockAddress::ANY_CID)
    }

    /// Reads an address of TCP.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidAddress`], with the text, what is wrong with it and how to write it.
    pub fn of_tcp(text: &str) -> Result<Self> {
        const FORMS: &str = "HOST:PORT or :PORT";
        let mut others = OTHER_KINDS.iter().chain(&["unix:"]);
        match others.any(|kind| text.starts_with(kind)) {
            true => Err(invalid(
                text,
                &format!("an address of TCP is needed here; write {FORMS}"),
            )),
            false => parse_inet(text, "", FORMS),
        }
    }
}

/// Prefixes of sockets that are neither TCP nor UNIX streams ([`SocketName`](crate::socket_name::SocketName)).
pub(crate) const OTHER_KINDS: [&str; 5] = [
    "udp:",
    "unixgram:",
    "seqpacket:",
    "vsock:",
    "vsock-seqpacket:",
];

pub(crate) fn parse_unix(text: &str, name: &str, prefix: &str) -> Result<Address> {
    let longest = match name.strip_prefix('@') {
        Some(_) => UNIX_PATH_MAX_BYTES + 1,
        None => UNIX_PATH_MAX_BYTES,
    };
    if name.len() > longest {
        return Err(invalid(
            text,
            "the name of a UNIX socket has at most 107 bytes; shorten it",
        ));
    }
    if name.contains('\0') {
        return Err(invalid(
            text,
            "the name of a UNIX socket must not contain a zero byte; remove it",
        ));
    }
    match name.strip_prefix('@') {
        Some("") | None if name.len() < 2 => Err(invalid(
            text,
            &format!("a UNIX socket needs a name; write {prefix}/path or {prefix}@abstract"),
        )),
        Some(name) => Ok(Address::UnixAbstract(name.into())),
        None => Ok(Address::UnixPath(name.into())),
    }
}

/// Reads `text` behind `prefix`. `forms` are those that an address may have there.
pub(crate) fn parse_inet(text: &str, prefix: &str, forms: &str) -> Result<Address> {
    let rest = &text[prefix.len()..];
    let Some((host, port)) = rest.rsplit_once(':') else {
        return Err(invalid(
            text,
            &format!("the port is missing; write {forms}"),
        ));
    };
    let port = match port.parse() {
        // `parse` accepts a leading `+`, which nobody means to write.
        Ok(number) if port.as_bytes()[0].is_ascii_digit() => number,
        _ => {
            return Err(invalid(
                text,
                "the port is not a number from 0 to 65535; write one behind the last colon",
            ));
        }
    };
    let host = match host.strip_prefix('[') {
        Some(literal) => match literal.strip_suffix(']') {
            Some(inner) if inner.parse::<std::net::Ipv6Addr>().is_ok() || is_scoped(inner) => inner,
            _ => {
                return Err(invalid(
                    text,
                    "there is no IPv6 address between the brackets; write [::1]:80",
                ));
            }
        },
        None => match host.chars().find(|one| is_in_no_host(*one)) {
            Some(',') => {
                return Err(invalid(text, "it is a list of addresses; write one"));
            }
            Some(wrong) => {
                return Err(invalid(
                    text,
                    &format!("the host contains {wrong:?}, which no host name has; remove it"),
                ));
            }
            None if host.contains(':') => {
                let known = host.parse::<std::net::Ipv6Addr>();
                let example =
                    known.map_or_else(|_| "[::1]:80".into(), |ip| format!("[{ip}]:{port}"));
                return Err(invalid(
                    text,
                    &format!("an IPv6 address needs brackets; write {prefix}{example}"),
                ));
            }
            None => host,
        },
    };
    Ok(Address::Inet {
        host: host.into(),
        port,
    })
}

fn is_in_no_host(one: char) -> bool {
    one.is_ascii_control() || " []/@,*".contains(one)
}

/// `fe80::1%eth0`: a link-local address with its interface.
fn is_scoped(literal: &str) -> bool {
    literal
        .split_once('%')
        .is_some_and(|(ip, zone)| ip.parse::<std::net::Ipv6Addr>().is_ok() && !zone.is_empty())
}

pub(crate) fn invalid(text: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::InvalidAddress,
        format!("address {text:?} cannot be used: {why}"),
    )
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inet { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Inet { host, port } => write!(f, "{host}:{port}"),
            Self::UnixPath(path) => write!(f, "unix:{}", path.display()),
            Self::UnixAbstract(name) => write!(f, "unix:@{name}"),
            Self::Vsock(vsock) => write!(f, "vsock:{vsock}"),
            Self::Seqpacket(seqpacket) => seqpacket.fmt(f),
        }
    }
}

impl fmt::Display for SeqpacketAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnixPath(path) => write!(f, "seqpacket:{}", path.display()),
            Self::UnixAbstract(name) => write!(f, "seqpacket:@{name}"),
            Self::Vsock(vsock) => write!(f, "vsock-seqpacket:{vsock}"),
        }
    }
}

/// Without the prefix that says which kind of socket it is.
impl fmt::Display for VsockAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cid {
            Self::ANY_CID => write!(f, ":{}", self.port),
            cid => write!(f, "{cid}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_of_address_round_trips() {
        for text in [
            "127.0.0.1:80",
            "[::1]:80",
            ":80",
            "host.example:0",
            "unix:/run/x",
            "unix:@x",
            "[fe80::1%eth0]:443",
        ] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn an_invalid_address_says_what_is_wrong() {
        for (text, why) in [
            ("", "port is missing"),
            ("80", "port is missing"),
            ("host:", "not a number"),
            ("host:+1", "not a number"),
            ("host:65536", "not a number"),
            ("::1:80", "needs brackets"),
            ("[::1:80", "brackets"),
            ("[host]:80", "brackets"),
            ("a b:80", "contains ' '"),
            ("http://host:80", "contains '/'"),
            ("unix:", "needs a name"),
            ("unix:@", "needs a name"),
            (&format!("unix:/{}", "x".repeat(107)), "107 bytes"),
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert_eq!(error.kind(), ErrorKind::InvalidAddress);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_text_is_rejected_or_round_trips(text in "\\PC{0,40}") {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>().ok(), Some(address));
            }
        }
    }
}
