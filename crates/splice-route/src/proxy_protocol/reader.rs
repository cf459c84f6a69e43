//! Finds the header at the beginning of a connection.

use super::{Header, SIGNATURE, version1, version2};
use crate::progress::{Fault, Progress};

const NO_HEADER: Fault = Fault("the connection does not start with a PROXY header");

/// Reads a header of either version. There has to be one: a receiver that guesses lets clients name
/// themselves, so anything else is [`Progress::Broken`].
///
/// A header is parsed once, when all of it has come, but refused as early as its first wrong byte of the
/// signature, version or length.
#[derive(Debug, Default)]
pub struct HeaderReader {
    line: version1::LineEnd,
}

impl HeaderReader {
    /// A reader for a connection of which nothing has been read.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads on. `bytes` are all that have come so far.
    pub fn read(&mut self, bytes: &[u8]) -> Progress<Header> {
        let begins = |start: &[u8]| {
            let length = bytes.len().min(start.len());
            bytes[..length] == start[..length]
        };
        if begins(&SIGNATURE) {
            version2::read(bytes)
        } else if begins(version1::START) {
            match self.line.find(bytes) {
                Ok(Some(end)) => version1::parse(&bytes[..end]),
                Ok(None) => Progress::More,
                Err(fault) => Progress::Broken(fault),
            }
        } else {
            Progress::Broken(NO_HEADER)
        }
    }
}
