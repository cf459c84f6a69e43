//! The hello of a TLS client: its first message, in one record or in many.
//!
//! A reader follows the records without looking at their bytes, in one of these states, and puts the
//! message together once, when all of it is there:
//!
//! - `Reading`: every record so far is part of a handshake. The first bytes lead to `Other` if they are
//!   no record of TLS; whatever does not fit later leads to `Broken`.
//! - `Other`, `Broken`, `Complete`: final.

use std::collections::BTreeSet;

use crate::conditions::{Conditions, ServerName, TlsVersion};
use crate::progress::{Fault, Progress};

/// RFC 8446, section 5.1.
const RECORD_HEADER_BYTES: usize = 5;
const HANDSHAKE: u8 = 22;
const MAJOR_VERSION: u8 = 3;
const LONGEST_RECORD_BYTES: usize = 1 << 14;

/// RFC 8446, section 4: a type and a length of three bytes.
const MESSAGE_HEADER_BYTES: usize = 4;
const CLIENT_HELLO: u8 = 1;

/// RFC 6066, RFC 7301 and RFC 8446, section 4.2.1.
const SERVER_NAME: u16 = 0;
const HOST_NAME: u8 = 0;
const ALPN: u16 = 16;
const SUPPORTED_VERSIONS: u16 = 43;

/// RFC 1035, section 2.3.4.
const LONGEST_NAME_BYTES: usize = 255;

const TOO_LONG: Fault = Fault("the TLS hello is longer than the limit");
const NOT_A_HANDSHAKE: Fault = Fault("the TLS hello is interrupted by another record");
const BAD_RECORD: Fault = Fault("a record of the TLS hello has an impossible length");
const NOT_A_HELLO: Fault = Fault("the TLS handshake does not begin with a hello");
const TRAILING: Fault = Fault("something follows the TLS hello in its record");
const BAD_LENGTH: Fault = Fault("a length in the TLS hello is wrong");
const TWICE: Fault = Fault("the TLS hello has an extension twice");
const BAD_NAME: Fault = Fault("the TLS hello has a server name that is none");
const BAD_ALPN: Fault = Fault("the TLS hello has an empty protocol name");
const BAD_VERSIONS: Fault = Fault("the TLS hello offers no version of TLS");

/// What a hello says. With Encrypted Client Hello it is the outer one, which everybody can read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    server_name: Option<Box<str>>,
    /// Each name behind its length, as it was sent.
    alpn: Box<[u8]>,
    newest_version: TlsVersion,
}

impl ClientHello {
    /// The name of the server that is asked for (SNI), in lower case.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The protocols that are offered, the best first.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.alpn;
        std::iter::from_fn(move || {
            let (length, names) = rest.split_first()?;
            let (name, behind) = names.split_at_checked(usize::from(*length))?;
            rest = behind;
            Some(name)
        })
    }

    /// The newest version of TLS that is offered.
    pub fn newest_version(&self) -> TlsVersion {
        self.newest_version
    }

    /// Whether what `conditions` ask of a hello holds.
    pub(crate) fn meets(&self, conditions: &Conditions) -> bool {
        let names = conditions.sni.as_ref().is_none_or(|names| {
            names.iter().any(|name| match (name, self.server_name()) {
                (ServerName::None, None) => true,
                (ServerName::Matching(pattern), Some(name)) => pattern.matches(name),
                _ => false,
            })
        });
        let protocols = conditions.alpn.as_ref().is_none_or(|wanted| {
            self.alpn()
                .any(|offered| wanted.iter().any(|name| name == offered))
        });
        let versions = conditions.tls_versions.as_ref();
        names && protocols && versions.is_none_or(|wanted| wanted.contains(&self.newest_version))
    }
}

/// Finds the hello at the beginning of a connection.
#[derive(Debug)]
pub(crate) struct ClientHelloReader {
    limit_bytes: usize,
    /// Where the current record begins.
    record: usize,
    /// Bytes of the message in the records before it.
    before: usize,
    header: [u8; MESSAGE_HEADER_BYTES],
    /// How much of `header` is there.
    header_bytes: usize,
    state: State,
    #[cfg(test)]
    looks: usize,
}

