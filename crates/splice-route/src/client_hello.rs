//! The hello of a TLS client (RFC 8446, section 4.1.2; RFC 5246, section 7.4.1.2).
//!
//! A reader counts records until they hold the hello, and parses it once, at its end:
//!
//! - `Records`: a first byte that starts no handshake leads to `Other`, any other rule that is broken to
//!   `Broken`, the last byte of the hello to `Complete` or `Broken`.
//! - `Other`, `Broken`, `Complete`: final.
//!
//! Until the hello is whole the reader keeps counters only, however many records it comes in.

use std::borrow::Cow;

use crate::conditions::{Conditions, ServerName, TlsVersion};
use crate::name;
use crate::progress::{Fault, Progress};

/// Content type, version, length (RFC 8446, section 5.1).
const RECORD_HEADER_BYTES: usize = 5;
/// The content type of a handshake.
const HANDSHAKE: u8 = 22;
/// The first byte of every version of TLS.
const MAJOR_VERSION: u8 = 3;
/// RFC 8446, section 5.1.
const LONGEST_RECORD_BYTES: usize = 1 << 14;
/// The type of a message and its length (RFC 8446, section 4).
const MESSAGE_HEADER_BYTES: usize = 4;
/// The type of a client's hello.
const CLIENT_HELLO: u8 = 1;

/// RFC 6066, section 3.
const SERVER_NAME: u16 = 0;
/// The only kind of server name.
const HOST_NAME: u8 = 0;
/// RFC 7301, section 3.1.
const ALPN: u16 = 16;
/// RFC 8446, section 4.2.1.
const SUPPORTED_VERSIONS: u16 = 43;

/// What a client's hello says about where it wants to go. Of an encrypted hello (ECH) that is the outer
/// one, since only the server can read the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHello {
    server_name: Option<Box<str>>,
    /// As it was sent, each protocol behind its length: the names can be so short and so many that a list
    /// of them would take a multiple of it.
    alpn: Box<[u8]>,
    newest_version: TlsVersion,
}

impl ClientHello {
    /// The server's name, in lower case and without trailing dot.
    pub fn server_name(&self) -> Option<&str> {
        self.server_name.as_deref()
    }

    /// The protocols that the client offers, the one that it likes best first.
    pub fn alpn(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest = Bytes(&self.alpn);
        std::iter::from_fn(move || rest.behind_length_of_one())
    }

    /// The newest version that the client offers.
    pub fn newest_version(&self) -> TlsVersion {
        self.newest_version
    }

