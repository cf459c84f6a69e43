//! Which route a connection takes, by what its client has sent so far.
//!
//! Routes are asked in order, and the conditions of a route in order, the cheap ones first. A condition
//! is asked only after the one before it has held, and a route only after the one before it has not. So
//! the decision depends on the bytes and not on how they were cut.
//!
//! A condition that needs more bytes waits for them. At the deadline, and at the end of the stream, what has
//! come is all there is: a condition that is still open does not hold, whatever the bytes could have become, as
//! HAProxy has it behind its inspect delay. So routes that need no bytes are taken, in order, and those that the
//! bytes are enough for. Only where there is none the connection ends. A message that is broken, or longer than
//! the limit, ends it before: its client is not short of time.

use crate::conditions::{Arrival, Conditions, Protocol};
use crate::postgres::{self, FirstMessage};
use crate::progress::{Fault, Progress};
use crate::request_head::{RequestHead, RequestHeadReader};
use crate::signature;
use crate::tls::{ClientHello, ClientHelloReader};

/// What a connection has shown so far, held against a list of routes. One serves one connection and one
/// list of routes: it does not ask a route again that is ruled out.
#[derive(Debug)]
pub struct Inspection {
    limit_bytes: usize,
    /// Routes before this one are ruled out.
    next_route: usize,
    /// The client and the address of the connection are right for the next route. Lists of prefixes may be
    /// long, so they are not searched again for each byte of a client that dribbles.
    next_is_for_arrival: bool,
    hello: Option<ClientHelloReader>,
    request_head: Option<RequestHeadReader>,
    postgres: Postgres,
}

/// Why the inspection is asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The connection is new, or bytes have come. There is time for more.
    ForMore,
    /// The time to decide is over.
    TimedOut,
    /// The client has half-closed its connection.
    Ended,
}

/// What to do with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Wait for more bytes.
    More,
    /// Send this to the client and wait for more bytes. What the client has sent so far was for the proxy,
    /// as [`Inspection::bytes_for_proxy`] counts.
    Reply(&'static [u8]),
    /// Take the route with this index.
    Route(usize),
    /// No route matches: reset the connection.
    NoRoute,
    /// Reset the connection.
    Reset(Fault),
}

/// What a condition says.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Yes,
    No,
    NotYet,
    Reply(&'static [u8]),
    Broken(Fault),
}

/// How far the proxy has talked with a client of PostgreSQL.
///
/// `Unasked` leads to `Encrypted` by a request for TLS that a route with a condition on the hello has to
/// decide, and to `Refused` by such a request for GSSAPI. `Refused` leads to `Encrypted`.
#[derive(Debug)]
enum Postgres {
    /// The proxy has answered nothing.
    Unasked,
    /// The proxy has refused encryption by GSSAPI.
    Refused,
    /// The proxy has agreed to TLS.
    Encrypted {
        /// What is before was for the proxy.
        hello_at: usize,
        hello: ClientHelloReader,
    },
}

