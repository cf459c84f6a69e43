//! The head of an HTTP/1 request.
//!
//! A reader looks at each byte once, in one of these states, and parses the head once, at its end:
//!
//! - `Method`: nothing but characters of a method, or empty lines, has come. A space or tab leads to
//!   `RequestLine`, any other byte to `Other`, and so does a method that fills the limit.
//! - `RequestLine`: the end of the line decides. A line without ` HTTP/` leads to `Other`: it is another
//!   protocol of text lines. Any other line has to be right: it leads to `Fields` or to `Broken`.
//! - `Fields`: an empty line leads to `Complete`, anything that servers read in different ways to `Broken`.
//! - `Other`, `Broken`, `Complete`: final.

use std::ops::Range;

use crate::authority::Authority;
use crate::progress::{Fault, Progress};

/// HAProxy takes 101 fields, Apache 100. Bounds the memory of one parse.
const MOST_FIELDS: usize = 128;

/// What starts HTTP and nothing else: the methods of RFC 9110 and RFC 5789.
const KNOWN_METHODS: [&[u8]; 9] = [
    b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"CONNECT", b"OPTIONS", b"TRACE", b"PATCH",
];

/// The head of a request. It keeps offsets, so that it is small while a connection waits: give its
/// methods the bytes that it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    method_bytes: usize,
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
        bytes.get(..self.method_bytes).unwrap_or_default()
    }

    /// The path as it was sent, without the query: percent-encoding is not decoded, `..` not resolved. So
    /// it is good for routing, and useless for access control. Empty for `OPTIONS *` and `CONNECT`.
    pub fn path<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        bytes.get(self.path.clone()).unwrap_or_default()
    }

    /// The host that is asked for, in lower case, without port and trailing dot. Only an HTTP/1.0 request
    /// may have none.
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

    /// From the first byte to the end of the empty line behind the fields.
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
        if bytes.len() == self.limit_bytes {
            match self.state {
                // Not a request that any server takes, but perhaps a stream of text.
                State::Method => self.state = State::Other,
                State::RequestLine | State::Fields => self.state = State::Broken(TOO_LONG),
                State::Other | State::Broken(_) | State::Complete(_) => {}
            }
        }
        match &self.state {
            State::Method | State::RequestLine | State::Fields => Progress::More,
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

    /// Reads up to the next change of state. `None` if there is none in `bytes`.
    fn step(&mut self, bytes: &[u8], byte: u8) -> Option<State> {
        let decide = match self.state {
            State::Method => Self::in_method,
            State::RequestLine => Self::in_request_line,
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
            // Servers skip empty lines. They are judged with the request line.
            b'\r' | b'\n' if length == 0 => {
                self.line += 1;
                None
            }
            // HAProxy takes a tab for a space.
            b' ' | b'\t' if length > 0 => Some(State::RequestLine),
            _ if is_token(byte) => None,
            _ => Some(State::Other),
        }
    }

    fn in_request_line(&mut self, bytes: &[u8], byte: u8) -> Option<State> {
        let line = &bytes[self.line..self.position];
        match byte {
            b'\n' => {
                let next = match (self.line, judge(line)) {
                    (1.., State::Fields) => State::Broken(EMPTY_LINE),
                    (_, next) => next,
                };
                self.line = self.position + 1;
                Some(next)
            }
            b'\r' | b'\t' => None,
            _ if !is_control(byte) => None,
            // Other protocols send a word, a space and then binary data.
            _ if names_http(line) || has_known_method(line) => Some(State::Broken(CONTROL_BYTE)),
            _ => Some(State::Other),
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
const EMPTY_LINE: Fault = Fault("the HTTP request has an empty line before it");
const BARE_LF: Fault =
    Fault("the head of the HTTP request has a line feed without carriage return");
const BARE_CR: Fault =
    Fault("the head of the HTTP request has a carriage return without line feed");
const CONTROL_BYTE: Fault = Fault("the head of the HTTP request has a control byte");
const FOLDED: Fault = Fault("the HTTP request has a folded field");
const REQUEST_LINE: Fault = Fault("the HTTP request has a malformed request line");
const VERSION: Fault = Fault("the HTTP request is for a version other than 1.0 and 1.1");
const FIELD: Fault = Fault("the HTTP request has a malformed field");
const TOO_MANY_FIELDS: Fault = Fault("the HTTP request has too many fields");
const TARGET: Fault = Fault("the HTTP request has a malformed target");
const TWO_HOSTS: Fault = Fault("the HTTP request has two Host fields");
const NO_HOST: Fault = Fault("the HTTP request has no Host field");
const HOST: Fault = Fault("the HTTP request has a malformed Host field");
const OTHER_HOST: Fault = Fault("the HTTP request has a Host field that differs from its target");

/// What comes behind a request line, which lacks its line feed.
fn judge(line: &[u8]) -> State {
    if !names_http(line) {
        return State::Other;
    }
    let Some(line) = line.strip_suffix(b"\r") else {
        return State::Broken(BARE_LF);
    };
    if line.contains(&b'\r') {
        return State::Broken(BARE_CR);
    }
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(_), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return State::Broken(REQUEST_LINE);
    };
    if target.is_empty() || line.contains(&b'\t') {
        return State::Broken(REQUEST_LINE);
    }
    match version {
        b"HTTP/1.0" | b"HTTP/1.1" => State::Fields,
        // The preface of HTTP/2 is made to look like this (RFC 9113, section 3.4).
        b"HTTP/2.0" if line == b"PRI * HTTP/2.0" => State::Other,
        _ => State::Broken(VERSION),
    }
}

/// Whether a server, however lenient, could take a line for one of HTTP/1.
fn names_http(line: &[u8]) -> bool {
    line.windows(6).any(|six| {
        let (space, name) = six.split_at(1);
        b" \t\r".contains(&space[0]) && name.eq_ignore_ascii_case(b"HTTP/")
    })
}

fn has_known_method(line: &[u8]) -> bool {
    let method = line.split(|byte| b" \t".contains(byte)).next();
    method.is_some_and(|method| KNOWN_METHODS.contains(&method))
}

fn is_control(byte: u8) -> bool {
    byte < b' ' || byte == 0x7f
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// Parses a head that is complete, and of which the request line and the ends of lines are right.
fn parse(head: &[u8]) -> Result<RequestHead, Fault> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(head) {
        Ok(httparse::Status::Complete(length)) if length == head.len() => {}
        Err(httparse::Error::TooManyHeaders) => return Err(TOO_MANY_FIELDS),
        Err(httparse::Error::Token) => return Err(TARGET),
        Ok(_) | Err(_) => return Err(FIELD),
    }
    let (Some(method), Some(text), Some(version)) = (request.method, request.path, request.version)
    else {
        return Err(REQUEST_LINE);
    };
    let target = Target::parse(method, text).ok_or(TARGET)?;
    let mut hosts = request
        .headers
        .iter()
        .filter(|field| field.name.eq_ignore_ascii_case("host"));
    let host = match (hosts.next(), hosts.next()) {
        (_, Some(_)) => return Err(TWO_HOSTS),
        (Some(field), None) => Some(Authority::parse(field.value.trim_ascii()).ok_or(HOST)?),
        (None, None) if version == 0 => None,
        (None, None) => return Err(NO_HOST),
    };
    if let (Some(host), Some(authority)) = (&host, &target.authority)
        && !target.agrees(authority, host)
    {
        return Err(OTHER_HOST);
    }
    let has_body = request.headers.iter().any(|field| {
        let name = field.name;
        // Other ways to write 0 are not worth the risk.
        name.eq_ignore_ascii_case("content-length") && field.value != b"0"
            || name.eq_ignore_ascii_case("transfer-encoding")
    });
    let port = target
        .authority
        .as_ref()
        .filter(|_| method == "CONNECT")
        .and_then(|authority| authority.port);
    let path = target.path;
    let shift = method.len() + 1;
    Ok(RequestHead {
        method_bytes: method.len(),
        path: path.start + shift..path.end + shift,
        host: target.authority.or(host).map(|authority| authority.host),
        port,
        has_body,
        length_bytes: head.len(),
    })
}

/// The target of a request (RFC 9112, section 3.2).
struct Target {
    authority: Option<Authority>,
    /// Of the authority, if its scheme has one.
    default_port: Option<u16>,
    path: Range<usize>,
}

impl Target {
    fn parse(method: &str, text: &str) -> Option<Self> {
        let mut target = Self {
            authority: None,
            default_port: None,
            path: 0..0,
        };
        if method == "CONNECT" {
            let authority = Authority::parse(text.as_bytes())?;
            authority.port?;
            target.authority = Some(authority);
            return Some(target);
        }
        if text == "*" && method == "OPTIONS" {
            return Some(target);
        }
        let mut path = 0;
        if !text.starts_with('/') {
            let (scheme, rest) = text.split_once("://")?;
            if scheme.is_empty() || !scheme.bytes().all(is_of_scheme) {
                return None;
            }
            let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
            target.authority = Some(Authority::parse(&rest.as_bytes()[..end])?);
            target.default_port = default_port(scheme);
            path = scheme.len() + 3 + end;
        }
        let rest = &text[path..];
        target.path = path..path + rest.find(['?', '#']).unwrap_or(rest.len());
        Some(target)
    }

    /// Whether a Host field names the same. The port that it leaves out is that of the scheme; for
    /// CONNECT, which has no scheme, it is any.
    fn agrees(&self, authority: &Authority, host: &Authority) -> bool {
        let ports = match (host.port.or(self.default_port), self.default_port) {
            (None, None) => true,
            (port, default) => port == authority.port.or(default),
        };
        host.host == authority.host && ports
    }
}

fn default_port(scheme: &str) -> Option<u16> {
    match &*scheme.to_ascii_lowercase() {
        "http" | "ws" => Some(80),
        "https" | "wss" => Some(443),
        _ => None,
    }
}

/// RFC 3986, section 3.1.
fn is_of_scheme(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+-.".contains(&byte)
}

#[cfg(test)]
mod tests;