    /// Whether what `conditions` ask of a hello holds.
    pub(crate) fn meets(&self, conditions: &Conditions) -> bool {
        let names = conditions.sni.as_ref().is_none_or(|names| {
            names.iter().any(|name| match (name, self.server_name()) {
                (ServerName::None, None) => true,
                (ServerName::Matching(pattern), Some(name)) => pattern.matches(name),
                (ServerName::None, Some(_)) | (ServerName::Matching(_), None) => false,
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

/// Finds a TLS client's hello at the beginning of a connection.
#[derive(Debug)]
pub struct ClientHelloReader {
    limit_bytes: usize,
    /// Where the current record begins.
    record_at: usize,
    /// What the records before the current one hold of the message.
    message_bytes_before: usize,
    message_header: [u8; MESSAGE_HEADER_BYTES],
    message_header_bytes: usize,
    state: State,
    #[cfg(test)]
    looks: usize,
}

#[derive(Debug)]
enum State {
    Records,
    Other,
    Broken(Fault),
    Complete(ClientHello),
}

impl ClientHelloReader {
    /// A reader of hellos that take at most `limit_bytes` with their records.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            record_at: 0,
            message_bytes_before: 0,
            message_header: [0; MESSAGE_HEADER_BYTES],
            message_header_bytes: 0,
            state: State::Records,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Reads on. `bytes` are all that have come so far.
    pub fn read(&mut self, bytes: &[u8]) -> Progress<&ClientHello> {
        let bytes = &bytes[..bytes.len().min(self.limit_bytes)];
        while matches!(self.state, State::Records) {
            match self.read_record(bytes) {
                Ok(Some(next)) => self.state = next,
                Ok(None) if bytes.len() == self.limit_bytes => self.state = State::Broken(TOO_LONG),
                Ok(None) => break,
                Err(fault) => self.state = State::Broken(fault),
            }
        }
        match &self.state {
            State::Records => Progress::More,
            State::Other => Progress::Other,
            State::Broken(fault) => Progress::Broken(*fault),
            State::Complete(hello) => Progress::Complete(hello),
        }
    }

    /// The hello, once it is complete.
    pub fn hello(&self) -> Option<&ClientHello> {
        match &self.state {
            State::Complete(hello) => Some(hello),
            _ => None,
        }
    }

    /// Reads to the end of the current record, or as far as `bytes` go: then the answer is `None`. Each
    /// check is made as soon as the bytes that it looks at have come, and in their order.
    fn read_record(&mut self, bytes: &[u8]) -> Result<Option<State>, Fault> {
        #[cfg(test)]
        {
            self.looks += 1;
        }
        let record = &bytes[self.record_at..];
        let starts_handshake = record.first().is_none_or(|byte| *byte == HANDSHAKE)
            && record.get(1).is_none_or(|byte| *byte == MAJOR_VERSION);
        match (starts_handshake, self.record_at) {
            (true, _) => {}
            (false, 0) => return Ok(Some(State::Other)),
            (false, _) => return Err(INTERRUPTED),
        }
        let Some((&[_, _, _, high, low], payload)) =
            record.split_first_chunk::<RECORD_HEADER_BYTES>()
        else {
            return Ok(None);
        };
        let length = usize::from(u16::from_be_bytes([high, low]));
        match length {
            0 => return Err(EMPTY_RECORD),
            1..=LONGEST_RECORD_BYTES => {}
            _ => return Err(LONG_RECORD),
        }
        let payload_at = self.record_at + RECORD_HEADER_BYTES;
        if payload_at + length > self.limit_bytes {
            return Err(TOO_LONG);
        }
        let payload = &payload[..payload.len().min(length)];
        let Some(message_bytes) = self.message_bytes(payload)? else {
            return Ok(self.pass_record(payload, length).then_some(State::Records));
        };
        // Records behind this one have headers as well, so the hello may still turn out too long.
        let missing = message_bytes - self.message_bytes_before;
        if payload_at + missing > self.limit_bytes {
            return Err(TOO_LONG);
        }
        if missing < length {
            return Err(MORE_IN_RECORD);
        }
        if !self.pass_record(payload, length) {
            return Ok(None);
        }
        if missing > length {
            return Ok(Some(State::Records));
        }
        let message = joined(&bytes[..self.record_at]);
        parse(&message[MESSAGE_HEADER_BYTES..]).map(|hello| Some(State::Complete(hello)))
    }

    /// How long the message is, with its header, if the header has come.
    fn message_bytes(&mut self, payload: &[u8]) -> Result<Option<usize>, Fault> {
        while self.message_header_bytes < MESSAGE_HEADER_BYTES {
            let at = self.message_header_bytes - self.message_bytes_before;
            let Some(byte) = payload.get(at) else {
                return Ok(None);
            };
            if self.message_header_bytes == 0 && *byte != CLIENT_HELLO {
                return Err(OTHER_MESSAGE);
            }
            self.message_header[self.message_header_bytes] = *byte;
            self.message_header_bytes += 1;
        }
        let [_, length @ ..] = self.message_header;
        let length = length
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte));
        Ok(Some(MESSAGE_HEADER_BYTES + length))
    }

    /// Goes to the next record. Returns whether the current one has come as a whole.
    fn pass_record(&mut self, payload: &[u8], length: usize) -> bool {
        let whole = payload.len() == length;
        if whole {
            self.record_at += RECORD_HEADER_BYTES + length;
            self.message_bytes_before += length;
        }
        whole
    }
}

const TOO_LONG: Fault = Fault("the TLS hello is too long");
const INTERRUPTED: Fault = Fault("the TLS hello is interrupted by something else");
const EMPTY_RECORD: Fault = Fault("the TLS hello has an empty record");
const LONG_RECORD: Fault = Fault("the TLS hello has a record of more than 16384 bytes");
const OTHER_MESSAGE: Fault = Fault("the TLS client begins with another message than a hello");
const MORE_IN_RECORD: Fault = Fault("the TLS hello ends within a record");
const LENGTHS: Fault = Fault("the TLS hello has lengths that do not fit together");
const VERSION: Fault = Fault("the TLS hello offers no known version");
const DUPLICATE: Fault = Fault("the TLS hello has an extension twice");
const TWO_NAMES: Fault = Fault("the TLS hello has two server names");
const NAME_TYPE: Fault = Fault("the TLS hello has a server name that is no host name");
const NAME: Fault = Fault("the TLS hello has a malformed server name");
const EMPTY_ALPN: Fault = Fault("the TLS hello offers a protocol without name");

/// What whole records hold. Copies only if there are several.
fn joined(records: &[u8]) -> Cow<'_, [u8]> {
    let mut rest = Bytes(records);
    let mut next = || {
        rest.take(RECORD_HEADER_BYTES - 2)?;
        rest.behind_length_of_two()
    };
    let mut joined = Cow::Borrowed(next().unwrap_or_default());
    while let Some(payload) = next() {
        joined.to_mut().extend_from_slice(payload);
    }
    joined
}

/// Parses what follows the header of a message that is whole.
fn parse(message: &[u8]) -> Result<ClientHello, Fault> {
    let (legacy_version, mut extensions) = split(message).ok_or(LENGTHS)?;
    let mut hello = ClientHello {
        server_name: None,
        alpn: Box::default(),
        newest_version: match legacy_version {
            [MAJOR_VERSION, 0 | 1] => TlsVersion::Tls10,
            [MAJOR_VERSION, 2] => TlsVersion::Tls11,
            // What is newer has to be in `supported_versions`.
            [MAJOR_VERSION, _] => TlsVersion::Tls12,
            _ => return Err(VERSION),
        },
    };
    let mut kinds = Vec::new();
    while !extensions.is_empty() {
        let kind = extensions.u16().ok_or(LENGTHS)?;
        let content = Bytes(extensions.behind_length_of_two().ok_or(LENGTHS)?);
        kinds.push(kind);
        match kind {
            SERVER_NAME => hello.server_name = Some(server_name(content)?),
            ALPN => hello.alpn = alpn(content)?,
            SUPPORTED_VERSIONS => hello.newest_version = newest_version(content)?,
            _ => {}
        }
    }
    kinds.sort_unstable();
    if kinds.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(DUPLICATE);
    }
    Ok(hello)
}

/// The version and the extensions of a hello.
fn split(message: &[u8]) -> Option<([u8; 2], Bytes<'_>)> {
    const RANDOM_BYTES: usize = 32;
    const LONGEST_SESSION_ID_BYTES: usize = 32;
    let mut rest = Bytes(message);
    let legacy_version = rest.u16()?.to_be_bytes();
    rest.take(RANDOM_BYTES)?;
    let session_id = rest.behind_length_of_one()?;
    let cipher_suites = rest.behind_length_of_two()?;
    let compression_methods = rest.behind_length_of_one()?;
    // A client of TLS 1.2 may leave out even the length.
    let extensions = if rest.is_empty() {
        &[]
    } else {
        rest.behind_length_of_two()?
    };
    let fits = session_id.len() <= LONGEST_SESSION_ID_BYTES
        && !cipher_suites.is_empty()
        && cipher_suites.len().is_multiple_of(2)
        && !compression_methods.is_empty()
        && rest.is_empty();
    fits.then_some((legacy_version, Bytes(extensions)))
}

fn server_name(mut content: Bytes<'_>) -> Result<Box<str>, Fault> {
    let mut names = Bytes(content.behind_length_of_two().ok_or(LENGTHS)?);
    let kind = names.u8().ok_or(LENGTHS)?;
    // What would follow another kind is not known.
    if kind != HOST_NAME {
        return Err(NAME_TYPE);
    }
    let name = names.behind_length_of_two().ok_or(LENGTHS)?;
    if !content.is_empty() {
        return Err(LENGTHS);
    }
    if !names.is_empty() {
        return Err(TWO_NAMES);
    }
    name::host_name(name).ok_or(NAME)
}

fn alpn(mut content: Bytes<'_>) -> Result<Box<[u8]>, Fault> {
    let list = content.behind_length_of_two().ok_or(LENGTHS)?;
    if list.is_empty() || !content.is_empty() {
        return Err(LENGTHS);
    }
    let mut rest = Bytes(list);
    while !rest.is_empty() {
        match rest.behind_length_of_one() {
            None => return Err(LENGTHS),
            Some([]) => return Err(EMPTY_ALPN),
            Some(_) => {}
        }
    }
    Ok(list.into())
}

fn newest_version(mut content: Bytes<'_>) -> Result<TlsVersion, Fault> {
    let mut list = Bytes(content.behind_length_of_one().ok_or(LENGTHS)?);
    if list.is_empty() || !content.is_empty() {
        return Err(LENGTHS);
    }
    let mut newest = None;
    while !list.is_empty() {
        let version = match list.u16().ok_or(LENGTHS)?.to_be_bytes() {
            [MAJOR_VERSION, 0 | 1] => TlsVersion::Tls10,
            [MAJOR_VERSION, 2] => TlsVersion::Tls11,
            [MAJOR_VERSION, 3] => TlsVersion::Tls12,
            [MAJOR_VERSION, _] => TlsVersion::Tls13,
            // A draft, or one that is there to be ignored (RFC 8701).
            _ => continue,
        };
        newest = newest.max(Some(version));
    }
    newest.ok_or(VERSION)
}

/// What is left of a message. Numbers are big-endian; `None` if there is not enough left.
#[derive(Clone, Copy)]
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u16::from_be_bytes(*first))
    }

    fn behind_length_of_one(&mut self) -> Option<&'a [u8]> {
        let length = self.u8()?;
        self.take(length.into())
    }

    fn behind_length_of_two(&mut self) -> Option<&'a [u8]> {
        let length = self.u16()?;
        self.take(length.into())
    }
}

#[cfg(test)]
mod tests;
