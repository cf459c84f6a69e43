//! A client's connection from accept to the join with a server, and its end.
//!
//! ```text
//!              a PROXY header is required
//! accepted ─┬─▶ ReadingHeader ─┐
//!           └──────────────────┴▶ Deciding ──a route──▶ choosing a server ──▶ [AwaitingName] ──▶ Connecting
//!                                                         │    ▲  ▲                               │ ▲ │ ▲
//!                        every server is at its limit     ▼    │  │                      no room  ▼ │ └─┘ another address
//!                                                       Queued─┘  │                             NoRoom    (`race.rs`)
//!                                                                 └─no address, or no time left: the next server
//! Connecting ──connected──▶ [AskingForTls] ──▶ Sending ──everything written──▶ joined (a pair takes over)
//!
//! any ──no route, no server left, out of time, reset by client, shutdown──▶ over
//! ```
//!
//! A connection whose route needs no byte skips Deciding; what its client sends stays in the socket. Bytes
//! that a decision needs are read, kept until a server is connected, and written there. Without a route or
//! a server the client gets a reset.
//!
//! A deadline may pass before the event loop has seen what came in time: a signal that stops the process ends
//! epoll_wait(2) without events. So each state that waits for the client reads its socket once more.

mod attempt;
mod blame;
mod connecting;
mod deciding;
mod ending;
mod first_bytes;
mod joining;
mod record;
mod requested;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use splice::{Context, Interest, Kind, Readiness, Step, Task};
use splice_route::proxy_protocol::{Header, HeaderReader};
use splice_route::{Arrival, Inspection};

use self::attempt::{Attempt, Place};
use self::first_bytes::FirstBytes;
use self::record::Record;
use self::requested::Asked;
use crate::backend::{Backend, Resolution, Ticket, Tried};
use crate::connect_error::{Fault, told};
use crate::connection_limit::ConnectionPermit;
use crate::service::{Counts, Service, Terms};
use crate::sessions::{KILLED, Phase};
use crate::socket_address::SocketAddress;
use crate::tally::Ending;
use crate::target::Question;

const CLIENT: u8 = 0;
const SERVER: u8 = 1;

/// What `EAGAIN` of a UNIX socket means, in words.
const BACKLOG_FULL: &str = "its backlog stays full";

/// The pause before the same address is tried again, after the backlog of a UNIX socket was full or
/// descriptors or memory were used up. The kernel signals nothing when there is room again
/// (`unix_stream_connect`).
const NO_ROOM_RETRY: Duration = Duration::from_millis(10);

pub(crate) struct Connection {
    /// `None` once the pair has it, or it was reset.
    client: Option<OwnedFd>,
    client_kind: Kind,
    client_readiness: Readiness,
    server: Option<OwnedFd>,
    server_readiness: Readiness,
    arrival: Arrival,
    /// The context identifier of a client of VSOCK.
    client_cid: Option<u32>,
    first_bytes: FirstBytes,
    /// The PROXY header that the client's proxy has sent.
    header: Option<Box<Header>>,
    state: State,
    attempt: Option<Attempt>,
    /// What the next socket to a server is registered as.
    next_source: u8,
    /// The server has to be asked for TLS before it gets the hello, as PostgreSQL does it.
    asks_for_tls: bool,
    asked: Option<Box<Asked>>,
    connect_timeout: Duration,
    fallback: Option<Arc<Backend>>,
    tried: Tried,
    last_error: Option<Errno>,
    /// Of the address that it came from, if it came from one.
    last_kind: Option<Kind>,
    deadline: Instant,
    record: Option<Record>,
    terms: Arc<Terms>,
    service: Arc<Service>,
}

enum State {
    /// The PROXY header is not complete.
    ReadingHeader(HeaderReader),
    Deciding(Box<Inspection>),
    /// The client has not said where it wants to go.
    Negotiating,
    /// The name that the client asks for is being resolved.
    Resolving(Resolution),
    /// Every server is at its limit of connections.
    Queued {
        backend: Arc<Backend>,
        ticket: Ticket,
        until: Instant,
    },
    /// The name of the server is being resolved.
    AwaitingName {
        _question: Question,
    },
    Connecting,
    /// Waiting to try the same address again.
    NoRoom,
    /// The bytes for the server, and how many of them it has.
    Sending {
        bytes: Vec<u8>,
        sent: usize,
        /// They are ours; the client's follow.
        is_preface: bool,
    },
    /// A PostgreSQL server was asked whether it does TLS.
    AskingForTls,
}

