//! The name of a socket of any kind, as text.

use std::fmt;
use std::str::FromStr;

use crate::address::{Address, SeqpacketAddress, VsockAddress, invalid, parse_inet, parse_unix};
use crate::error::{Error, Result};

/// An address and the kind of its socket.
///
/// | written | means |
/// |---|---|
/// | `127.0.0.1:80`, `unix:/path` | a stream socket ([`Address`]) |
/// | `udp:127.0.0.1:53`, `udp:[::1]:53`, `udp::53`, `udp:host:53` | a UDP socket |
/// | `unixgram:/path`, `unixgram:@name` | a UNIX datagram socket |
/// | `seqpacket:/path`, `seqpacket:@name` | a UNIX socket with connections and message boundaries |
/// | `vsock:3:80`, `vsock::80` | a VSOCK stream socket: context identifier (empty: any) and port |
/// | `vsock-seqpacket:3:80` | a VSOCK socket with message boundaries |
///
/// ```
/// use splice_base::socket_name::SocketName;
/// let name: SocketName = "udp:[::1]:53".parse()?;
/// assert_eq!(name.to_string(), "udp:[::1]:53");
/// # Ok::<(), splice_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SocketName {
    /// A socket that has connections: a stream of TCP, UNIX or VSOCK, or one that keeps messages apart.
    Connected(Address),
    /// A UDP socket; the address is an [`Address::Inet`].
    Udp(Address),
    /// A UNIX datagram socket; the address is that of a UNIX socket.
    UnixDatagram(Address),
}

impl SocketName {
    /// Whether each message of this socket has a sender of its own.
    pub fn is_datagram(&self) -> bool {
        matches!(self, Self::Udp(_) | Self::UnixDatagram(_))
    }

    /// Whether this socket has connections and message boundaries.
    pub fn is_seqpacket(&self) -> bool {
        matches!(self, Self::Connected(address) if address.keeps_messages())
    }
}

