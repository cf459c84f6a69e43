//! The head of an HTTP/1 request.
//!
//! A reader looks at each byte once, in one of these states, and parses the head once, at its end:
//!
//! - `Method`: nothing but characters of a method, or blank bytes before it, has come. Whitespace behind the
//!   method leads to `RequestLine`, any other byte to `Other`, too many blank bytes to `Broken`. Any token may be
//!   a method.
//! - `RequestLine`: the end of the line decides. A line without ` HTTP/` leads to `Other`: it is another
//!   protocol of text lines. Any other line has to be right: it leads to `Fields`, `Preface` or `Broken`. So does
//!   what may be a request of HTTP/0.9, which is `Broken`.
//! - `Preface`: the line was the one with which HTTP/2 begins. The rest of its preface leads to `Other`,
//!   anything else to `Broken`.
//! - `Fields`: an empty line leads to `Complete`, anything that servers read in different ways to `Broken`.
//! - `Other`, `Broken`, `Complete`: final.
//!
//! What fills the limit before the line has ended is `Broken` if it is a request for sure, else `Other`.

mod target;

use std::ops::Range;

use self::target::Target;
use crate::authority::Authority;
use crate::progress::{Fault, Progress};

/// The most empty lines before a request. RFC 9112, section 2.2, has servers ignore one at least.
const MOST_EMPTY_LINES: usize = 8;

/// The most bytes before a request that servers may skip: those of the empty lines, or as much whitespace.
pub(crate) const MOST_BLANK_BYTES: usize = 2 * MOST_EMPTY_LINES;

/// What every connection of HTTP/2 begins with (RFC 9113, section 3.4).
pub(crate) const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The methods that IANA has registered: those of RFC 9110, RFC 7237 and RFC 9113, and QUERY. `*` is registered
/// only to be no method.
const REGISTERED_METHODS: [&[u8]; 40] = [
    b"ACL",
    b"BASELINE-CONTROL",
    b"BIND",
    b"CHECKIN",
    b"CHECKOUT",
    b"CONNECT",
    b"COPY",
    b"DELETE",
    b"GET",
    b"HEAD",
    b"LABEL",
    b"LINK",
    b"LOCK",
    b"MERGE",
    b"MKACTIVITY",
    b"MKCALENDAR",
    b"MKCOL",
    b"MKREDIRECTREF",
    b"MKWORKSPACE",
    b"MOVE",
    b"OPTIONS",
    b"ORDERPATCH",
    b"PATCH",
    b"POST",
    b"PRI",
    b"PROPFIND",
    b"PROPPATCH",
    b"PUT",
    b"QUERY",
    b"REBIND",
    b"REPORT",
    b"SEARCH",
    b"TRACE",
    b"UNBIND",
    b"UNCHECKOUT",
    b"UNLINK",
    b"UNLOCK",
    b"UPDATE",
    b"UPDATEREDIRECTREF",
    b"VERSION-CONTROL",
];

/// Whether a method may have this name. Any token may be one (RFC 9110, section 9.1), in capitals or not, and
/// servers take `0` and `a.b`.
pub fn is_method(name: &[u8]) -> bool {
    !name.is_empty() && name.iter().copied().all(is_of_token)
}

/// Whether a server may take a byte for one that stands between the words of a request line. RFC 9112, section
/// 3, lists HTAB, VT, FF, CR and SP. The other ones are those at which Python's http.server splits, the
/// whitespace of Latin-1.
pub(crate) fn is_whitespace(byte: u8) -> bool {
    matches!(byte, b'\t' | 0x0b..=b'\r' | 0x1c..=b' ' | 0x85 | 0xa0)
}

/// Whether a server may skip a byte before a request: RFC 9112, sections 2.2 and 3.
pub(crate) fn is_blank(byte: u8) -> bool {
    byte == b'\n' || is_whitespace(byte)
}

/// The head of a request. It keeps offsets, so that it is small while a connection waits: give its
/// methods the bytes that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    method: Range<usize>,
    path: Range<usize>,
    host: Option<Box<str>>,
    /// Of the target of a CONNECT.
    port: Option<u16>,
    has_body: bool,
    length_bytes: usize,
}

