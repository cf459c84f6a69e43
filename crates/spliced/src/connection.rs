//! A client's connection from being accepted to being joined with the target, and its end.
//!
//! ```text
//!                            connected
//! accepted ──▶ Connecting ─────────────▶ joined (a pair takes over)
//!               │ ▲  │ ▲
//!       no room │ │  └─┘ refused, or its share of the time is over: the next place
//!               ▼ │
//!             NoRoom     a little later: the same place
//!
//! either ──no place left, connect timeout, reset by client, shutdown──▶ over
//! ```
//!
//! What the client sends meanwhile waits in its socket, unread, and holds the client back when
//! that is full. Without a target, or past the connect timeout, the client gets a reset.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{getpeername, sockopt};
use splice::{
    Context, Endpoint, Interest, Kind, Outcome, Readiness, Reason, SegmentSize, Side, Step, Task,
    pair_task,
};

use crate::access_log::Entry;
use crate::live::Alive;
use crate::place::Place;
use crate::relay::Relay;
use crate::shortage::limit_met;
use crate::target::Target;

const CLIENT: u8 = 0;
const TARGET: u8 = 1;

/// How long until a place is tried again after the backlog of a UNIX socket was full, or
/// descriptors or memory were used up. The kernel tells nobody when there is room
/// (`unix_stream_connect`).
const NO_ROOM_RETRY: Duration = Duration::from_millis(10);

pub(crate) struct Connection {
    /// `None` once it was handed on or reset.
    client: Option<OwnedFd>,
    client_kind: Kind,
    client_readiness: Readiness,
    target: Option<OwnedFd>,
    target_readiness: Readiness,
    places: Arc<[Place]>,
    /// Which of the places is being tried.
    place: usize,
    state: State,
    last_error: Option<Errno>,
    deadline: Instant,
    record: Option<Record>,
    relay: Arc<Relay>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    /// Waiting to try the same place again.
    NoRoom,
}

/// What is told about a connection when it has ended.
struct Record {
    id: u64,
    client: Option<Place>,
    /// What it was connected to.
    target: Option<Place>,
    wanted: Arc<Target>,
    accepted_at: Instant,
    relay: Arc<Relay>,
    _alive: Alive,
}

