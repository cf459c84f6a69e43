//! What a client of SOCKS or CONNECT says before its first byte for the destination: one interface for
//! both protocols.
//!
//! The caller gives [`Handshake::read`] all bytes since the start of the handshake and does what the
//! [`Step`] says. After a request it connects, and answers with [`Handshake::granted`] or
//! [`Handshake::refused`].

use std::net::{Ipv4Addr, SocketAddr};

use crate::connect::{self, RequestReader};
use crate::destination::{Destination, Failure};
use crate::progress::{Fault, Progress};
use crate::socks::{self, Negotiation};

const NO_CONNECT: Fault = Fault("the connection does not start with an HTTP/1 CONNECT");

/// The proxy's side of a handshake with one client.
#[derive(Debug)]
pub enum Handshake {
    /// With a client of SOCKS.
    Socks(Negotiation),
    /// With a client that sends an HTTP/1 CONNECT.
    Connect(RequestReader),
}

/// What the proxy does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for more bytes.
    More,
    /// It sends these bytes and asks again at once: the client may have sent its request already.
    Reply(&'static [u8]),
    /// It connects the client to this destination.
    Request {
        /// What the client asks for.
        destination: Destination,
        /// How many of the client's bytes were for the proxy. Those behind are for the destination.
        length_bytes: usize,
    },
    /// It sends `reply`, which may be empty, and closes the connection.
    Refuse {
        /// For the client.
        reply: Vec<u8>,
        /// For the log.
        why: Fault,
    },
}

impl Handshake {
    /// With a client of SOCKS4, 4a or 5.
    pub fn socks() -> Self {
        Self::Socks(Negotiation::new())
    }

    /// With a client whose CONNECT has a head of at most `limit_bytes`.
    pub fn connect(limit_bytes: usize) -> Self {
        Self::Connect(RequestReader::new(limit_bytes))
    }

    /// Reads on. `bytes` are all that have come since the handshake began.
    pub fn read(&mut self, bytes: &[u8]) -> Step {
        match self {
            Self::Socks(negotiation) => negotiation.step(bytes).into(),
            Self::Connect(reader) => reader.read(bytes).into(),
        }
    }

    /// The answer to a request whose destination is connected. `bound` is the proxy's address on that
    /// connection. Without it a client of SOCKS gets an unspecified one.
    pub fn granted(&self, bound: Option<SocketAddr>) -> Vec<u8> {
        match self {
            Self::Socks(negotiation) => {
                let unspecified = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
                negotiation.connected(bound.unwrap_or(unspecified))
            }
            Self::Connect(_) => connect::CONNECTED.to_vec(),
        }
    }

    /// The answer to a request whose destination the client does not get. Close the connection behind it.
    pub fn refused(&self, failure: Failure) -> Vec<u8> {
        match self {
            Self::Socks(negotiation) => negotiation.failed(failure),
            Self::Connect(_) => connect::failed(failure).to_vec(),
        }
    }
}

impl From<socks::Step> for Step {
    fn from(step: socks::Step) -> Self {
        match step {
            socks::Step::More => Self::More,
            socks::Step::Reply(reply) => Self::Reply(reply),
            socks::Step::Connect {
                destination,
                length_bytes,
            } => Self::Request {
                destination,
                length_bytes,
            },
            socks::Step::Refuse(reply, why) => Self::Refuse { reply, why },
        }
    }
}

impl From<Progress<connect::Request>> for Step {
    fn from(progress: Progress<connect::Request>) -> Self {
        let why = match progress {
            Progress::More => return Self::More,
            Progress::Complete(request) => {
                return Self::Request {
                    destination: request.destination,
                    length_bytes: request.length_bytes,
                };
            }
            Progress::Other => NO_CONNECT,
            Progress::Broken(fault) => fault,
        };
        Self::Refuse {
            reply: connect::BAD_REQUEST.to_vec(),
            why,
        }
    }
}

#[cfg(test)]
mod tests;
