//! From a route to a connected server.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt;
use splice::{Context, Interest, Kind, Readiness, SegmentSize, Step, set_pacing_rate};

use super::attempt::{Attempt, Place};
use super::record::Record;
use super::{Connection, NO_ROOM_RETRY, SERVER, State};
use crate::backend::{Backend, Pick, PickKey};
use crate::connect_error::{self, Fault};
use crate::race::Turn;
use crate::resource_limit::words;
use crate::service::Counts;
use crate::socket_address::{SocketAddress, has_connected};
use crate::tally::Ending;
use crate::target::Lookup;

/// How long the name of a server is waited for where a fallback could serve the client: a name server that works has
/// answered by then.
const NAME_BEFORE_FALLBACK: Duration = Duration::from_secs(1);

impl Connection {
    /// Picks a server and connects to it.
    pub(super) fn choose(&mut self, cx: &mut Context<'_>, backend: Arc<Backend>) -> Step {
        if let Some(record) = &mut self.record {
            record.wants(&backend);
        }
        let server_name = self.record.as_ref().and_then(Record::server_name);
        let key = PickKey {
            client: self.arrival.client.map(|address| address.ip()),
            client_cid: self.client_cid,
            server_name: server_name.as_deref(),
            has_fallback: self.fallback.is_some(),
        };
        let (ticket, until) = match std::mem::replace(&mut self.state, State::Connecting) {
            State::Queued { ticket, until, .. } => (Some(ticket), Some(until)),
            _ => (None, None),
        };
        match backend.pick(&key, &self.tried, ticket, || cx.waker()) {
            Pick::Server(lease) => {
                lease.note_in(&mut self.tried);
                if let Some(record) = &mut self.record {
                    record.tries(&lease);
                }
                if until.is_some() {
                    // The time in the queue is not the servers'.
                    self.deadline = cx.now() + self.connect_timeout;
                }
                let seat = lease.sit(cx.waker());
                let place = Place {
                    backend,
                    lease,
                    seat,
                };
                self.attempt = Some(Attempt::new(Arc::default(), Some(place)));
                self.look_up(cx)
            }
            Pick::Queued(ticket) => {
                let until = until.unwrap_or_else(|| cx.now() + backend.plan().queue.wait);
                cx.set_deadline(Some(until));
                self.state = State::Queued {
                    backend,
                    ticket,
                    until,
                };
                Step::Wait
            }
            Pick::QueueFull => {
                Counts::add(&self.service.counts.queue_full);
                self.give_up(
                    "its servers are busy and their queue is full",
                    Ending::QueueFull,
                )
            }
            Pick::NoneLeft(why_none) => match self.fallback.take() {
                Some(fallback) => self.choose(cx, fallback),
                None => {
                    let why = self.last_words();
                    let why = why.map_or(why_none, |why| why + self.hint(&backend));
                    self.fail(&format!("no target: {why}"))
                }
            },
        }
    }

    /// Finds out the addresses of the server, and connects to it.
    pub(super) fn look_up(&mut self, cx: &mut Context<'_>) -> Step {
        let until = self.end_of_attempt(cx);
        let Some(attempt) = &mut self.attempt else {
            return Step::Done;
        };
        let latest = attempt.old_answer_at(cx.now(), until);
        let Some(place) = &attempt.place else {
            return Step::Done;
        };
        match place.lease.look_up(latest, || cx.waker().into()) {
            Lookup::Known(addresses) => {
                attempt.enter(addresses);
                self.connect(cx)
            }
            Lookup::Awaited(question, again) => {
                let fallback = self
                    .fallback
                    .as_ref()
                    .map(|_| cx.now() + NAME_BEFORE_FALLBACK);
                let times = [Some(until), again, fallback];
                cx.set_deadline(times.into_iter().flatten().min());
                self.state = State::AwaitingName {
                    _question: question,
                };
                Step::Wait
            }
        }
    }

