//! The server's side of SOCKS 4, 4a and 5 (RFC 1928), for CONNECT without authentication.
//!
//! A negotiation is in one of these states:
//!
//! - `Start`: the first byte leads to `Request4` (4) or `Greeting` (5), any other to `Refused`.
//! - `Greeting`: once all methods have come, "no authentication" leads to `Request5`, its absence to
//!   `Refused`.
//! - `Request4`, `Request5`: a complete request leads to `Requested` or `Refused`.
//! - `Requested`, `Refused`: final.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::destination::{Destination, Failure, Host};
use crate::progress::Fault;

const CONNECT: u8 = 1;

/// The longest user ID, and the longest name, of version 4 in bytes. The protocol sets no limit; names in
/// version 5 have this one.
const LONGEST_TEXT_BYTES: usize = 255;

/// RFC 1928, section 3.
const NO_AUTHENTICATION: u8 = 0;
const METHOD_CHOSEN: &[u8] = &[5, NO_AUTHENTICATION];
const NO_METHOD: &[u8] = &[5, 0xff];

/// Types of addresses (RFC 1928, section 5).
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Replies (RFC 1928, section 6).
const GENERAL_FAILURE: u8 = 1;
const COMMAND_NOT_SUPPORTED: u8 = 7;
const ADDRESS_TYPE_NOT_SUPPORTED: u8 = 8;

/// Replies of version 4.
const GRANTED: u8 = 0x5a;
const REJECTED: u8 = 0x5b;

const NOT_SOCKS: Fault = Fault("the connection does not start with a SOCKS request");
const METHODS: Fault = Fault("the SOCKS client insists on authentication");
const COMMAND: Fault = Fault("the SOCKS client asks for something other than CONNECT");
const FAMILY: Fault = Fault("the SOCKS request has an unknown type of address");
const MALFORMED: Fault = Fault("the SOCKS request is malformed");
const HOST: Fault = Fault("the SOCKS request has a malformed host name");
const TOO_LONG: Fault = Fault("the SOCKS request has a text of more than 255 bytes");

/// What the proxy does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for more of the client's bytes.
    More,
    /// It sends these bytes, and asks again at once: the client may have sent its request already.
    Reply(&'static [u8]),
    /// It connects, and then answers with [`Negotiation::connected`] or [`Negotiation::failed`].
    Connect {
        /// What the client asks for.
        destination: Destination,
        /// How many of the client's bytes were for the proxy. Those behind are for the destination.
        length_bytes: usize,
    },
    /// It sends these bytes, which may be none, and closes.
    Refuse(Vec<u8>, Fault),
}

/// The negotiation on one connection.
#[derive(Debug)]
pub struct Negotiation {
    version: Version,
    state: State,
    /// What comes before has been dealt with.
    position: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Four,
    Five,
}

#[derive(Debug)]
enum State {
    Start,
    Greeting,
    Request4(Texts),
    Request5,
    Requested(Destination),
    Refused(Vec<u8>, Fault),
}

/// The texts behind a request of version 4, as far as they have come.
#[derive(Debug, Default)]
struct Texts {
    /// Without the byte that ends it.
    user_bytes: Option<usize>,
    /// Of the text whose end is looked for.
    looked_at: usize,
}

/// The destination, and the length of the request in bytes.
type Request = Option<(Destination, usize)>;

/// A reply of version 5, and why.
type Refusal = (u8, Fault);

impl Default for Negotiation {
    fn default() -> Self {
        Self::new()
    }
}

impl Negotiation {
    /// A negotiation of which nothing has been read.
    pub fn new() -> Self {
        Self {
            version: Version::Five,
            state: State::Start,
            position: 0,
        }
    }

    /// Goes on. `bytes` are all that the client has sent so far.
    pub fn step(&mut self, bytes: &[u8]) -> Step {
        loop {
            let unread = &bytes[self.position..];
            let request = match &mut self.state {
                State::Start => {
                    self.state = match unread.first() {
                        None => return Step::More,
                        Some(4) => {
                            self.version = Version::Four;
                            State::Request4(Texts::default())
                        }
                        Some(5) => State::Greeting,
                        Some(_) => State::Refused(Vec::new(), NOT_SOCKS),
                    };
                    continue;
                }
                State::Greeting => {
                    let Some(methods) = methods(unread) else {
                        return Step::More;
                    };
                    if !methods.contains(&NO_AUTHENTICATION) {
                        self.state = State::Refused(NO_METHOD.into(), METHODS);
                        continue;
                    }
                    self.position += 2 + methods.len();
                    self.state = State::Request5;
                    return Step::Reply(METHOD_CHOSEN);
                }
                State::Request4(texts) => request4(unread, texts),
                State::Request5 => request5(unread),
                State::Requested(destination) => {
                    return Step::Connect {
                        destination: destination.clone(),
                        length_bytes: self.position,
                    };
                }
                State::Refused(reply, fault) => return Step::Refuse(reply.clone(), *fault),
            };
            self.state = match request {
                Ok(None) => return Step::More,
                Ok(Some((destination, length_bytes))) => {
                    self.position += length_bytes;
                    State::Requested(destination)
                }
                Err((code, fault)) => State::Refused(self.refusal(code), fault),
            };
        }
    }