impl RequestHead {
    /// The method, such as `GET`.
    pub fn method<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.method.clone()).unwrap_or_default()
    }

    /// The path as it was sent, without the query: percent-encoding is not decoded, `..` not resolved. So
    /// it is good for routing, and useless for access control. Empty for `OPTIONS *` and `CONNECT`.
    pub fn path<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.path.clone()).unwrap_or_default()
    }

    /// The host that is asked for, in lower case, without port and trailing dot. An HTTP/1.0 request may have
    /// none, and so may one with an empty Host field.
    pub fn host(&self) -> Option<&str> {
        self.host.as_deref()
    }

    /// The port that a CONNECT asks for.
    pub(crate) fn port(&self) -> Option<u16> {
        self.port
    }

    /// Whether a field announces content.
    pub(crate) fn has_body(&self) -> bool {
        self.has_body
    }

    /// From the first byte, which may be that of an empty line, to the end of the empty line behind the fields.
    pub fn length_bytes(&self) -> usize {
        self.length_bytes
    }
}

/// Finds the head of an HTTP/1 request at the beginning of a connection.
#[derive(Debug)]
pub struct RequestHeadReader {
    limit_bytes: usize,
    /// What is before has been looked at.
    position: usize,
    /// Where the current line begins.
    line: usize,
    state: State,
    #[cfg(test)]
    looks: usize,
}

#[derive(Debug)]
enum State {
    Method,
    RequestLine,
    Preface,
    Fields,
    Other,
    Broken(Fault),
    Complete(RequestHead),
}

impl RequestHeadReader {
    /// A reader of heads of at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            position: 0,
            line: 0,
            state: State::Method,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// Reads on. `bytes` are all that have come so far.
    pub fn read(&mut self, bytes: &[u8]) -> Progress<&RequestHead> {
        let bytes = &bytes[..bytes.len().min(self.limit_bytes)];
        while let Some(&byte) = bytes.get(self.position)
            && let Some(next) = self.step(bytes, byte)
        {
            self.state = next;
        }
        if bytes.len() == self.limit_bytes && self.is_open() {
            self.state = match self.is_request(bytes) {
                true => State::Broken(TOO_LONG),
                // Not a request that any server takes, but perhaps a stream of text.
                false => State::Other,
            };
        }
        match &self.state {
            State::Method | State::RequestLine | State::Preface | State::Fields => Progress::More,
            State::Other => Progress::Other,
            State::Broken(fault) => Progress::Broken(*fault),
            State::Complete(head) => Progress::Complete(head),
        }
    }

    /// The head, once it is complete.
    pub fn head(&self) -> Option<&RequestHead> {
        match &self.state {
            State::Complete(head) => Some(head),
            _ => None,
        }
    }

    /// Whether `bytes`, of which more has to come, count as half a request. If not, they are more likely another
    /// protocol's: a word, and perhaps more that is not yet a line.
    fn is_request(&self, bytes: &[u8]) -> bool {
        let line = bytes.get(self.line..self.position).unwrap_or_default();
        match self.state {
            // Every method begins with nothing. Blank bytes alone are no message of another protocol.
            State::Method => {
                let mut methods = REGISTERED_METHODS.iter();
                self.position > 0 && methods.any(|method| method.starts_with(line))
            }
            State::RequestLine => {
                has_registered_method(line) || names_http(line) || has_target(line)
            }
            State::Preface | State::Fields => true,
            State::Other | State::Broken(_) | State::Complete(_) => false,
        }
    }

    fn is_open(&self) -> bool {
        matches!(
            self.state,
            State::Method | State::RequestLine | State::Preface | State::Fields
        )
    }

    /// Reads up to the next change of state. `None` if there is none in `bytes`.
    fn step(&mut self, bytes: &[u8], byte: u8) -> Option<State> {
        let decide = match self.state {
            State::Method => Self::in_method,
            State::RequestLine => Self::in_request_line,
            State::Preface => Self::in_preface,
            State::Fields => Self::in_fields,
            State::Other | State::Broken(_) | State::Complete(_) => return None,
        };
        let mut byte = byte;
        loop {
            #[cfg(test)]
            {
                self.looks += 1;
            }
            let next = decide(self, bytes, byte);
            self.position += 1;
            if next.is_some() {
                return next;
            }
            byte = *bytes.get(self.position)?;
        }
    }

    fn in_method(&mut self, _bytes: &[u8], byte: u8) -> Option<State> {
        let length = self.position - self.line;
        match byte {
            // They are judged with the request line, which allows no more of them than this.
            _ if length == 0 && is_blank(byte) => {
                if self.line == MOST_BLANK_BYTES {
                    return Some(State::Broken(EMPTY_LINES));
                }
                self.line += 1;
                None
            }
            _ if is_whitespace(byte) => Some(State::RequestLine),
            _ if is_of_token(byte) => None,
            _ => Some(State::Other),
        }
    }