    /// The answer is not there yet.
    pub(super) fn waited_for_name(&mut self, cx: &mut Context<'_>) -> Step {
        if cx.now() >= self.deadline {
            let timeout = humantime::format_duration(self.connect_timeout);
            return self.fail(&format!(
                "no target: its name was not resolved within the connect timeout of {timeout}"
            ));
        }
        match &self.attempt {
            Some(attempt) if attempt.is_out_of_time(cx.now()) => self.next_server(cx),
            // The servers of the fallback are not among those that share the time.
            Some(Attempt {
                place: Some(place), ..
            }) if self.fallback.is_some() && place.lease.is_slow() => self.next_server(cx),
            _ => self.look_up(cx),
        }
    }

    /// Connects to the addresses of the server as their race has it, until one has taken the connection.
    pub(super) fn connect(&mut self, cx: &mut Context<'_>) -> Step {
        self.state = State::Connecting;
        loop {
            let Some(attempt) = &mut self.attempt else {
                return Step::Done;
            };
            let index = match attempt.race.turn(cx.now()) {
                Turn::Start(index) => index,
                Turn::GiveUp(index) => {
                    self.skip_address(index, Errno::TIMEDOUT, Fault::Server);
                    continue;
                }
                Turn::Wait(at) => {
                    let until = self.end_of_attempt(cx);
                    cx.set_deadline(Some(at.map_or(until, |at| at.min(until))));
                    return Step::Wait;
                }
                Turn::Over => {
                    return match attempt.denied.take() {
                        Some(why) => self.deny(&why),
                        None => self.next_server(cx),
                    };
                }
            };
            match self.begin(cx, index) {
                Ok(false) => {}
                Ok(true) => return self.made(cx, index, Readiness::WRITABLE),
                Err(Obstacle::Denied(why)) => self.deny_address(index, why),
                Err(Obstacle::Address(errno, fault)) => self.skip_address(index, errno, fault),
                Err(Obstacle::NoRoom(errno)) => {
                    if !self.is_postponed(cx, errno) {
                        return self.wait_for_room(cx, errno);
                    }
                }
                Err(Obstacle::Pacing(error)) => return self.fail_to_pace(&error),
                Err(Obstacle::Watching(error)) => {
                    let errno = error.errno().unwrap_or(Errno::NOSPC);
                    if !self.is_postponed(cx, errno) {
                        return self.fail(&format!("no target: {error}"));
                    }
                }
            }
        }
    }

    /// Begins to connect to an address. Returns whether the connection is made already.
    fn begin(&mut self, cx: &mut Context<'_>, index: usize) -> Result<bool, Obstacle> {
        let Some(attempt) = &self.attempt else {
            return Ok(false);
        };
        let address = &attempt.addresses[index];
        if let (Some(asked), Some(inet)) = (&self.asked, address.inet()) {
            // Another one of the name may still be allowed.
            asked.permits(inet, None).map_err(Obstacle::Denied)?;
        }
        let made = match &attempt.place {
            Some(place) => place.backend.socket(address, &self.arrival),
            None => address.socket(),
        };
        let timeouts = self.terms.plan.peer_timeouts;
        let made = made.and_then(|socket| {
            if address.kind().is_tcp() {
                let set = timeouts.set_on_new(&socket);
                set.map_err(|error| error.errno().unwrap_or(Errno::INVAL))?;
            }
            Ok(socket)
        });
        let socket = made.map_err(|errno| match errno {
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => Obstacle::NoRoom(errno),
            errno => Obstacle::Address(errno, connect_error::of_socket(errno)),
        })?;
        self.pace(&socket, address.kind())
            .map_err(Obstacle::Pacing)?;
        if self.terms.translates_segments() {
            self.fit_segments(address.kind(), &socket);
        }
        if !self.first_bytes.payload().is_empty() && address.kind().is_tcp() {
            // The first bytes follow at once, and can carry the last segment of the handshake. A
            // server that speaks first must not wait for it, so only then.
            let _ = sockopt::set_tcp_quickack(&socket, false);
        }
        let is_made = match address.connect(&socket) {
            Ok(()) => true,
            Err(Errno::INPROGRESS) => false,
            Err(Errno::AGAIN) if address.kind().is_unix() => {
                return Err(Obstacle::NoRoom(Errno::AGAIN));
            }
            Err(errno @ (Errno::NOBUFS | Errno::NOMEM)) => return Err(Obstacle::NoRoom(errno)),
            Err(errno) => {
                let fault = connect_error::of_connect(errno, address);
                return Err(Obstacle::Address(errno, fault));
            }
        };
        let source = self.next_source;
        cx.register(&socket, source, Interest::STREAM)
            .map_err(Obstacle::Watching)?;
        let until = self.end_of_attempt(cx);
        if let Some(attempt) = &mut self.attempt {
            attempt.began(index, source, socket);
            self.next_source = attempt.source_after(source);
            attempt.race.started(index, cx.now(), until);
        }
        Ok(is_made)
    }