#[derive(Debug)]
enum State {
    Reading,
    Other,
    Broken(Fault),
    Complete(ClientHello),
}

impl ClientHelloReader {
    /// A reader of hellos of at most `limit_bytes`.
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            record: 0,
            before: 0,
            header: [0; MESSAGE_HEADER_BYTES],
            header_bytes: 0,
            state: State::Reading,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Reads on. `bytes` are all that have come so far.
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Progress<&ClientHello> {
        while matches!(self.state, State::Reading) {
            match self.step(bytes) {
                Ok(Some(next)) => self.state = next,
                Ok(None) => return Progress::More,
                Err(fault) => self.state = State::Broken(fault),
            }
        }
        match &self.state {
            State::Reading => Progress::More,
            State::Other => Progress::Other,
            State::Broken(fault) => Progress::Broken(*fault),
            State::Complete(hello) => Progress::Complete(hello),
        }
    }

    /// The hello, once it is complete.
    pub(crate) fn hello(&self) -> Option<&ClientHello> {
        match &self.state {
            State::Complete(hello) => Some(hello),
            _ => None,
        }
    }

    /// Goes to the end of the current record; `None` if it has not come yet.
    fn step(&mut self, bytes: &[u8]) -> Result<Option<State>, Fault> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let record = bytes.get(self.record..).unwrap_or_default();
        let is_first = self.record == 0;
        for (byte, expected) in record.iter().zip([HANDSHAKE, MAJOR_VERSION]) {
            match *byte == expected {
                true => {}
                false if is_first => return Ok(Some(State::Other)),
                false => return Err(NOT_A_HANDSHAKE),
            }
        }
        let Some((header, rest)) = record.split_first_chunk::<RECORD_HEADER_BYTES>() else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([header[3], header[4]]));
        if length == 0 || length > LONGEST_RECORD_BYTES {
            return Err(BAD_RECORD);
        }
        let payload = &rest[..rest.len().min(length)];
        self.take_header(payload);
        if self.header_bytes > 0 && self.header[0] != CLIENT_HELLO {
            return Err(NOT_A_HELLO);
        }
        if self.header_bytes == MESSAGE_HEADER_BYTES {
            let [_, high, middle, low] = self.header;
            let body = u32::from_be_bytes([0, high, middle, low]) as usize;
            let message = MESSAGE_HEADER_BYTES + body;
            if message > self.limit_bytes {
                return Err(TOO_LONG);
            }
            if self.before + length > message {
                return Err(TRAILING);
            }
            if self.before + payload.len() == message {
                let assembled = assemble(bytes, message);
                return Ok(Some(State::Complete(parse(
                    &assembled[MESSAGE_HEADER_BYTES..],
                )?)));
            }
        }
        if payload.len() < length {
            return Ok(None);
        }
        self.before += length;
        self.record += RECORD_HEADER_BYTES + length;
        Ok(Some(State::Reading))
    }

    /// Takes the message's header from `payload`, what is there of the current record.
    fn take_header(&mut self, payload: &[u8]) {
        while self.header_bytes < MESSAGE_HEADER_BYTES
            && let Some(byte) = payload.get(self.header_bytes.wrapping_sub(self.before))
        {
            self.header[self.header_bytes] = *byte;
            self.header_bytes += 1;
        }
    }
}

/// The first `length` bytes that the records carry.
fn assemble(mut records: &[u8], length: usize) -> Vec<u8> {
    let mut message = Vec::with_capacity(length);
    while message.len() < length
        && let Some((header, rest)) = records.split_first_chunk::<RECORD_HEADER_BYTES>()
    {
        let record = usize::from(u16::from_be_bytes([header[3], header[4]]));
        let (payload, behind) = rest.split_at(record.min(rest.len()));
        message.extend_from_slice(&payload[..payload.len().min(length - message.len())]);
        records = behind;
    }
    message
}

/// What is left of a part of the message.
struct Part<'a>(&'a [u8]);