impl Connection {
    pub(crate) fn new(
        client: OwnedFd,
        client_kind: Kind,
        client_address: Option<SocketAddress>,
        permit: ConnectionPermit,
        terms: Arc<Terms>,
        service: Arc<Service>,
    ) -> Self {
        let now = Instant::now();
        let arrival = Arrival {
            client: client_address.as_ref().and_then(SocketAddress::inet),
            local: None,
        };
        let client_cid = client_address.as_ref().and_then(SocketAddress::vsock);
        let client_cid = client_cid.map(|vsock| vsock.cid);
        Self {
            client: Some(client),
            client_kind,
            client_readiness: Readiness::WRITABLE,
            server: None,
            server_readiness: Readiness::NONE,
            arrival,
            client_cid,
            first_bytes: FirstBytes::default(),
            header: None,
            state: State::Connecting,
            attempt: None,
            next_source: SERVER,
            asks_for_tls: false,
            asked: None,
            connect_timeout: Duration::ZERO,
            fallback: None,
            tried: Tried::default(),
            last_error: None,
            last_kind: None,
            deadline: now + terms.plan.decide_within,
            record: Some(Record::new(
                client_address,
                permit,
                Arc::clone(&terms),
                Arc::clone(&service),
            )),
            terms,
            service,
        }
    }
}

impl Connection {
    fn place(&self) -> Option<&Place> {
        self.attempt.as_ref()?.place.as_ref()
    }

    /// The server has not taken the connection.
    fn note(&mut self, errno: Errno) {
        if let Some(attempt) = &mut self.attempt {
            attempt.note(errno, Fault::Server);
        }
    }
}

impl Connection {
    fn accepted(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(client) = &self.client else {
            return Step::Done;
        };
        if let Err(error) = cx.register(client, CLIENT, Interest::STREAM) {
            return self.fail(&format!("no event loop: {error}"));
        }
        if let Some(record) = &mut self.record {
            record.enter(|| cx.waker());
        }
        Counts::add(&self.service.counts.accepted);
        if let Err(error) = self.pace(client, self.client_kind) {
            return self.fail_to_pace(&error);
        }
        if self.terms.plan.require_proxy_from.is_some() {
            return self.expect_header(cx);
        }
        if self.terms.asks_for_local_address {
            self.arrival.local = self.local();
        }
        self.admit(cx)
    }

    fn act_on(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        if source == CLIENT {
            self.client_readiness = self.client_readiness.and(readiness);
            if readiness.has_error() {
                return self.reset_by_client("before the target was reached");
            }
            return match self.state {
                State::ReadingHeader(_) => self.read_header(cx),
                State::Negotiating => self.negotiate(cx),
                State::Resolving(_) if readiness.is_hung_up() => self.gone_while_resolving(),
                _ => self.decide(cx, false),
            };
        }
        if self.server.is_none() {
            return self.heard(cx, source, readiness);
        }
        if source != SERVER {
            // One that has lost the race.
            return Step::Wait;
        }
        self.server_readiness = self.server_readiness.and(readiness);
        if matches!(self.state, State::AskingForTls) {
            return self.read_tls_answer(cx);
        }
        if !readiness.is_writable() {
            return Step::Wait;
        }
        match self.state {
            State::Sending { .. } => self.send(cx),
            _ => Step::Wait,
        }
    }