    /// This host lacks something for another address. Those under way may still connect, or make room for it; `false` if
    /// there is none.
    fn is_postponed(&mut self, cx: &Context<'_>, errno: Errno) -> bool {
        let Some(attempt) = &mut self.attempt else {
            return false;
        };
        if !attempt.race.is_under_way() {
            return false;
        }
        attempt.note(errno, Fault::Shortage);
        if let Some(index) = attempt.race.postponed(cx.now()) {
            attempt.failed(index);
        }
        self.last_error = Some(errno);
        true
    }

    /// Something has become of the connection whose socket is registered as `source`.
    pub(super) fn heard(&mut self, cx: &mut Context<'_>, source: u8, readiness: Readiness) -> Step {
        let one = self.attempt.as_ref().and_then(|it| it.under_way(source));
        // An event of one that was given up may come late.
        let Some((index, socket)) = one.and_then(|one| Some((one.index, one.socket()?))) else {
            return Step::Wait;
        };
        if !readiness.is_writable() {
            return Step::Wait;
        }
        match has_connected(socket) {
            // What was heard was not about it.
            Ok(false) => Step::Wait,
            Ok(true) => self.made(cx, index, readiness),
            Err(errno) => {
                let address = self.attempt.as_ref().map(|it| &it.addresses[index]);
                let errno = address.map_or(errno, |it| connect_error::as_of_tcp(errno, it));
                self.skip_address(index, errno, connect_error::of_attempt(errno));
                self.connect(cx)
            }
        }
    }

    /// An address has taken the connection. The others are closed, unless this one must not be used.
    fn made(&mut self, cx: &mut Context<'_>, index: usize, readiness: Readiness) -> Step {
        let Some(attempt) = &mut self.attempt else {
            return Step::Done;
        };
        let (Some(address), Some((source, socket))) =
            (attempt.addresses.get(index), attempt.socket(index))
        else {
            return Step::Wait;
        };
        // TCP has connected the socket with itself (simultaneous open). That happens if nobody listens and the server's
        // port is picked for this end.
        if address.is_itself(socket) {
            self.skip_address(index, Errno::CONNREFUSED, Fault::Server);
            return self.connect(cx);
        }
        if let Some(asked) = &self.asked
            && let Err(why) = asked.still_permits(address, socket)
        {
            self.deny_address(index, why);
            return self.connect(cx);
        }
        let Some(socket) = attempt.won(index) else {
            return Step::Done;
        };
        if source != SERVER {
            cx.deregister(&socket);
            if let Err(error) = cx.register(&socket, SERVER, Interest::STREAM) {
                return self.fail(&format!("no target: {error}"));
            }
        }
        self.server = Some(socket);
        self.server_readiness = readiness;
        self.connected(cx)
    }

    /// An address does not do. The next one has its turn.
    fn skip_address(&mut self, index: usize, errno: Errno, fault: Fault) {
        self.last_error = Some(errno);
        if let Some(attempt) = &mut self.attempt {
            self.last_kind = attempt.addresses.get(index).map(SocketAddress::kind);
            attempt.failed(index);
            attempt.note(errno, fault);
            attempt.denied = None;
        }
        if fault == Fault::Reset {
            if let Some(place) = self.place() {
                place.lease.connected();
            }
            self.report_reset();
        }
    }

    /// The rules forbid an address. Another one of the name may still be allowed.
    fn deny_address(&mut self, index: usize, why: String) {
        if let Some(attempt) = &mut self.attempt {
            attempt.failed(index);
            attempt.denied = Some(why);
        }
    }

