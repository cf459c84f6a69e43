//! A client's connection from accept to the join with the target, and its end.
//!
//! ```text
//!                            connected
//! accepted ──▶ Connecting ─────────────▶ joined (a pair takes over)
//!               │ ▲  │ ▲
//!       no room │ │  └─┘ refused, or its share of the time is over: the next address
//!               ▼ │
//!             NoRoom     after NO_ROOM_RETRY: the same address
//!
//! either ──no address left, connect timeout, reset by client, shutdown──▶ over
//! ```
//!
//! What the client sends meanwhile stays in its socket, unread; TCP flow control stops the client when
//! the socket is full. Without a target, or past the connect timeout, the client gets a reset.

mod record;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{getpeername, sockopt};
use splice::{Context, Endpoint, Interest, Kind, Readiness, SegmentSize, Step, Task, pair_task};

use self::record::Record;
use crate::connection_limit::ConnectionPermit;
use crate::resource_limit::limit_met;
use crate::service::Service;
use crate::socket_address::SocketAddress;
use crate::target::Target;

const CLIENT: u8 = 0;
const TARGET: u8 = 1;

/// The pause before the same address is tried again, after the backlog of a UNIX socket was full or
/// descriptors or memory were used up. The kernel signals nothing when there is room again
/// (`unix_stream_connect`).
const NO_ROOM_RETRY: Duration = Duration::from_millis(10);

pub(crate) struct Connection {
    /// `None` once the pair has it, or it was reset.
    client: Option<OwnedFd>,
    client_kind: Kind,
    client_readiness: Readiness,
    target: Option<OwnedFd>,
    target_readiness: Readiness,
    addresses: Arc<[SocketAddress]>,
    /// The index of the address that is being tried.
    address: usize,
    state: State,
    last_error: Option<Errno>,
    deadline: Instant,
    record: Option<Record>,
    service: Arc<Service>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// Waiting to try the same address again.
    NoRoom,
}

impl Connection {
    pub(crate) fn new(
        client: OwnedFd,
        client_kind: Kind,
        client_address: Option<SocketAddress>,
        permit: ConnectionPermit,
        target: Arc<Target>,
        service: Arc<Service>,
    ) -> Self {
        let now = Instant::now();
        Self {
            client: Some(client),
            client_kind,
            client_readiness: Readiness::WRITABLE,
            target: None,
            target_readiness: Readiness::NONE,
            addresses: target.addresses(),
            address: 0,
            state: State::Connecting,
            last_error: None,
            deadline: now + service.connect_timeout,
            record: Some(Record::new(
                client_address,
                target,
                permit,
                Arc::clone(&service),
            )),
            service,
        }
    }

