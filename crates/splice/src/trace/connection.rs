//! Which connection is traced.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::{TraceEnd, TraceFilter};

use super::cookie::socket_of;

/// One end of a connection; what is left out can be anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct End {
    address: Option<IpAddr>,
    port: Option<u16>,
}

/// Which connections are traced: those with one end, or with two.
///
/// | written | means |
/// |---|---|
/// | `10.0.0.1:80`, `[::1]:80` | one end has this address and port |
/// | `:80` | one end has this port |
/// | `10.0.0.1:80-10.0.0.2:5000` | the connection between these two |
///
/// ```
/// use splice::trace::ConnectionFilter;
/// let filter: ConnectionFilter = "10.0.0.1:80-10.0.0.2:5000".parse()?;
/// assert_eq!(filter.to_string(), "10.0.0.1:80-10.0.0.2:5000");
/// # Ok::<(), splice::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectionFilter {
    ends: [End; 2],
}

const ANY: End = End {
    address: None,
    port: None,
};

impl ConnectionFilter {
    /// The connection between two addresses.
    pub fn between(one: SocketAddr, other: SocketAddr) -> Self {
        Self {
            ends: [one, other].map(|end| End {
                address: Some(end.ip()),
                port: Some(end.port()),
            }),
        }
    }

    /// The connection of the TCP or UDP socket with this cookie (`SO_COOKIE`) in this thread's network namespace.
    ///
    /// # Errors
    /// - [`ErrorKind::InvalidAddress`] if there is none, or the socket has no port yet.
    /// - [`ErrorKind::System`] if the kernel does not list its sockets.
    pub fn of_cookie(cookie: u64) -> Result<Self> {
        let found = socket_of(cookie)
            .map_err(|errno| Error::system("cannot list the sockets of this host", errno))?;
        let lists = "'ss -tuane' lists those there are, behind sk: in hexadecimal digits";
        let wrong =
            |what: &str| Error::new(ErrorKind::InvalidAddress, what.to_owned()).with_remedy(lists);
        match found {
            None => Err(wrong(&format!(
                "no TCP or UDP socket of this network namespace has the cookie {cookie}"
            ))),
            Some((local, _)) if local.port() == 0 => Err(wrong(&format!(
                "the socket with the cookie {cookie} has no port yet"
            ))),
            Some((local, remote)) if remote.port() == 0 => {
                let address = Some(local.ip()).filter(|ip| !ip.is_unspecified());
                let port = Some(local.port());
                Ok(Self {
                    ends: [End { address, port }, ANY],
                })
            }
            Some((local, remote)) => Ok(Self::between(local, remote)),
        }
    }

    /// Whether it is one connection.
    pub fn has_both_ends(&self) -> bool {
        let is_whole = |end: &End| end.address.is_some() && end.port.is_some();
        self.ends.iter().all(is_whole)
    }

    /// Whether a connection has these ends, in either order.
    pub fn takes(&self, one: SocketAddr, other: SocketAddr) -> bool {
        let is = |end: &End, at: SocketAddr| {
            let has_address = end.address.is_none_or(|of| mapped(of) == mapped(at.ip()));
            has_address && end.port.is_none_or(|of| of == at.port())
        };
        let [first, second] = &self.ends;
        is(first, one) && is(second, other) || is(second, one) && is(first, other)
    }

