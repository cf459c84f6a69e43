//! From a route to a connected server.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::sockopt;
use splice::{Context, Interest, Kind, Readiness, SegmentSize, Step, set_pacing_rate};

use super::record::Record;
use super::{Attempt, BACKLOG_FULL, Connection, NO_ROOM_RETRY, Place, SERVER, State};
use crate::backend::{Backend, Pick, PickKey};
use crate::connect_error::{self, Fault, NO_WAY};
use crate::plan::Source;
use crate::resource_limit::words;
use crate::service::Counts;

impl Connection {
    /// Picks a server and connects to it.
    pub(super) fn choose(&mut self, cx: &mut Context<'_>, backend: Arc<Backend>) -> Step {
        if let Some(record) = &mut self.record {
            record.wants(&backend);
        }
        let key = PickKey {
            client: self.arrival.client.map(|address| address.ip()),
            server_name: self.record.as_ref().and_then(Record::server_name),
        };
        let (ticket, until) = match std::mem::replace(&mut self.state, State::Connecting) {
            State::Queued { ticket, until, .. } => (Some(ticket), Some(until)),
            _ => (None, None),
        };
        match backend.pick(&key, &self.tried, ticket, || cx.waker()) {
            Pick::Server(lease) => {
                lease.note_in(&mut self.tried);
                if until.is_some() {
                    // The time in the queue is not the servers'.
                    self.deadline = cx.now() + self.connect_timeout;
                }
                let seat = lease.sit(cx.waker());
                let addresses = lease.addresses();
                let place = Place {
                    backend,
                    lease,
                    seat,
                };
                self.attempt = Some(Attempt::new(addresses, Some(place)));
                self.connect(cx)
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
                self.give_up("its servers are busy and their queue is full")
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

    /// Tries the addresses of the server, from the current one on, until one does not fail at once.
    pub(super) fn connect(&mut self, cx: &mut Context<'_>) -> Step {
        self.state = State::Connecting;
        loop {
            let Some(attempt) = &self.attempt else {
                return Step::Done;
            };
            let Some(address) = attempt.address() else {
                return self.next_server(cx);
            };
            if let (Some(asked), Some(inet)) = (&self.asked, address.inet())
                && let Err(why) = asked.permits(inet, None)
            {
                // Another one of the name may still be allowed.
                match self.next_address() {
                    true => continue,
                    false => return self.deny(&why),
                }
            }
            let made = match &attempt.place {
                Some(place) => place.backend.socket(address, &self.arrival),
                None => address.socket(),
            };
            let timeouts = self.terms.plan.peer_timeouts;
            let made = made.and_then(|socket| {
                if address.kind() != Kind::Unix {
                    let set = timeouts.set_on_new(&socket);
                    set.map_err(|error| error.errno().unwrap_or(Errno::INVAL))?;
                }
                Ok(socket)
            });
            let socket = match made {
                Ok(socket) => socket,
                Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.wait_for_room(cx, errno);
                }
                Err(errno) => {
                    self.skip_address(errno, connect_error::of_socket(errno));
                    continue;
                }
            };
            if let Err(error) = self.pace(&socket, address.kind()) {
                return self.fail_to_pace(&error);
            }
            if self.terms.translates_segments() {
                self.fit_segments(address.kind(), &socket);
            }
            if !self.first_bytes.payload().is_empty() && address.kind() != Kind::Unix {
                // The first bytes follow at once, and can carry the last segment of the handshake. A
                // server that speaks first must not wait for it, so only then.
                let _ = sockopt::set_tcp_quickack(&socket, false);
            }
            let connected = address.connect(&socket);
            match connected {
                Ok(()) | Err(Errno::INPROGRESS) => {
                    if let Err(error) = cx.register(&socket, SERVER, Interest::STREAM) {
                        return self.fail(&format!("no target: {error}"));
                    }
                    self.server = Some(socket);
                    if connected.is_ok() {
                        self.server_readiness = Readiness::WRITABLE;
                        return self.connected(cx);
                    }
                    self.set_deadline_of_attempt(cx);
                    return Step::Wait;
                }
                Err(Errno::AGAIN) if address.kind() == Kind::Unix => {
                    return self.wait_for_room(cx, Errno::AGAIN);
                }
                Err(errno @ (Errno::NOBUFS | Errno::NOMEM)) => {
                    return self.wait_for_room(cx, errno);
                }
                Err(errno) => self.skip_address(errno, connect_error::of_connect(errno, address)),
            }
        }
    }

    fn skip_address(&mut self, errno: Errno, fault: Fault) {
        self.last_error = Some(errno);
        self.note(errno, fault);
        if fault == Fault::Reset {
            if let Some(place) = self.place() {
                place.lease.connected();
            }
            self.report_reset();
        }
        self.next_address();
    }

    /// Whether one is left.
    pub(super) fn next_address(&mut self) -> bool {
        let Some(attempt) = &mut self.attempt else {
            return false;
        };
        attempt.address += 1;
        attempt.full_until = None;
        attempt.address().is_some()
    }

    /// Has a socket keep to the rate of the listener. UNIX sockets do not, as `spliced check` says.
    pub(super) fn pace(&self, socket: &OwnedFd, kind: Kind) -> splice::Result<()> {
        match self.terms.plan.rate {
            Some(rate) if kind != Kind::Unix => set_pacing_rate(socket, rate),
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

    pub(super) fn note(&mut self, errno: Errno, fault: Fault) {
        if let Some(attempt) = &mut self.attempt {
            match fault {
                Fault::Server => attempt.met_refusal = true,
                Fault::Shortage => attempt.shortage = Some(errno),
                Fault::NoWay | Fault::Reset => {}
            }
        }
    }

    /// What the last attempt has met.
    fn last_words(&self) -> Option<String> {
        self.last_error.map(|errno| match errno {
            Errno::AGAIN => BACKLOG_FULL.into(),
            errno => words(errno),
        })
    }

    /// The attempt has failed. That counts against the server, if it says something about it.
    pub(super) fn blame(&self, why: &str) {
        let Some(attempt) = &self.attempt else {
            return;
        };
        let Some(place) = &attempt.place else {
            return;
        };
        match attempt.shortage {
            Some(errno) => place.lease.could_not_be_tried(&words(errno)),
            None if attempt.met_refusal => place.lease.failed(why),
            None if attempt.was_reset => {}
            None => place.lease.could_not_be_tried(NO_WAY),
        }
    }

    /// The server has reset the connection before its first byte.
    pub(super) fn report_reset(&mut self) {
        let client = self.record.as_ref().and_then(Record::client_ip);
        if let Some(attempt) = &mut self.attempt
            && let Some(place) = &attempt.place
        {
            attempt.was_reset = true;
            place.lease.reset_before_first_byte(client);
        }
    }

    /// Goes on with another server of the same backend.
    pub(super) fn next_server(&mut self, cx: &mut Context<'_>) -> Step {
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

    /// What may have kept a server of `backend` from answering, if one was tried.
    pub(super) fn hint(&self, backend: &Backend) -> &'static str {
        let is_silent = matches!(self.last_error, None | Some(Errno::TIMEDOUT));
        match backend.plan().source {
            Source::Client if is_silent => {
                "; its answers to the client's address may not come back to this host, which 'spliced check' \
                 examines"
            }
            _ => "",
        }
    }

    /// Makes the server send segments that are no larger than the client accepts.
    pub(super) fn fit_segments(&self, kind: Kind, server: &OwnedFd) {
        if let Some(client) = &self.client
            && self.client_kind != Kind::Unix
            && kind != Kind::Unix
        {
            // If this fails, the engine refuses the pair and says why.
            let _ = SegmentSize::taken_by_peer(client).and_then(|size| size.announce_on(server));
        }
    }

    fn wait_for_room(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.last_error = Some(errno);
        let share = self.share_of_attempt(cx);
        if let Some(attempt) = &mut self.attempt
            && errno == Errno::AGAIN
        {
            // A full accept queue is the server's, and may pass.
            attempt.full_until.get_or_insert_with(|| cx.now() + share);
        } else {
            self.note(errno, Fault::Shortage);
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
        let full_until = self.attempt.as_ref().and_then(|attempt| attempt.full_until);
        if full_until.is_some_and(|until| cx.now() >= until) {
            self.skip_address(Errno::AGAIN, Fault::Server);
        }
        self.connect(cx)
    }

    fn set_deadline_of_attempt(&self, cx: &mut Context<'_>) {
        cx.set_deadline(Some(cx.now() + self.share_of_attempt(cx)));
    }

    /// Each address has an equal share of the time that is left, so that an address which does not answer
    /// leaves time for the others.
    fn share_of_attempt(&self, cx: &Context<'_>) -> Duration {
        let left = self.deadline.saturating_duration_since(cx.now());
        let others = self
            .place()
            .map_or(0, |place| place.backend.others(&self.tried));
        let addresses = self.attempt.as_ref().map_or(1, |attempt| {
            attempt.addresses.len() - attempt.address + others
        });
        left / addresses.max(1) as u32
    }

    pub(super) fn try_next(&mut self, cx: &mut Context<'_>, errno: Errno) -> Step {
        self.abandon_server();
        self.server_readiness = Readiness::NONE;
        self.skip_address(errno, connect_error::of_attempt(errno));
        self.connect(cx)
    }
}