    fn out_of_time(&mut self, cx: &mut Context<'_>) -> Step {
        match &self.state {
            State::ReadingHeader(_) => {
                let step = self.read_header(cx);
                match self.state {
                    State::ReadingHeader(_) if matches!(step, Step::Wait) => {
                        self.refuse_header("its PROXY header did not come in time")
                    }
                    _ => step,
                }
            }
            State::Deciding(_) => self.decide(cx, true),
            State::Negotiating => {
                let step = self.negotiate(cx);
                match self.state {
                    State::Negotiating if matches!(step, Step::Wait) => {
                        self.refuse_request("it did not ask for a destination in time")
                    }
                    _ => step,
                }
            }
            State::Resolving(_) => {
                self.fail("its name could not be resolved within the connect timeout")
            }
            State::Queued { .. } => {
                Counts::add(&self.service.counts.queue_timeout);
                self.give_up(
                    "no server was free within the time in the queue",
                    Ending::QueueTimeout,
                )
            }
            State::Sending { .. } => self.fail("the target does not take the first bytes"),
            State::AskingForTls => self.fail("the target does not answer when asked for TLS"),
            State::Connecting | State::NoRoom if cx.now() >= self.deadline => {
                let timeout = humantime::format_duration(self.connect_timeout);
                self.tell_shortage();
                let why = match self.last_error {
                    Some(Errno::AGAIN) => format!(
                        "no target: its backlog stayed full for the connect timeout of {timeout}"
                    ),
                    Some(errno) => format!("no target: {}", told(errno, self.last_kind)),
                    None => format!(
                        "no target: it did not answer within the connect timeout of {timeout}"
                    ),
                };
                let hint = self.place().map(|place| self.hint(&place.backend));
                let why = why + hint.unwrap_or_default();
                match (&self.state, self.last_error) {
                    (State::Connecting, _) => {
                        self.note(Errno::TIMEDOUT);
                        self.blame("it does not answer within the connect timeout");
                    }
                    (_, Some(Errno::AGAIN)) => {
                        self.note(Errno::AGAIN);
                        self.blame(BACKLOG_FULL);
                    }
                    _ => {}
                }
                self.fail(&why)
            }
            State::NoRoom => self.try_again(cx),
            State::AwaitingName { .. } => self.waited_for_name(cx),
            State::Connecting => self.out_of_time_or_connect(cx, Errno::TIMEDOUT),
        }
    }

    /// A server has become free.
    fn go_on(&mut self, cx: &mut Context<'_>) -> Step {
        match &self.state {
            State::Queued { backend, .. } => {
                let backend = Arc::clone(backend);
                self.choose(cx, backend)
            }
            State::Resolving(_) => self.resolved(cx),
            State::AwaitingName { .. } => self.look_up(cx),
            _ => Step::Wait,
        }
    }

    /// Tells those who read the session how far it has come.
    fn tell(&self, step: Step) -> Step {
        if let Some(record) = &self.record {
            record.is_in(match self.state {
                State::ReadingHeader(_)
                | State::Deciding(_)
                | State::Negotiating
                | State::Resolving(_) => Phase::Deciding,
                State::Queued { .. } => Phase::Queued,
                State::AwaitingName { .. }
                | State::Connecting
                | State::NoRoom
                | State::Sending { .. }
                | State::AskingForTls => Phase::Connecting,
            });
        }
        step
    }
}

impl Task for Connection {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        let step = self.accepted(cx);
        self.tell(step)
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        let step = self.act_on(cx, source, readiness);
        self.tell(step)
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        let step = self.out_of_time(cx);
        self.tell(step)
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        let step = self.go_on(cx);
        self.tell(step)
    }

    fn close(&mut self, _cx: &mut Context<'_>) {
        match &self.record {
            Some(record) if record.is_killed() => {
                drop(self.reset(KILLED, Ending::Killed));
            }
            Some(record) if record.is_cut() => {
                drop(self.reset("its listener was removed", Ending::ListenerRemoved));
            }
            _ if self.place().is_some_and(|place| place.seat.is_cut()) => {
                drop(self.reset("its server was removed", Ending::ServerRemoved));
            }
            _ => {
                let cut_short = &self.service.process.cut_short;
                cut_short.fetch_add(1, Ordering::Relaxed);
                Counts::add(&self.service.counts.without_server);
                let why = "shutdown before the target was reached";
                self.give_up(why, Ending::CutShort);
            }
        }
    }
}