    /// The answer to a request that has been granted. `bound` is the proxy's address on the connection to
    /// the destination. A client of version 4 does not get to know one of IPv6.
    pub fn connected(&self, bound: SocketAddr) -> Vec<u8> {
        let port = bound.port().to_be_bytes();
        match (self.version, bound.ip().to_canonical()) {
            (Version::Four, IpAddr::V4(ip)) => reply4(GRANTED, ip, bound.port()),
            (Version::Four, IpAddr::V6(_)) => reply4(GRANTED, Ipv4Addr::UNSPECIFIED, 0),
            (Version::Five, IpAddr::V4(ip)) => [&[5, 0, 0, IPV4][..], &ip.octets(), &port].concat(),
            (Version::Five, IpAddr::V6(ip)) => [&[5, 0, 0, IPV6][..], &ip.octets(), &port].concat(),
        }
    }

    /// The answer to a request that cannot be granted.
    pub fn failed(&self, failure: Failure) -> Vec<u8> {
        self.refusal(match failure {
            Failure::Other => GENERAL_FAILURE,
            Failure::NotAllowed => 2,
            Failure::NetworkUnreachable => 3,
            Failure::HostUnreachable => 4,
            Failure::ConnectionRefused => 5,
            // "TTL expired": the nearest that there is.
            Failure::TimedOut => 6,
        })
    }

    fn refusal(&self, code: u8) -> Vec<u8> {
        match self.version {
            Version::Four => reply4(REJECTED, Ipv4Addr::UNSPECIFIED, 0),
            Version::Five => vec![5, code, 0, IPV4, 0, 0, 0, 0, 0, 0],
        }
    }
}

fn reply4(code: u8, ip: Ipv4Addr, port: u16) -> Vec<u8> {
    [&[0, code][..], &port.to_be_bytes(), &ip.octets()].concat()
}

/// The methods that a greeting offers, once they have come.
fn methods(bytes: &[u8]) -> Option<&[u8]> {
    let count = usize::from(*bytes.get(1)?);
    bytes.get(2..2 + count)
}

fn request4(bytes: &[u8], texts: &mut Texts) -> Result<Request, Refusal> {
    const FIXED_BYTES: usize = 8;
    if bytes.get(1).is_some_and(|command| *command != CONNECT) {
        return Err((COMMAND_NOT_SUPPORTED, COMMAND));
    }
    let Some((&[_, _, high, low, a, b, c, d], rest)) = bytes.split_first_chunk::<FIXED_BYTES>()
    else {
        return Ok(None);
    };
    let port = u16::from_be_bytes([high, low]);
    let Some(user_bytes) = texts.user(rest)? else {
        return Ok(None);
    };
    // Version 4a: the name comes behind.
    let named = [a, b, c] == [0; 3] && d != 0;
    if !named {
        let host = Host::Address(Ipv4Addr::new(a, b, c, d).into());
        let length_bytes = FIXED_BYTES + user_bytes + 1;
        return Ok(Some((Destination { host, port }, length_bytes)));
    }
    let rest = &rest[user_bytes + 1..];
    let Some(name_bytes) = texts.end(rest)? else {
        return Ok(None);
    };
    let host = Host::parse(&rest[..name_bytes]).ok_or((GENERAL_FAILURE, HOST))?;
    let length_bytes = FIXED_BYTES + user_bytes + 1 + name_bytes + 1;
    Ok(Some((Destination { host, port }, length_bytes)))
}

impl Texts {
    fn user(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        if self.user_bytes.is_none() {
            self.user_bytes = self.end(bytes)?;
            if self.user_bytes.is_some() {
                self.looked_at = 0;
            }
        }
        Ok(self.user_bytes)
    }

    /// The length of the text that `bytes` begin with, once its end has come.
    fn end(&mut self, bytes: &[u8]) -> Result<Option<usize>, Refusal> {
        let new = bytes.get(self.looked_at..).unwrap_or_default();
        let end = new.iter().position(|byte| *byte == 0);
        self.looked_at += end.unwrap_or(new.len());
        if self.looked_at > LONGEST_TEXT_BYTES {
            return Err((GENERAL_FAILURE, TOO_LONG));
        }
        Ok(end.map(|_| self.looked_at))
    }
}

fn request5(bytes: &[u8]) -> Result<Request, Refusal> {
    // In the order in which they come, so that the answer does not depend on how many have.
    let right = [
        (5, (GENERAL_FAILURE, MALFORMED)),
        (CONNECT, (COMMAND_NOT_SUPPORTED, COMMAND)),
        (0, (GENERAL_FAILURE, MALFORMED)),
    ];
    if let Some((_, (_, refusal))) = bytes
        .iter()
        .zip(right)
        .find(|(byte, (right, _))| **byte != *right)
    {
        return Err(refusal);
    }
    let Some((&[_, _, _, kind], rest)) = bytes.split_first_chunk::<4>() else {
        return Ok(None);
    };
    let (name_at, host_bytes) = match kind {
        IPV4 => (0, 4),
        IPV6 => (0, 16),
        NAME => match rest.first() {
            Some(length) => (1, usize::from(*length)),
            None => return Ok(None),
        },
        _ => return Err((ADDRESS_TYPE_NOT_SUPPORTED, FAMILY)),
    };
    let port_at = name_at + host_bytes;
    let (Some(host), Some(&[high, low])) =
        (rest.get(name_at..port_at), rest.get(port_at..port_at + 2))
    else {
        return Ok(None);
    };
    let host = match kind {
        NAME => Host::parse(host).ok_or((GENERAL_FAILURE, HOST))?,
        _ => Host::Address(address(host).ok_or((GENERAL_FAILURE, MALFORMED))?),
    };
    let port = u16::from_be_bytes([high, low]);
    Ok(Some((Destination { host, port }, 4 + port_at + 2)))
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(|ip| Ipv4Addr::from(ip).into());
    let v6 = <[u8; 16]>::try_from(bytes).map(|ip| Ipv6Addr::from(ip).into());
    v4.or(v6).ok()
}

#[cfg(test)]
mod tests;
