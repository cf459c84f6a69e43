//! Takes the records apart in which a TLS hello comes.
//!
//! ```text
//! Reading --what shows no TLS--------------> Done(Other)
//! Reading --a rule of TLS is broken,
//!           or the hello does not fit------> Done(Broken)
//! Reading --the last byte, hello is sound--> Done(Complete)
//! ```
//! Every other byte leaves it in `Reading`; nothing leaves `Done`.
//!
//! Each verdict falls with the first byte that allows it, whatever comes with that byte. So it does
//! not depend on how the stream was cut into segments.

use super::hello::{ClientHello, HEADER_BYTES};
use crate::progress::{Fault, Progress};

/// Reads the hello of a TLS client, from the first byte of the connection or of TLS within it.
///
/// It keeps no copy of what has come. Until the hello is complete it looks at the headers of the
/// records only.
#[derive(Debug)]
pub struct ClientHelloReader {
    limit_bytes: usize,
    state: State,
    /// How many bytes it has looked at, to prove that the cost is linear.
    #[cfg(test)]
    pub(super) looked_at: usize,
}

#[derive(Debug)]
enum State {
    Reading(Position),
    Done(Progress<ClientHello>),
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// Where the current record begins.
    record: usize,
    /// How much of the hello the records before it had, with its header.
    before: usize,
    /// The header of the hello, as far as it has come.
    header: [u8; HEADER_BYTES],
    header_come: usize,
}

/// Type, version and length of a record (RFC 8446, section 5.1).
const RECORD_HEADER_BYTES: usize = 5;
/// RFC 8446, section 5.1: "The length MUST NOT exceed 2^14 bytes."
const LONGEST_RECORD_BYTES: usize = 1 << 14;
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;
const CLIENT_HELLO: u8 = 1;

impl Default for ClientHelloReader {
    /// A reader for hellos of at most 64 KiB: rustls takes handshake messages of that size.
    fn default() -> Self {
        Self::new(64 << 10)
    }
}

impl ClientHelloReader {
    /// A reader for hellos of at most `limit_bytes`, with the headers of their records.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            state: State::Reading(Position::default()),
            #[cfg(test)]
            looked_at: 0,
        }
    }

    /// Looks at what is new in `bytes`: everything that the client has sent so far, from the first
    /// byte of the hello. `bytes` only grows from call to call. What follows the hello is ignored.
    ///
    /// Once the answer is not [`Progress::More`], it stays the same.
    pub fn read(&mut self, bytes: &[u8]) -> Progress<&ClientHello> {
        if let State::Reading(mut position) = self.state {
            let progress = self.advance(&mut position, bytes);
            self.state = match progress {
                Progress::More => State::Reading(position),
                Progress::Other => State::Done(Progress::Other),
                Progress::Broken(fault) => State::Done(Progress::Broken(fault)),
                Progress::Complete(end) => State::Done(self.parse(bytes, end)),
            };
        }
        match &self.state {
            State::Reading(_) | State::Done(Progress::More) => Progress::More,
            State::Done(Progress::Other) => Progress::Other,
            State::Done(Progress::Broken(fault)) => Progress::Broken(*fault),
            State::Done(Progress::Complete(hello)) => Progress::Complete(hello),
        }
    }

    /// The hello, once it is complete.
    pub fn hello(&self) -> Option<&ClientHello> {
        match &self.state {
            State::Done(Progress::Complete(hello)) => Some(hello),
            _ => None,
        }
    }

    /// Goes on to the end of the hello, and returns where its last record ends.
    fn advance(&mut self, position: &mut Position, bytes: &[u8]) -> Progress<usize> {
        loop {
            let record = bytes.get(position.record..).unwrap_or_default();
            self.look_at(record.len().min(RECORD_HEADER_BYTES));
            let begins_like_tls = [HANDSHAKE, MAJOR_VERSION];
            if !record.iter().zip(begins_like_tls).all(|(a, b)| *a == b) {
                return if position.record == 0 {
                    Progress::Other
                } else {
                    Progress::Broken(Fault("the TLS hello is interrupted by another record"))
                };
            }
            let Some((header, rest)) = record.split_at_checked(RECORD_HEADER_BYTES) else {
                return Progress::More;
            };
            let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
            if length == 0 {
                return Progress::Broken(Fault("the TLS hello has an empty record"));
            }
            if length > LONGEST_RECORD_BYTES {
                return Progress::Broken(Fault("the TLS hello has a record beyond 16 KiB"));
            }
            let fragment = &rest[..length.min(rest.len())];
            if let Some(fault) = self.take_header(position, fragment) {
                return Progress::Broken(fault);
            }
            let left = position.length() - position.before;
            if position.record + RECORD_HEADER_BYTES + left > self.limit_bytes {
                return Progress::Broken(Fault("the TLS hello is too long"));
            }
            let has_header = position.header_come == HEADER_BYTES;
            if has_header && length > left {
                return Progress::Broken(Fault("the TLS hello is followed by more in its record"));
            }
            if fragment.len() < length {
                return Progress::More;
            }
            position.record += RECORD_HEADER_BYTES + length;
            position.before += length;
            if has_header && length == left {
                return Progress::Complete(position.record);
            }
        }
    }

    /// Takes what is new of the hello's header in the current record.
    fn take_header(&mut self, position: &mut Position, fragment: &[u8]) -> Option<Fault> {
        while position.header_come < HEADER_BYTES {
            let byte = *fragment.get(position.header_come - position.before)?;
            self.look_at(1);
            position.header[position.header_come] = byte;
            position.header_come += 1;
            if position.header[0] != CLIENT_HELLO {
                return Some(Fault("the first TLS message is no hello of a client"));
            }
        }
        None
    }

    /// Reads the hello, whose last record ends at `end`.
    fn parse(&mut self, bytes: &[u8], end: usize) -> Progress<ClientHello> {
        self.look_at(end);
        let records = &bytes[..end];
        let first = u16::from_be_bytes([records[3], records[4]]);
        let hello = if RECORD_HEADER_BYTES + usize::from(first) == end {
            ClientHello::parse(&records[RECORD_HEADER_BYTES + HEADER_BYTES..])
        } else {
            ClientHello::parse(&joined(records)[HEADER_BYTES..])
        };
        match hello {
            Ok(hello) => Progress::Complete(hello),
            Err(fault) => Progress::Broken(fault),
        }
    }

    #[cfg(test)]
    fn look_at(&mut self, bytes: usize) {
        self.looked_at += bytes;
    }

    #[cfg(not(test))]
    fn look_at(&mut self, _: usize) {}
}

impl Position {
    /// The length of the hello with its header; that of its header alone until this has come.
    fn length(&self) -> usize {
        let [_, high, middle, low] = self.header;
        if self.header_come < HEADER_BYTES {
            HEADER_BYTES
        } else {
            HEADER_BYTES + u32::from_be_bytes([0, high, middle, low]) as usize
        }
    }
}

/// What `records` hold without their headers.
fn joined(mut records: &[u8]) -> Vec<u8> {
    let mut joined = Vec::with_capacity(records.len());
    while let [_, _, _, high, low, rest @ ..] = records {
        let (fragment, next) = rest.split_at(u16::from_be_bytes([*high, *low]).into());
        joined.extend_from_slice(fragment);
        records = next;
    }
    joined
}