    /// Has a socket keep to the rate of the listener. Only TCP does, as `spliced check` says.
    pub(super) fn pace(&self, socket: &OwnedFd, kind: Kind) -> splice::Result<()> {
        match self.terms.plan.rate {
            Some(rate) if kind.is_tcp() => set_pacing_rate(socket, rate),
            _ => Ok(()),
        }
    }

    /// Ends before anything is said that would have to be kept.
    pub(super) fn fail_to_pace(&mut self, error: &splice::Error) -> Step {
        self.last_error = error.errno();
        self.fail(&match error.errno() {
            Some(Errno::OPNOTSUPP) => {
                "its rate cannot be kept, since Multipath TCP has none; use TCP, or remove rate"
                    .into()
            }
            _ => format!("its rate cannot be kept: {error}; allow that call, or remove rate"),
        })
    }

    /// Goes on with another server of the same backend.
    pub(super) fn next_server(&mut self, cx: &mut Context<'_>) -> Step {
        self.tell_shortage();
        let why = self.last_words().unwrap_or_default();
        self.blame(&why);
        let Some(attempt) = self.attempt.take() else {
            return Step::Done;
        };
        let Some(place) = attempt.place else {
            return self.fail(&format!("no target: {why}"));
        };
        let backend = place.backend;
        drop(place.lease);
        self.choose(cx, backend)
    }

    /// Makes the server send segments that are no larger than the client accepts.
    pub(super) fn fit_segments(&self, kind: Kind, server: &OwnedFd) {
        if let Some(client) = &self.client
            && self.client_kind.is_tcp()
            && kind.is_tcp()
        {
            // If this fails, the engine refuses the pair and says why.
            let _ = SegmentSize::taken_by_peer(client).and_then(|size| size.announce_on(server));
        }
    }

    fn wait_for_room(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.last_error = Some(errno);
        if errno == Errno::AGAIN {
            // A full accept queue is the server's, and may pass within its time.
            self.end_of_attempt(cx);
        } else {
            if let Some(attempt) = &mut self.attempt {
                attempt.note(errno, Fault::Shortage);
                // This wait is not the server's.
                attempt.until = None;
            }
            if let Some(place) = self.place() {
                place.lease.could_not_be_tried(&words(errno));
            }
        }
        self.state = State::NoRoom;
        cx.set_deadline(Some(self.deadline.min(cx.now() + NO_ROOM_RETRY)));
        Step::Wait
    }

    /// After a while without room.
    pub(super) fn try_again(&mut self, cx: &mut Context<'_>) -> Step {
        // Only of a full accept queue: nobody else has what this host lacks.
        match self.last_error {
            Some(Errno::AGAIN) => self.out_of_time_or_connect(cx, Errno::AGAIN),
            _ => self.connect(cx),
        }
    }

    /// The next address has its turn, or the next server.
    pub(super) fn out_of_time_or_connect(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        match &mut self.attempt {
            Some(attempt) if attempt.is_out_of_time(cx.now()) => {
                attempt.abandon_all();
                attempt.note(errno, Fault::Server);
                self.last_error = Some(errno);
                self.next_server(cx)
            }
            _ => self.connect(cx),
        }
    }

    /// Each server has an equal share of the time that is left, so that one which does not answer leaves time for the
    /// others.
    fn end_of_attempt(&mut self, cx: &Context<'_>) -> Instant {
        let left = self.deadline.saturating_duration_since(cx.now());
        let Some(attempt) = &mut self.attempt else {
            return self.deadline;
        };
        let (place, tried) = (&attempt.place, &self.tried);
        let others = || {
            place
                .as_ref()
                .map_or(0, |place| place.backend.others(tried))
        };
        let end = || cx.now() + left / (others() as u32 + 1);
        *attempt.until.get_or_insert_with(end)
    }
}

/// Why a connection to an address does not begin.
enum Obstacle {
    /// The rules forbid it.
    Denied(String),
    /// The address does not do.
    Address(Errno, Fault),
    /// For want of something that may come.
    NoRoom(Errno),
    Pacing(splice::Error),
    Watching(splice::Error),
}