impl Inspection {
    /// An inspection that waits for at most `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            next_route: 0,
            next_is_for_arrival: false,
            hello: None,
            request_head: None,
            postgres: Postgres::Unasked,
        }
    }

    /// Decides. `bytes` are all that the client has sent so far, without a PROXY header; read the socket
    /// until it is empty before. `routes` are the same at each call.
    pub fn decide<'a>(
        &mut self,
        routes: impl IntoIterator<Item = &'a Conditions>,
        arrival: &Arrival,
        bytes: &[u8],
        waiting: Waiting,
    ) -> Decision {
        let routes = routes.into_iter().enumerate().skip(self.next_route);
        let mut is_incomplete = false;
        for (index, conditions) in routes {
            let answer = self.ask(conditions, arrival, bytes, waiting);
            match answer {
                Answer::Yes => return Decision::Route(index),
                Answer::Broken(fault) => return Decision::Reset(fault),
                Answer::Reply(reply) => return Decision::Reply(reply),
                Answer::NotYet if waiting == Waiting::ForMore => {
                    return match bytes.len() < self.limit_bytes {
                        true => Decision::More,
                        false => Decision::Reset(TOO_LONG),
                    };
                }
                Answer::No | Answer::NotYet => {
                    is_incomplete |= matches!(answer, Answer::NotYet);
                    self.next_route = index + 1;
                    self.next_is_for_arrival = false;
                }
            }
        }
        match waiting {
            Waiting::TimedOut if is_incomplete => Decision::Reset(TOO_LATE),
            Waiting::Ended if is_incomplete => Decision::Reset(INCOMPLETE),
            _ => Decision::NoRoute,
        }
    }

    /// The server name of the TLS hello, if a condition has made the inspection read one.
    pub fn server_name(&self) -> Option<&str> {
        self.hello()?.server_name()
    }

    /// The TLS hello, if a condition has made the inspection read one.
    pub fn hello(&self) -> Option<&ClientHello> {
        match &self.postgres {
            Postgres::Encrypted { hello, .. } => hello.hello(),
            Postgres::Unasked | Postgres::Refused => self.hello.as_ref()?.hello(),
        }
    }

    /// The host that an HTTP/1 request asks for, if a condition has made the inspection read one.
    pub fn http_host(&self) -> Option<&str> {
        self.request_head.as_ref()?.head()?.host()
    }

    /// How many of the client's first bytes were for the proxy: the server must not get them.
    pub fn bytes_for_proxy(&self) -> usize {
        match self.postgres {
            Postgres::Unasked => 0,
            Postgres::Refused => postgres::REQUEST_BYTES,
            Postgres::Encrypted { hello_at, .. } => hello_at,
        }
    }

    /// Whether the proxy has agreed to a PostgreSQL client's request for TLS. Then it has to send
    /// [`crate::POSTGRES_SSL_REQUEST`] to the server, and swallow an `S`, before it passes bytes on.
    pub fn is_postgres_tls(&self) -> bool {
        matches!(self.postgres, Postgres::Encrypted { .. })
    }

    fn ask(
        &mut self,
        conditions: &Conditions,
        arrival: &Arrival,
        bytes: &[u8],
        waiting: Waiting,
    ) -> Answer {
        if !self.next_is_for_arrival && !holds_on_arrival(conditions, arrival) {
            return Answer::No;
        }
        self.next_is_for_arrival = true;
        if conditions.silent {
            // Conditions on bytes exclude this one.
            return match (bytes, waiting) {
                ([_, ..], _) => Answer::No,
                _ if conditions.need_bytes() => Answer::No,
                ([], Waiting::ForMore) => Answer::NotYet,
                ([], Waiting::TimedOut | Waiting::Ended) => Answer::Yes,
            };
        }
        if !conditions.need_bytes() {
            return Answer::Yes;
        }
        match (bytes, waiting) {
            ([], Waiting::ForMore) => Answer::NotYet,
            ([], Waiting::TimedOut | Waiting::Ended) => Answer::No,
            _ => self.ask_of_bytes(conditions, bytes, waiting),
        }
    }

    fn ask_of_bytes(&mut self, conditions: &Conditions, bytes: &[u8], waiting: Waiting) -> Answer {
        let shown = &bytes[..bytes.len().min(self.limit_bytes)];
        if let Some(patterns) = &conditions.starts_with {
            let answer = Answer::of(signature::begins_with(shown, patterns));
            if !matches!(answer, Answer::Yes) {
                return answer;
            }
        }
        if let Some(protocol) = conditions.protocol
            && let Some(progress) = signature::read(protocol, shown)
        {
            let answer = Answer::of(progress);
            if !matches!(answer, Answer::Yes) {
                return answer;
            }
        }
        let answer = self.ask_of_tls(conditions, bytes, shown, waiting);
        if !matches!(answer, Answer::Yes) {
            return answer;
        }
        if !conditions.ask_for_head() {
            return Answer::Yes;
        }
        let limit_bytes = self.limit_bytes;
        let reader = self
            .request_head
            .get_or_insert_with(|| RequestHeadReader::new(limit_bytes));
        let head = reader.read(shown);
        Answer::of(head.map(|head| is_met_by_head(conditions, head, shown)))
    }

    fn ask_of_tls(
        &mut self,
        conditions: &Conditions,
        bytes: &[u8],
        shown: &[u8],
        waiting: Waiting,
    ) -> Answer {
        if conditions.protocol == Some(Protocol::Postgres) {
            return self.ask_of_postgres(conditions, bytes, shown, waiting);
        }
        if !conditions.ask_for_hello() && conditions.protocol != Some(Protocol::Tls) {
            return Answer::Yes;
        }
        let hello = self.read_hello(shown);
        Answer::of(hello.map(|hello| hello.meets(conditions)))
    }

    fn read_hello(&mut self, shown: &[u8]) -> Progress<&ClientHello> {
        let limit_bytes = self.limit_bytes;
        self.hello
            .get_or_insert_with(|| ClientHelloReader::new(limit_bytes))
            .read(shown)
    }

    fn ask_of_postgres(
        &mut self,
        conditions: &Conditions,
        bytes: &[u8],
        shown: &[u8],
        waiting: Waiting,
    ) -> Answer {
        let start = match &mut self.postgres {
            Postgres::Unasked => 0,
            Postgres::Refused => postgres::REQUEST_BYTES,
            Postgres::Encrypted { hello_at, hello } => {
                return match hello.read(shown.get(*hello_at..).unwrap_or_default()) {
                    Progress::Other => Answer::Broken(NO_HELLO),
                    progress => Answer::of(progress.map(|hello| hello.meets(conditions))),
                };
            }
        };
        let message = match postgres::read(&bytes[start..]) {
            Progress::Complete(message) => message,
            Progress::More => return Answer::NotYet,
            Progress::Other if start == 0 => {
                // A client that needs no request: libpq with sslnegotiation=direct.
                let hello = self.read_hello(shown);
                return Answer::of(
                    hello.map(|hello| hello.offers(POSTGRES_ALPN) && hello.meets(conditions)),
                );
            }
            Progress::Other => return Answer::Broken(NOT_POSTGRES),
            Progress::Broken(fault) => return Answer::Broken(fault),
        };
        match message {
            FirstMessage::GssEncRequest if start > 0 => Answer::Broken(GSSAPI_TWICE),
            _ if !conditions.ask_for_hello() => Answer::Yes,
            FirstMessage::Plain => Answer::No,
            FirstMessage::GssEncRequest | FirstMessage::SslRequest => {
                let hello_at = start + postgres::REQUEST_BYTES;
                // A man in the middle could have put them there: the client would take the answer to them
                // for one that came through TLS (CVE-2021-23222).
                if bytes.len() > hello_at {
                    return Answer::Broken(PIPELINED);
                }
                if waiting != Waiting::ForMore {
                    return Answer::NotYet;
                }
                if message == FirstMessage::GssEncRequest {
                    self.postgres = Postgres::Refused;
                    return Answer::Reply(b"N");
                }
                self.postgres = Postgres::Encrypted {
                    hello_at,
                    hello: ClientHelloReader::new(self.limit_bytes),
                };
                Answer::Reply(b"S")
            }
        }
    }
}