    /// As the BPF program compares it.
    pub(crate) fn for_program(&self) -> TraceFilter {
        TraceFilter {
            ends: self.ends.map(|end| TraceEnd {
                address: end
                    .address
                    .map_or([0; 16], |address| mapped(address).octets()),
                port: end.port.unwrap_or(0),
                any_address: end.address.is_none().into(),
                any_port: end.port.is_none().into(),
            }),
        }
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// An address as the BPF program tells it.
pub(super) fn told(address: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(address).to_canonical(), port)
}

impl FromStr for ConnectionFilter {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidAddress`], with the text, what is wrong with it and how to write it.
    fn from_str(text: &str) -> Result<Self> {
        let ends = match text.split_once('-') {
            None => [end(text)?, ANY],
            Some((one, other)) => [end(one)?, end(other)?],
        };
        let families = ends.map(|end| end.address.map(|ip| ip.to_canonical().is_ipv4()));
        if let [Some(one), Some(other)] = families
            && one != other
        {
            return Err(Error::new(
                ErrorKind::InvalidAddress,
                format!("{text:?} has an IPv4 and an IPv6 address, and no connection has both"),
            )
            .with_remedy(
                "write 10.0.0.1:80, [::1]:80 or :80, or two of one family with - between",
            ));
        }
        Ok(Self { ends })
    }
}

fn end(text: &str) -> Result<End> {
    let wrong = |what: &str| {
        Error::new(ErrorKind::InvalidAddress, format!("{text:?} {what}"))
            .with_remedy("write 10.0.0.1:80, [::1]:80 or :80, or two of them with - between")
    };
    let Some((address, port)) = text.rsplit_once(':') else {
        return Err(wrong("has no port"));
    };
    let port: u16 = port
        .parse()
        .map_err(|_| wrong("has a port that is not a number from 1 to 65535"))?;
    if port == 0 {
        return Err(wrong("has the port 0, which no connection has"));
    }
    let inner = address
        .strip_prefix('[')
        .and_then(|address| address.strip_suffix(']'));
    let address = match (address, inner) {
        ("", _) => None,
        (_, Some(address)) => {
            let address = address.parse::<Ipv6Addr>();
            Some(
                address
                    .map_err(|_| wrong("has no IPv6 address within [ and ]"))?
                    .into(),
            )
        }
        (address, None) if address.contains(':') => {
            return Err(wrong("has an IPv6 address without [ and ]"));
        }
        (address, None) => {
            let address = address.parse::<Ipv4Addr>();
            Some(
                address
                    .map_err(|_| wrong("has no IP address before its port"))?
                    .into(),
            )
        }
    };
    Ok(End {
        address,
        port: Some(port),
    })
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address {
            Some(IpAddr::V6(address)) => write!(f, "[{address}]")?,
            Some(IpAddr::V4(address)) => write!(f, "{address}")?,
            None => {}
        }
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for ConnectionFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = self.ends;
        one.fmt(f)?;
        match other {
            ANY => Ok(()),
            other => write!(f, "-{other}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_taken_whichever_end_is_first() {
        let address = |text: &str| text.parse::<SocketAddr>().expect(text);
        let (one, other) = (address("10.0.0.1:80"), address("[::ffff:10.0.0.2]:5000"));
        for (filter, is_taken) in [
            ("10.0.0.1:80", true),
            ("10.0.0.2:5000", true),
            (":5000", true),
            ("10.0.0.2:5000-10.0.0.1:80", true),
            (":80-:5000", true),
            ("10.0.0.1:5000", false),
            (":80-:80", false),
        ] {
            let of: ConnectionFilter = filter.parse().expect(filter);
            assert_eq!(of.takes(one, other), is_taken, "{filter}");
            assert_eq!(of.takes(other, one), is_taken, "{filter}");
        }
    }

    #[test]
    fn each_mistake_is_named() {
        for (text, part) in [
            ("", "no port"),
            ("10.0.0.1", "no port"),
            ("10.0.0.1:", "not a number"),
            ("10.0.0.1:65536", "not a number"),
            (":0", "port 0"),
            ("host:80", "no IP address"),
            ("::1:80", "without ["),
            ("[10.0.0.1]:80", "no IPv6 address"),
            ("10.0.0.1:80-", "no port"),
            (":80-:90-:100", "without ["),
            ("10.0.0.1:80-[::1]:5000", "no connection has both"),
        ] {
            let error = text
                .parse::<ConnectionFilter>()
                .expect_err(text)
                .to_string();
            assert!(error.contains(part), "{text}: {error}");
            assert!(error.contains("write 10.0.0.1:80"), "{text}: {error}");
        }
    }
}