    fn in_request_line(&mut self, bytes: &[u8], byte: u8) -> Option<State> {
        let line = &bytes[self.line..self.position];
        match byte {
            b'\n' => {
                let next = match judge(line) {
                    State::Fields if !are_empty_lines(&bytes[..self.line]) => {
                        State::Broken(EMPTY_LINES)
                    }
                    State::Preface if self.line > 0 => State::Broken(VERSION),
                    next => next,
                };
                self.line = self.position + 1;
                Some(next)
            }
            _ if !is_control(byte) || is_whitespace(byte) => None,
            _ if names_http(line) || has_registered_method(line) => {
                Some(State::Broken(CONTROL_BYTE))
            }
            // Other protocols send a word, a space and then binary data. With git it is even a path:
            // `0033git-upload-pack /project.git`, a zero byte and a host.
            _ => Some(State::Other),
        }
    }

    fn in_preface(&mut self, bytes: &[u8], _byte: u8) -> Option<State> {
        let come = &bytes[..=self.position];
        match HTTP2_PREFACE.strip_prefix(come) {
            Some([]) => Some(State::Other),
            Some(_) => None,
            None => Some(State::Broken(VERSION)),
        }
    }

    fn in_fields(&mut self, bytes: &[u8], byte: u8) -> Option<State> {
        let previous = bytes[self.position - 1];
        match byte {
            b'\n' if previous != b'\r' => Some(State::Broken(BARE_LF)),
            b'\n' if self.position == self.line + 1 => {
                let head = &bytes[..=self.position];
                Some(parse(head).map_or_else(State::Broken, State::Complete))
            }
            b'\n' => {
                self.line = self.position + 1;
                None
            }
            _ if previous == b'\r' => Some(State::Broken(BARE_CR)),
            b' ' | b'\t' if self.position == self.line => Some(State::Broken(FOLDED)),
            b'\r' | b'\t' => None,
            _ if is_control(byte) => Some(State::Broken(CONTROL_BYTE)),
            _ => None,
        }
    }
}

const TOO_LONG: Fault = Fault("the head of the HTTP request is too long");
const EMPTY_LINES: Fault =
    Fault("the HTTP request has more before it than up to 8 empty lines, each a CRLF");
const BARE_LF: Fault =
    Fault("the head of the HTTP request has a line feed without carriage return");
const BARE_CR: Fault =
    Fault("the head of the HTTP request has a carriage return without line feed");
const CONTROL_BYTE: Fault = Fault("the head of the HTTP request has a control byte");
const FOLDED: Fault = Fault("the HTTP request has a folded field");
const REQUEST_LINE: Fault = Fault("the HTTP request has a malformed request line");
const VERSION: Fault = Fault("the HTTP request is for a version other than 1.x");
const FIELD: Fault = Fault("the HTTP request has a malformed field");
const TARGET: Fault = Fault("the HTTP request has a malformed target");
const TWO_HOSTS: Fault = Fault("the HTTP request has two Host fields");
const NO_HOST: Fault = Fault("the HTTP request has no Host field");
const HOST: Fault = Fault("the HTTP request has a malformed Host field");
const OTHER_HOST: Fault = Fault("the HTTP request has a Host field that differs from its target");

/// What comes behind a request line, which lacks its line feed.
fn judge(line: &[u8]) -> State {
    if !names_http(line) {
        return match is_simple_request(line) {
            true => State::Broken(VERSION),
            false => State::Other,
        };
    }
    let Some(line) = line.strip_suffix(b"\r") else {
        return State::Broken(BARE_LF);
    };
    if line.contains(&b'\r') {
        return State::Broken(BARE_CR);
    }
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return State::Broken(REQUEST_LINE);
    };
    // Of control bytes only whitespace has come so far.
    if target.is_empty() || !is_method(method) || line.iter().copied().any(is_control) {
        return State::Broken(REQUEST_LINE);
    }
    match version {
        // RFC 9110, section 2.5: a minor version that is not known is as the newest that is.
        [b'H', b'T', b'T', b'P', b'/', b'1', b'.', minor] if minor.is_ascii_digit() => {
            State::Fields
        }
        b"HTTP/2.0" if line == b"PRI * HTTP/2.0" => State::Preface,
        _ => State::Broken(VERSION),
    }
}