impl Answer {
    fn of(progress: Progress<impl Into<Self>>) -> Self {
        match progress {
            Progress::Complete(answer) => answer.into(),
            Progress::Other => Self::No,
            Progress::More => Self::NotYet,
            Progress::Broken(fault) => Self::Broken(fault),
        }
    }
}

impl From<()> for Answer {
    fn from((): ()) -> Self {
        Self::Yes
    }
}

impl From<bool> for Answer {
    fn from(holds: bool) -> Self {
        if holds { Self::Yes } else { Self::No }
    }
}

/// What PostgreSQL is called in ALPN (IANA).
const POSTGRES_ALPN: &[u8] = b"postgresql";

const TOO_LONG: Fault = Fault("the client has sent too much before a route was clear");
const TOO_LATE: Fault = Fault("the client's first message was not complete in time");
const INCOMPLETE: Fault = Fault("the client closed within its first message");
const PIPELINED: Fault = Fault("the PostgreSQL client sent more than its request for encryption");
const GSSAPI_TWICE: Fault = Fault("the PostgreSQL client asked for GSSAPI twice");
const NO_HELLO: Fault = Fault("the PostgreSQL client asked for TLS and sent something else");
const NOT_POSTGRES: Fault =
    Fault("the PostgreSQL client sent something else after its first request");

fn holds_on_arrival(conditions: &Conditions, arrival: &Arrival) -> bool {
    let clients = conditions.clients.as_ref().is_none_or(|prefixes| {
        arrival
            .client
            .is_some_and(|client| prefixes.contain(client.ip()))
    });
    let local_addresses = conditions.local_addresses.as_ref().is_none_or(|prefixes| {
        let contains = |ip| prefixes.iter().any(|prefix| prefix.contains(ip));
        arrival.local.is_some_and(|local| contains(local.ip()))
    });
    let local_ports = conditions.local_ports.as_ref().is_none_or(|ports| {
        arrival
            .local
            .is_some_and(|local| ports.contains(&local.port()))
    });
    local_ports && local_addresses && clients
}

fn is_met_by_head(conditions: &Conditions, head: &RequestHead, bytes: &[u8]) -> bool {
    let hosts = conditions.http_hosts.as_ref().is_none_or(|patterns| {
        let matches = |host| patterns.iter().any(|pattern| pattern.matches(host));
        head.host().is_some_and(matches)
    });
    let methods = conditions.http_methods.as_ref().is_none_or(|methods| {
        let method = head.method(bytes);
        methods.iter().any(|it| it.as_bytes() == method)
    });
    let paths = conditions.http_paths.as_ref().is_none_or(|paths| {
        let path = head.path(bytes);
        paths.iter().any(|it| path.starts_with(it.as_bytes()))
    });
    hosts && methods && paths
}

#[cfg(test)]
mod cuts;
#[cfg(test)]
mod half_messages;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
