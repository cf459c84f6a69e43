//! Version 1: a line of text.

use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::{Endpoints, Header, Tlvs};
use crate::progress::{Fault, Progress};

/// With the space, which no other protocol has behind this word.
pub(super) const START: &[u8] = b"PROXY ";

/// The longest line in bytes, with its end (section 2.1).
const LONGEST_BYTES: usize = 107;

const TOO_LONG: Fault = Fault("the PROXY header is a line of more than 107 bytes");
const BARE_END: Fault =
    Fault("the line of the PROXY header has a carriage return or line feed alone");
const MALFORMED: Fault = Fault("the line of the PROXY header is malformed");

/// Finds the end of the line, and looks at each byte once.
#[derive(Debug, Default)]
pub(super) struct LineEnd {
    looked_at: usize,
}

impl LineEnd {
    /// The length of the line with its end; `None` until that has come.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Result<Option<usize>, Fault> {
        let line = &bytes[..bytes.len().min(LONGEST_BYTES)];
        while let Some(byte) = line.get(self.looked_at) {
            let behind_cr = self.looked_at > 0 && line[self.looked_at - 1] == b'\r';
            match (behind_cr, byte) {
                (true, b'\n') => return Ok(Some(self.looked_at + 1)),
                (true, _) | (false, b'\n') => return Err(BARE_END),
                (false, _) => self.looked_at += 1,
            }
        }
        if line.len() == LONGEST_BYTES {
            return Err(TOO_LONG);
        }
        Ok(None)
    }
}

/// Parses a line, which has its end.
pub(super) fn parse(line: &[u8]) -> Progress<Header> {
    let header = |endpoints| Header {
        length_bytes: line.len(),
        endpoints,
        tlvs: Tlvs::default(),
    };
    let content = line
        .strip_prefix(START)
        .and_then(|rest| rest.strip_suffix(b"\r\n"))
        .unwrap_or_default();
    // Whatever stands behind UNKNOWN has to be ignored, even if it is no text.
    if content == b"UNKNOWN" || content.starts_with(b"UNKNOWN ") {
        return Progress::Complete(header(None));
    }
    match endpoints(content) {
        Some(endpoints) => Progress::Complete(header(Some(endpoints))),
        None => Progress::Broken(MALFORMED),
    }
}

fn endpoints(content: &[u8]) -> Option<Endpoints> {
    let mut words = std::str::from_utf8(content).ok()?.split(' ');
    let mut next = || words.next();
    let (family, source, destination) = (next()?, next()?, next()?);
    let (source_port, destination_port) = (port(next()?)?, port(next()?)?);
    if next().is_some() {
        return None;
    }
    let address = match family {
        "TCP4" => ipv4,
        "TCP6" => ipv6,
        _ => return None,
    };
    Some(Endpoints::new(
        SocketAddr::new(address(source)?, source_port),
        SocketAddr::new(address(destination)?, destination_port),
    ))
}

fn ipv4(text: &str) -> Option<IpAddr> {
    std::net::Ipv4Addr::from_str(text).ok().map(IpAddr::V4)
}

/// The specification has hexadecimal digits only, but HAProxy and nginx write `::ffff:192.0.2.1`.
fn ipv6(text: &str) -> Option<IpAddr> {
    std::net::Ipv6Addr::from_str(text).ok().map(IpAddr::V6)
}

fn port(text: &str) -> Option<u16> {
    let decimal = text.bytes().all(|byte| byte.is_ascii_digit());
    let plain = text == "0" || !text.starts_with('0');
    (decimal && plain).then(|| text.parse().ok()).flatten()
}
