//! The server's side of SOCKS 4, 4a (the notes of Ying-Da Lee) and 5 (RFC 1928), for CONNECT without
//! authentication.
//!
//! A negotiation is in one of these states:
//!
//! - `Start`: the first byte leads to `Greeting` (5) or `Request4` (4), any other to `Refused`.
//! - `Greeting`: once all methods have come, "no authentication" is chosen, which leads to `Request5`,
//!   or there is none to choose, which leads to `Refused`.
//! - `Request4`, `Request5`: lead to `Requested` or `Refused`.
//! - `Requested`, `Refused`: final.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::destination::{Destination, Failure, Host};
use crate::progress::Fault;

const VERSION_4: u8 = 4;
const VERSION_5: u8 = 5;
const CONNECT: u8 = 1;

/// The longest user ID and name of version 4 in bytes. The protocol has no limit; version 5 has this one.
const LONGEST_TEXT_BYTES: usize = 255;

/// RFC 1928, section 3.
const NO_AUTHENTICATION: u8 = 0;
const METHOD_CHOSEN: &[u8] = &[VERSION_5, NO_AUTHENTICATION];
const NO_METHOD: &[u8] = &[VERSION_5, 0xff];

/// RFC 1928, section 5.
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

const NOT_SOCKS: Fault = Fault("the connection does not start with a SOCKS request");
const METHODS: Fault = Fault("the SOCKS client does not offer to go without authentication");
const COMMAND: Fault = Fault("the SOCKS client asks for something else than CONNECT");
const FAMILY: Fault = Fault("the SOCKS request has an unknown type of address");
const MALFORMED: Fault = Fault("the SOCKS request is malformed");
const NAME_FORM: Fault = Fault("the SOCKS request has a malformed host name");
const TOO_LONG: Fault = Fault("the SOCKS request has a field of more than 255 bytes");

/// What the proxy does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// It waits for more of the client's bytes.
    More,
    /// It sends these bytes, and asks again at once: the client may have sent on without waiting.
    Reply(&'static [u8]),
    /// It connects, and answers with [`Negotiation::connected`] or [`Negotiation::failed`]. The
    /// client's bytes behind the first `length_bytes` are for the destination.
    Connect {
        /// What the client asks for.
        destination: Destination,
        /// How much of what has come was for the proxy.
        length_bytes: usize,
    },
    /// It sends these bytes, if any, and closes.
    Refuse(Vec<u8>, Fault),
}

/// The negotiation of one connection.
#[derive(Debug)]
pub struct Negotiation {
    state: State,
    version: u8,
    /// What is before has been dealt with.
    position: usize,
}

#[derive(Debug)]
enum State {
    Start,
    Greeting,
    Request4 {
        /// Where the end of a text is still to be found.
        looked_at: usize,
    },
    Request5,
    Requested(Destination),
    Refused(Vec<u8>, Fault),
}

/// A part of a message.
enum Part<T> {
    Complete(T),
    /// It has not come yet.
    More,
}

type Parsed<T> = Result<Part<T>, (Vec<u8>, Fault)>;

impl Default for Negotiation {
    fn default() -> Self {
        Self::new()
    }
}

impl Negotiation {
    /// A negotiation of which nothing has been read.
    pub fn new() -> Self {
        Self {
            state: State::Start,
            version: VERSION_5,
            position: 0,
        }
    }

    /// Goes on. `bytes` are all that the client has sent so far.
    pub fn step(&mut self, bytes: &[u8]) -> Step {
        loop {
            let part = match &mut self.state {
                State::Start => start(bytes),
                State::Greeting => greeting(&bytes[self.position..]),
                State::Request4 { looked_at } => request4(bytes, looked_at),
                State::Request5 => request5(&bytes[self.position..]),
                State::Requested(destination) => {
                    return Step::Connect {
                        destination: destination.clone(),
                        length_bytes: self.position,
                    };
                }
                State::Refused(reply, fault) => return Step::Refuse(reply.clone(), *fault),
            };
            match part {
                Ok(Part::More) => return Step::More,
                Ok(Part::Complete((next, length_bytes))) => {
                    self.position += length_bytes;
                    self.state = next;
                }
                Err((reply, fault)) => self.state = State::Refused(reply, fault),
            }
        }
    }
}