impl FromStr for SocketName {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidAddress`](crate::ErrorKind::InvalidAddress), with the text, what is wrong with it
    /// and how to write it.
    fn from_str(text: &str) -> Result<Self> {
        parse(text).map_err(|error| match meant(text) {
            Some(meant) => invalid(
                text,
                &format!("it begins with no kind of socket; write {meant}"),
            ),
            None => error,
        })
    }
}

fn parse(text: &str) -> Result<SocketName> {
    let after = |prefix| text.strip_prefix(prefix);
    if text.starts_with("udp:") {
        return parse_inet(text, "udp:", "udp:HOST:PORT or udp::PORT").map(SocketName::Udp);
    }
    if let Some(name) = after("unixgram:") {
        return parse_unix(text, name, "unixgram:").map(SocketName::UnixDatagram);
    }
    if let Some(name) = after("seqpacket:") {
        let named = match parse_unix(text, name, "seqpacket:")? {
            Address::UnixPath(path) => Address::Seqpacket(SeqpacketAddress::UnixPath(path)),
            Address::UnixAbstract(name) => Address::Seqpacket(SeqpacketAddress::UnixAbstract(name)),
            other => other,
        };
        return Ok(SocketName::Connected(named));
    }
    if let Some(rest) = after("vsock:") {
        return parse_vsock(text, rest).map(|vsock| SocketName::Connected(Address::Vsock(vsock)));
    }
    if let Some(rest) = after("vsock-seqpacket:") {
        let vsock = parse_vsock(text, rest)?;
        let seqpacket = Address::Seqpacket(SeqpacketAddress::Vsock(vsock));
        return Ok(SocketName::Connected(seqpacket));
    }
    text.parse().map(SocketName::Connected)
}

/// What names of sockets begin with.
const KINDS: [&str; 6] = [
    "udp:",
    "unix:",
    "unixgram:",
    "seqpacket:",
    "vsock:",
    "vsock-seqpacket:",
];

/// What somebody has meant who writes kinds of sockets as other programs do, or mistypes one.
fn meant(text: &str) -> Option<String> {
    let (kind, rest) = text.split_once(':')?;
    let kind = match kind.to_ascii_lowercase().as_str() {
        "tcp" | "tcp4" | "tcp6" => "",
        "udp" | "udp4" | "udp6" => "udp:",
        "unix" => "unix:",
        "unixgram" | "unixdgram" | "unix-dgram" | "dgram" => "unixgram:",
        "seqpacket" | "unixpacket" | "unix-seqpacket" => "seqpacket:",
        "vsock" => "vsock:",
        "vsock-seqpacket" => "vsock-seqpacket:",
        mistyped => nearest(mistyped)?,
    };
    let rest = rest.strip_prefix("//").unwrap_or(rest);
    let meant = format!("{kind}{rest}");
    (meant != text && parse(&meant).is_ok()).then_some(meant)
}

/// The kind that is one letter away, or two that have changed places.
fn nearest(mistyped: &str) -> Option<&'static str> {
    // Nothing longer is near, and comparing takes time.
    let longest = KINDS.map(str::len).into_iter().max()?;
    (mistyped.len() <= longest).then_some(())?;
    KINDS.into_iter().find(|kind| {
        let kind = kind.trim_end_matches(':');
        strsim::damerau_levenshtein(mistyped, kind) == 1
    })
}

fn parse_vsock(text: &str, rest: &str) -> Result<VsockAddress> {
    let wrong = || {
        invalid(
            text,
            "a VSOCK address is CID:PORT, two numbers below 4294967295; write vsock:2:1234 for the host, or \
             vsock::1234 to listen",
        )
    };
    let (cid, port) = rest.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| {
        // `parse` accepts a leading `+`, which nobody means to write.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let value = text.parse().ok().filter(|value| *value != u32::MAX);
        value.filter(|_| digits).ok_or_else(wrong)
    };
    let cid = match cid {
        "" => VsockAddress::ANY_CID,
        cid => number(cid)?,
    };
    let port = number(port)?;
    Ok(VsockAddress { cid, port })
}

impl fmt::Display for SocketName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, address) = match self {
            Self::Connected(address) => return address.fmt(f),
            Self::Udp(address) => ("udp:", address),
            Self::UnixDatagram(address) => ("unixgram:", address),
        };
        match address {
            Address::UnixPath(path) => write!(f, "{prefix}{}", path.display()),
            Address::UnixAbstract(name) => write!(f, "{prefix}@{name}"),
            other => write!(f, "{prefix}{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_kind_round_trips() {
        for text in [
            "127.0.0.1:80",
            "unix:/run/x",
            "unix:@x",
            "udp:127.0.0.1:53",
            "udp:[::1]:53",
            "udp::53",
            "udp:dns.example:53",
            "unixgram:/run/x",
            "unixgram:@x",
            "seqpacket:/run/x",
            "seqpacket:@x",
            "vsock:3:80",
            "vsock::80",
            "vsock-seqpacket:2:1",
        ] {
            assert_eq!(text.parse::<SocketName>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn an_invalid_name_says_what_is_wrong() {
        for (text, why) in [
            ("udp:", "write udp:HOST:PORT"),
            ("udp:1.2.3.4", "write udp:HOST:PORT"),
            ("udp:host:x", "not a number"),
            ("udp:::1:53", "needs brackets; write udp:[::1]:53"),
            ("fe80::7:80", "needs brackets; write [fe80::7]:80"),
            ("a:b:80", "needs brackets; write [::1]:80"),
            ("upd:127.0.0.1:53", "; write udp:127.0.0.1:53"),
            ("seqpaket:/run/x", "; write seqpacket:/run/x"),
            ("vsok:2:80", "; write vsock:2:80"),
            ("unixgram:", "write unixgram:/path"),
            ("seqpacket:@", "write seqpacket:/path"),
            ("vsock:3", "two numbers"),
            ("vsock:a:3", "two numbers"),
            ("vsock:3:-1", "two numbers"),
            ("vsock:4294967295:1", "two numbers"),
            ("host", "port is missing"),
            ("tcp:127.0.0.1:80", "; write 127.0.0.1:80"),
            ("tcp://[::1]:80", "; write [::1]:80"),
            ("UDP::54", "; write udp::54"),
            ("udp6:[::1]:53", "; write udp:[::1]:53"),
            ("unixdgram:/x", "; write unixgram:/x"),
            ("unix-seqpacket:@x", "; write seqpacket:@x"),
            ("udp://127.0.0.1:53", "; write udp:127.0.0.1:53"),
            ("vsock://2:80", "; write vsock:2:80"),
            ("vsock-seqpacket://2:80", "; write vsock-seqpacket:2:80"),
            ("udp:127.0.0.1:53,udp:127.0.0.2:53", "write one"),
            (&"tcp:".repeat(100_000), "not a number"),
        ] {
            let error = text.parse::<SocketName>().expect_err(text);
            assert!(error.to_string().contains(why), "{error}");
        }
    }

    proptest! {
        #[test]
        fn every_text_is_rejected_or_round_trips(
            text in "(udp|unixgram|seqpacket|vsock|vsock-seqpacket|unix)?:?\\PC{0,30}"
        ) {
            if let Ok(name) = text.parse::<SocketName>() {
                prop_assert_eq!(name.to_string().parse::<SocketName>().ok(), Some(name));
            }
        }
    }
}