impl<'a> Part<'a> {
    fn take(&mut self, bytes: usize) -> Result<&'a [u8], Fault> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(BAD_LENGTH)?;
        self.0 = rest;
        Ok(taken)
    }

    fn byte(&mut self) -> Result<u8, Fault> {
        Ok(self.take(1)?[0])
    }

    fn short(&mut self) -> Result<u16, Fault> {
        let bytes = self.take(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    /// What follows a length of one byte.
    fn by_byte(&mut self) -> Result<Part<'a>, Fault> {
        let length = self.byte()?;
        Ok(Part(self.take(length.into())?))
    }

    /// What follows a length of two bytes.
    fn by_short(&mut self) -> Result<Part<'a>, Fault> {
        let length = self.short()?;
        Ok(Part(self.take(length.into())?))
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Nothing may be left.
    fn end(&self) -> Result<(), Fault> {
        self.is_empty().then_some(()).ok_or(BAD_LENGTH)
    }
}

/// RFC 8446, section 4.1.2.
fn parse(body: &[u8]) -> Result<ClientHello, Fault> {
    let mut body = Part(body);
    let legacy_version = body.short()?;
    body.take(32)?;
    if body.by_byte()?.0.len() > 32 {
        return Err(BAD_LENGTH);
    }
    let suites = body.by_short()?.0.len();
    if suites == 0 || suites % 2 != 0 || body.by_byte()?.is_empty() {
        return Err(BAD_LENGTH);
    }
    let mut hello = ClientHello {
        server_name: None,
        alpn: Box::default(),
        newest_version: version(legacy_version).ok_or(BAD_VERSIONS)?,
    };
    if body.is_empty() {
        return Ok(hello);
    }
    let mut extensions = body.by_short()?;
    body.end()?;
    let mut seen = BTreeSet::new();
    while !extensions.is_empty() {
        let kind = extensions.short()?;
        let extension = extensions.by_short()?;
        if !seen.insert(kind) {
            return Err(TWICE);
        }
        match kind {
            SERVER_NAME => hello.server_name = Some(server_name(extension)?),
            ALPN => hello.alpn = alpn(extension)?,
            SUPPORTED_VERSIONS => hello.newest_version = newest(extension)?,
            _ => {}
        }
    }
    Ok(hello)
}

/// The one name that the extension has to have.
fn server_name(mut extension: Part<'_>) -> Result<Box<str>, Fault> {
    let mut list = extension.by_short()?;
    extension.end()?;
    if list.byte()? != HOST_NAME {
        return Err(BAD_NAME);
    }
    let name = list.by_short()?.0;
    if !list.is_empty() {
        // RFC 6066: no two names of one type, and there is only one type.
        return Err(BAD_NAME);
    }
    // An address has no place here (RFC 6066), but some clients send IPv4 ones; they are names of digits.
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let is_name = !name.is_empty() && name.len() <= LONGEST_NAME_BYTES && name.iter().all(allowed);
    let name = std::str::from_utf8(name).map_err(|_| BAD_NAME)?;
    let without_dot = name.strip_suffix('.').unwrap_or(name);
    match is_name && !without_dot.is_empty() {
        true => Ok(without_dot.to_ascii_lowercase().into()),
        false => Err(BAD_NAME),
    }
}

fn alpn(mut extension: Part<'_>) -> Result<Box<[u8]>, Fault> {
    let mut list = extension.by_short()?;
    extension.end()?;
    let names = list.0;
    if names.is_empty() {
        return Err(BAD_ALPN);
    }
    while !list.is_empty() {
        if list.by_byte()?.is_empty() {
            return Err(BAD_ALPN);
        }
    }
    Ok(names.into())
}

fn newest(mut extension: Part<'_>) -> Result<TlsVersion, Fault> {
    let list = extension.by_byte()?.0;
    extension.end()?;
    if list.len() % 2 != 0 {
        return Err(BAD_LENGTH);
    }
    let versions = list.chunks_exact(2);
    let known = versions.filter_map(|pair| version(u16::from_be_bytes([pair[0], pair[1]])));
    known.max().ok_or(BAD_VERSIONS)
}

/// The version with this number; `None` for the values that clients make up (GREASE, RFC 8701).
fn version(number: u16) -> Option<TlsVersion> {
    match number {
        0x0300 | 0x0301 => Some(TlsVersion::Tls10),
        0x0302 => Some(TlsVersion::Tls11),
        0x0303 => Some(TlsVersion::Tls12),
        0x0304..=0x03ff => Some(TlsVersion::Tls13),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
