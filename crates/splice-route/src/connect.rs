//! HTTP CONNECT (RFC 9110, section 9.3.6): a request for a tunnel to a destination.
//!
//! The head obeys the same rules as that of any other request, see [`RequestHeadReader`]: no bare CR or
//! LF, no folded field, at most one Host field, which has to name the host of the target.

use crate::destination::{Destination, Failure, Host};
use crate::progress::{Fault, Progress};
use crate::request_head::RequestHeadReader;

const BODY: Fault = Fault("the CONNECT request announces content");
const TARGET: Fault = Fault("the CONNECT request has a malformed target");

/// The answer to a request that has been granted. What the client has sent behind the head is for the
/// destination.
pub const CONNECTED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";

/// The answer to a request that is [`Progress::Broken`].
pub const BAD_REQUEST: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// The answer to a request that cannot be granted.
pub fn failed(failure: Failure) -> &'static [u8] {
    match failure {
        Failure::NotAllowed => {
            b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        }
        Failure::TimedOut => {
            b"HTTP/1.1 504 Gateway Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        }
        Failure::NetworkUnreachable
        | Failure::HostUnreachable
        | Failure::ConnectionRefused
        | Failure::Other => {
            b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        }
    }
}

/// A request for a tunnel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// What the client asks for.
    pub destination: Destination,
    /// How many of the client's bytes were for the proxy. Those behind are for the destination.
    pub length_bytes: usize,
}

/// Finds a CONNECT at the beginning of a connection. [`Progress::Other`] if the connection begins with
/// something else, which may be another HTTP request.
#[derive(Debug)]
pub struct RequestReader {
    head: RequestHeadReader,
}

impl RequestReader {
    /// A reader of heads of at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            head: RequestHeadReader::new(limit_bytes),
        }
    }

    /// Reads on. `bytes` are all that have come so far.
    pub fn read(&mut self, bytes: &[u8]) -> Progress<Request> {
        let head = match self.head.read(bytes) {
            Progress::Complete(head) => head,
            Progress::More => return Progress::More,
            Progress::Other => return Progress::Other,
            Progress::Broken(fault) => return Progress::Broken(fault),
        };
        if head.method(bytes) != b"CONNECT" {
            return Progress::Other;
        }
        if head.has_body() {
            return Progress::Broken(BODY);
        }
        let host = head.host().and_then(|host| Host::parse(host.as_bytes()));
        let (Some(host), Some(port)) = (host, head.port()) else {
            return Progress::Broken(TARGET);
        };
        Progress::Complete(Request {
            destination: Destination { host, port },
            length_bytes: head.length_bytes(),
        })
    }
}

#[cfg(test)]
mod tests;