/// Whether a server, however lenient, could take a line for one of HTTP/1. Whitespace of Unicode is more than
/// one byte, of which the last is no visible character of ASCII either.
fn names_http(line: &[u8]) -> bool {
    line.windows(6).any(|six| {
        let (space, name) = six.split_at(1);
        !space[0].is_ascii_graphic() && name.eq_ignore_ascii_case(b"HTTP/")
    })
}

/// Whether a server could take a line without version for a request of HTTP/0.9: GET and a target (RFC 1945, section
/// 5). Python's http.server reads a Host behind it. What looks like more words may belong to the target: nginx ends it
/// at a space only, and before 1.21.1 not even there.
fn is_simple_request(line: &[u8]) -> bool {
    let method = line.split(|byte| is_whitespace(*byte)).next();
    method == Some(b"GET") && has_target(line)
}

fn has_registered_method(line: &[u8]) -> bool {
    let method = line.split(|byte| is_whitespace(*byte)).next();
    method.is_some_and(|method| REGISTERED_METHODS.contains(&method))
}

fn is_control(byte: u8) -> bool {
    byte < b' ' || byte == 0x7f
}

/// RFC 9110, section 5.6.2.
fn is_of_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Whether a method and whitespace are followed by what begins the target of a request: a path, or a URI with
/// an authority.
fn has_target(line: &[u8]) -> bool {
    let mut words = line.split(|byte| is_whitespace(*byte)).skip(1);
    let target = words.find(|word| !word.is_empty());
    target.is_some_and(|target| {
        target.starts_with(b"/") || target.windows(3).any(|three| three == b"://")
    })
}

fn are_empty_lines(bytes: &[u8]) -> bool {
    bytes.len() <= 2 * MOST_EMPTY_LINES && bytes.chunks(2).all(|line| line == b"\r\n")
}

/// Parses a head that is complete, and of which the request line and the ends of lines are right.
fn parse(head: &[u8]) -> Result<RequestHead, Fault> {
    let is_of_line = |byte: &u8| !b"\r\n".contains(byte);
    let start = head.iter().position(is_of_line).ok_or(REQUEST_LINE)?;
    let end = head[start..].iter().position(|byte| *byte == b'\n');
    let end = start + end.ok_or(REQUEST_LINE)?;
    let (line, fields) = (&head[start..end], &head[end + 1..]);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(text), Some(version)) = (words.next(), words.next(), words.next())
    else {
        return Err(REQUEST_LINE);
    };
    let text = std::str::from_utf8(text).map_err(|_| TARGET)?;
    // A field has four bytes at least, so that the list takes at most eight times as much memory as the head.
    let lines = fields.iter().filter(|byte| **byte == b'\n').count();
    let mut list = vec![httparse::EMPTY_HEADER; lines];
    let fields = match httparse::parse_headers(fields, &mut list) {
        Ok(httparse::Status::Complete((length, list))) if length == fields.len() => list,
        Ok(_) | Err(_) => return Err(FIELD),
    };
    let target = Target::parse(method, text).ok_or(TARGET)?;
    let mut hosts = fields
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("host"))
        .map(|field| field.value.trim_ascii());
    let host = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(TWO_HOSTS),
        // RFC 9112, section 3.2: what a target without authority comes with.
        (Some([]), None) if target.authority.is_some() => return Err(OTHER_HOST),
        (Some([]), None) => None,
        (Some(host), None) => Some(Authority::parse(host).ok_or(HOST)?),
        (None, None) if version == b"HTTP/1.0" => None,
        (None, None) => return Err(NO_HOST),
    };
    if let (Some(host), Some(authority)) = (&host, &target.authority)
        && !target.agrees(authority, host)
    {
        return Err(OTHER_HOST);
    }
    let has_body = fields.iter().any(|field| {
        let name = field.name;
        // Other ways to write 0 are not worth the risk.
        name.eq_ignore_ascii_case("content-length") && field.value != b"0"
            || name.eq_ignore_ascii_case("transfer-encoding")
    });
    let port = target
        .authority
        .as_ref()
        .filter(|_| method == b"CONNECT")
        .and_then(|authority| authority.port);
    let path = target.path;
    let method = start..start + method.len();
    let shift = method.end + 1;
    Ok(RequestHead {
        method,
        path: path.start + shift..path.end + shift,
        host: target.authority.or(host).map(|authority| authority.host),
        port,
        has_body,
        length_bytes: head.len(),
    })
}

#[cfg(test)]
mod tests;