impl Connection {
    pub(crate) fn new(
        client: OwnedFd,
        client_kind: Kind,
        peer: Option<Place>,
        alive: Alive,
        target: Arc<Target>,
        relay: Arc<Relay>,
    ) -> Self {
        let now = Instant::now();
        let id = relay.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            client: Some(client),
            client_kind,
            client_readiness: Readiness::WRITABLE,
            target: None,
            target_readiness: Readiness::NONE,
            places: target.places(),
            place: 0,
            state: State::Connecting,
            last_error: None,
            deadline: now + relay.connect_timeout,
            record: Some(Record {
                id,
                client: peer,
                target: None,
                wanted: target,
                accepted_at: now,
                relay: Arc::clone(&relay),
                _alive: alive,
            }),
            relay,
        }
    }

    /// Tries the places from the present one on until one does not fail at once.
    fn connect(&mut self, cx: &mut Context<'_>) -> Step {
        self.state = State::Connecting;
        if self.places.is_empty() {
            let why = self
                .record
                .as_ref()
                .map(|record| record.wanted.why_nowhere());
            return self.fail(&format!("no target: {}", why.unwrap_or_default()));
        }
        while let Some(place) = self.places.get(self.place) {
            let socket = match place.socket() {
                Ok(socket) => socket,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.wait_for_room(cx, errno);
                }
                Err(errno) => {
                    self.last_error = Some(errno);
                    self.place += 1;
                    continue;
                }
            };
            if self.relay.translates_segments() {
                self.fit_segments(place.kind(), &socket);
            }
            let connected = place.connect(&socket);
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
                Err(Errno::AGAIN) if place.kind() == Kind::Unix => {
                    return self.wait_for_room(cx, Errno::AGAIN);
                }
                Err(errno) => {
                    self.last_error = Some(errno);
                    self.place += 1;
                }
            }
        }
        let errno = self.last_error.unwrap_or(Errno::ADDRNOTAVAIL);
        self.fail(&format!("no target: {}", words(errno)))
    }

    /// Has the target send no larger segments than the client takes.
    fn fit_segments(&self, kind: Kind, target: &OwnedFd) {
        if let Some(client) = &self.client
            && self.client_kind != Kind::Unix
            && kind != Kind::Unix
        {
            // Should it fail, the pair says why it is not taken.
            let _ = SegmentSize::taken_by_peer(client).and_then(|size| size.announce_on(target));
        }
    }

    fn wait_for_room(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.last_error = Some(errno);
        self.state = State::NoRoom;
        cx.set_deadline(Some(self.deadline.min(cx.now() + NO_ROOM_RETRY)));
        Step::Wait
    }

    /// Each place gets an equal share of the time that is left, so that one which does not answer
    /// leaves time for the others.
    fn set_deadline_of_attempt(&self, cx: &mut Context<'_>) {
        let left = self.deadline.saturating_duration_since(cx.now());
        let share = left / (self.places.len() - self.place) as u32;
        cx.set_deadline(Some(cx.now() + share));
    }

    fn try_next(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.last_error = Some(errno);
        self.abandon_target();
        self.target_readiness = Readiness::NONE;
        self.place += 1;
        self.connect(cx)
    }

    /// Where nobody listens, TCP may have connected the socket with itself: the port was the one that
    /// it had picked for this end.
    fn connected(&mut self, cx: &mut Context<'_>) -> Step {
        let place = &self.places[self.place];
        if self
            .target
            .as_ref()
            .is_some_and(|target| place.is_itself(target))
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
        let place = &self.places[self.place];
        record.target = Some(place.clone());
        let pair = pair_task(
            Endpoint::prepared(client, self.client_kind),
            Endpoint::prepared(target, place.kind()),
            &self.relay.options,
            Some([self.client_readiness, self.target_readiness]),
            move |outcome| record.ended(&outcome),
        );
        match pair {
            Ok(pair) => Step::Become(pair),
            Err(error) => {
                self.relay
                    .engine_refused
                    .emit(|_| tracing::error!("{error}"));
                Step::Done
            }
        }
    }

    /// Closes the connection to the target, which may have been made without our having heard of
    /// it: then the target must not see an end of stream either.
    fn abandon_target(&mut self) {
        if let Some(target) = self.target.take() {
            // It can fail only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(&target, Some(Duration::ZERO));
        }
    }

    /// " from" and the client's address; nothing where it has none, as most UNIX sockets.
    fn client_name(&self) -> String {
        // Asked only now: most connections never need it.
        let peer = self
            .client
            .as_ref()
            .and_then(|client| getpeername(client).ok());
        match Place::from_kernel(peer.flatten()).map(|place| place.to_string()) {
            Some(name) if name != "unix:" => format!(" from {name}"),
            _ => String::new(),
        }
    }

    /// Ends without having reached the target: the client gets a reset, never an end of stream,
    /// which it could take for an empty answer.
    fn fail(&mut self, why: &str) -> Step {
        if let Some(record) = &self.record {
            self.relay.target_unreachable.emit(|suppressed| {
                tracing::warn!(
                    "connection {}{} to {} was reset: {why}{}",
                    record.id,
                    self.client_name(),
                    record.wanted.address,
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
            // It can fail only on a connection that is already gone.
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
            let timeout = humantime::format_duration(self.relay.connect_timeout);
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
        self.relay.cut_short.fetch_add(1, Ordering::Relaxed);
        self.fail("shutdown before the target was reached");
    }
}

impl Record {
    fn ended(self, outcome: &Outcome) {
        let name = |side| match side {
            Side::A => "client",
            Side::B => "target",
        };
        let why = match outcome.reason {
            Reason::EndOfStream => "end of stream".into(),
            Reason::Reset(side) => format!("reset by {}", name(side)),
            Reason::Failed { side, errno } => {
                format!(
                    "{} failed: {}",
                    name(side),
                    std::io::Error::from_raw_os_error(errno)
                )
            }
            Reason::Filtered => format!("stopped: {}", outcome.why_engine),
            other => other.to_string(),
        };
        if outcome.reason == Reason::Shutdown {
            self.relay.cut_short.fetch_add(1, Ordering::Relaxed);
        }
        if outcome.reason == Reason::Refused {
            self.warn_of_refusal(&outcome.why_engine);
        }
        self.write(Some(outcome), &why);
    }

    fn warn_of_refusal(&self, why: &str) {
        self.relay.engine_refused.emit(|held_back| {
            let name = |place: &Option<Place>| place.as_ref().map(Place::to_string);
            tracing::warn!(
                "connection {} from {} to {} was reset: engine {} refused it: {why}{}",
                self.id,
                name(&self.client).unwrap_or_default(),
                name(&self.target).unwrap_or_else(|| self.wanted.address.to_string()),
                self.relay.options.engine,
                match held_back {
                    0 => String::new(),
                    count => format!(" ({count} more like it since the last warning)"),
                }
            );
        });
    }

    fn write(self, outcome: Option<&Outcome>, why: &str) {
        match outcome {
            Some(Outcome {
                engine, why_engine, ..
            }) => tracing::debug!(
                "connection {} ended: {why}; engine {engine}: {why_engine}",
                self.id
            ),
            None => tracing::debug!("connection {} ended: {why}", self.id),
        }
        let Some(log) = &self.relay.access_log else {
            return;
        };
        let moved = outcome.map(|outcome| outcome.moved).unwrap_or_default();
        let entry = Entry {
            time: Entry::now(),
            id: self.id,
            client: self
                .client
                .as_ref()
                .map(Place::to_string)
                .unwrap_or_default(),
            target: match &self.target {
                Some(place) => place.to_string(),
                None => self.wanted.address.to_string(),
            },
            // An engine that refused a connection has moved none of its bytes.
            engine: outcome
                .filter(|outcome| outcome.reason != Reason::Refused || moved.total() > 0)
                .map(|outcome| outcome.engine.as_str()),
            why_engine: outcome
                .map(|outcome| outcome.why_engine.to_string())
                .unwrap_or_default(),
            client_to_target_bytes: moved.a_to_b,
            target_to_client_bytes: moved.b_to_a,
            outcome: why.into(),
            duration_ms: Entry::milliseconds(self.accepted_at.elapsed()),
        };
        log.write(&entry);
    }
}

/// The limit that was met, or the system's words for an error number, without the number.
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