    /// Tries the addresses, from the current one on, until one does not fail at once.
    fn connect(&mut self, cx: &mut Context<'_>) -> Step {
        self.state = State::Connecting;
        if self.addresses.is_empty() {
            let why = self
                .record
                .as_ref()
                .map(|record| record.wanted().why_nowhere());
            return self.fail(&format!("no target: {}", why.unwrap_or_default()));
        }
        while let Some(address) = self.addresses.get(self.address) {
            let socket = match address.socket() {
                Ok(socket) => socket,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.wait_for_room(cx, errno);
                }
                Err(errno) => {
                    self.last_error = Some(errno);
                    self.address += 1;
                    continue;
                }
            };
            if self.service.translates_segments() {
                self.fit_segments(address.kind(), &socket);
            }
            let connected = address.connect(&socket);
            match connected {
                Ok(()) | Err(Errno::INPROGRESS) => {
                    if let Err(error) = cx.register(&socket, TARGET, Interest::STREAM) {
                        return self.fail(&format!("no target: {error}"));
                    }
                    self.target = Some(socket);
                    if connected.is_ok() {
                        self.target_readiness = Readiness::WRITABLE;
                        return self.connected(cx);
                    }
                    self.set_deadline_of_attempt(cx);
                    return Step::Wait;
                }
                Err(Errno::AGAIN) if address.kind() == Kind::Unix => {
                    return self.wait_for_room(cx, Errno::AGAIN);
                }
                Err(errno) => {
                    self.last_error = Some(errno);
                    self.address += 1;
                }
            }
        }
        let errno = self.last_error.unwrap_or(Errno::ADDRNOTAVAIL);
        self.fail(&format!("no target: {}", words(errno)))
    }

    /// Makes the target send segments that are no larger than the client accepts.
    fn fit_segments(&self, kind: Kind, target: &OwnedFd) {
        if let Some(client) = &self.client
            && self.client_kind != Kind::Unix
            && kind != Kind::Unix
        {
            // If this fails, the engine refuses the pair and says why.
            let _ = SegmentSize::taken_by_peer(client).and_then(|size| size.announce_on(target));
        }
    }

    fn wait_for_room(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.last_error = Some(errno);
        self.state = State::NoRoom;
        cx.set_deadline(Some(self.deadline.min(cx.now() + NO_ROOM_RETRY)));
        Step::Wait
    }

    /// Gives each address an equal share of the time that is left, so that an address which does not
    /// answer leaves time for the others.
    fn set_deadline_of_attempt(&self, cx: &mut Context<'_>) {
        let left = self.deadline.saturating_duration_since(cx.now());
        let share = left / (self.addresses.len() - self.address) as u32;
        cx.set_deadline(Some(cx.now() + share));
    }

    fn try_next(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.last_error = Some(errno);
        self.abandon_target();
        self.target_readiness = Readiness::NONE;
        self.address += 1;
        self.connect(cx)
    }

    /// Joins the client with the target, unless TCP has connected the socket with itself (simultaneous
    /// open). That happens if nobody listens and the target's port is picked for this end.
    fn connected(&mut self, cx: &mut Context<'_>) -> Step {
        let address = &self.addresses[self.address];
        if self
            .target
            .as_ref()
            .is_some_and(|target| address.is_itself(target))
        {
            return self.try_next(cx, Errno::CONNREFUSED);
        }
        self.join()
    }

    fn join(&mut self) -> Step {
        let (Some(client), Some(target), Some(mut record)) =
            (self.client.take(), self.target.take(), self.record.take())
        else {
            return Step::Done;
        };
        let address = &self.addresses[self.address];
        record.connected_to(address.clone());
        let pair = pair_task(
            Endpoint::prepared(client, self.client_kind),
            Endpoint::prepared(target, address.kind()),
            &self.service.options,
            Some([self.client_readiness, self.target_readiness]),
            move |outcome| record.ended(&outcome),
        );
        match pair {
            Ok(pair) => Step::Become(pair),
            Err(error) => {
                self.service
                    .warnings
                    .engine_refused
                    .emit(|_| tracing::error!("{error}"));
                Step::Done
            }
        }
    }

    /// Resets the connection to the target. It may be established by now, and the target must not see
    /// an end of stream.
    fn abandon_target(&mut self) {
        if let Some(target) = self.target.take() {
            // This fails only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(&target, Some(Duration::ZERO));
        }
    }

    /// " from" and the address of the client. Most UNIX sockets have none: then it is empty.
    fn client_name(&self) -> String {
        // Looked up only here, since most connections never need it.
        let peer = self
            .client
            .as_ref()
            .and_then(|client| getpeername(client).ok());
        match SocketAddress::from_kernel(peer.flatten()).map(|address| address.to_string()) {
            Some(name) if name != "unix:" => format!(" from {name}"),
            _ => String::new(),
        }
    }

    /// Ends without a target: the client gets a reset, since it could take an end of stream for an
    /// empty answer.
    fn fail(&mut self, why: &str) -> Step {
        if let Some(record) = &self.record {
            self.service.warnings.target_unreachable.emit(|suppressed| {
                tracing::warn!(
                    "connection {}{} to {} was reset: {why}{}",
                    record.id(),
                    self.client_name(),
                    record.wanted().address,
                    match suppressed {
                        0 => String::new(),
                        count => format!(" ({count} more like it since the last warning)"),
                    }
                );
            });
        }
        if let Some(client) = self.client.take()
            && self.client_kind != Kind::Unix
        {
            // This fails only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(&client, Some(Duration::ZERO));
        }
        self.abandon_target();
        if let Some(record) = self.record.take() {
            record.write(None, why);
        }
        Step::Done
    }
}

impl Task for Connection {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(client) = &self.client else {
            return Step::Done;
        };
        if let Err(error) = cx.register(client, CLIENT, Interest::STREAM) {
            return self.fail(&format!("no event loop: {error}"));
        }
        self.connect(cx)
    }

    fn ready(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        if source == CLIENT {
            self.client_readiness = self.client_readiness.and(readiness);
            if readiness.has_error() {
                self.client = None;
                self.abandon_target();
                if let Some(record) = self.record.take() {
                    record.write(None, "reset by client before the target was reached");
                }
                return Step::Done;
            }
            return Step::Wait;
        }
        self.target_readiness = self.target_readiness.and(readiness);
        let Some(target) = &self.target else {
            return Step::Wait;
        };
        if !readiness.is_writable() {
            return Step::Wait;
        }
        if !readiness.is_broken() {
            return self.connected(cx);
        }
        match sockopt::socket_error(target) {
            Ok(Ok(())) => self.connected(cx),
            Ok(Err(errno)) | Err(errno) => self.try_next(cx, errno),
        }
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        if cx.now() >= self.deadline {
            let timeout = humantime::format_duration(self.service.connect_timeout);
            let why = match self.last_error {
                Some(Errno::AGAIN) => {
                    format!(
                        "no target: its backlog stayed full for the connect timeout of {timeout}"
                    )
                }
                Some(errno) => format!("no target: {}", words(errno)),
                None => {
                    format!("no target: it did not answer within the connect timeout of {timeout}")
                }
            };
            return self.fail(&why);
        }
        match self.state {
            State::NoRoom => self.connect(cx),
            State::Connecting => self.try_next(cx, Errno::TIMEDOUT),
        }
    }

    fn close(&mut self, _cx: &mut Context<'_>) {
        self.service.cut_short.fetch_add(1, Ordering::Relaxed);
        self.fail("shutdown before the target was reached");
    }
}

/// The limit that was met, or the system's text for an error number, without the number.
fn words(errno: Errno) -> String {
    if let Some(limit) = limit_met(errno) {
        return limit;
    }
    let text = std::io::Error::from(errno).to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_lowercase()
}
