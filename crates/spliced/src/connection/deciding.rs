//! From accept to a route.

use std::net::SocketAddr;

use rustix::io::Errno;
use rustix::net::{SendFlags, getsockname, send};
use splice::{Context, Step};
use splice_route::proxy_protocol::HeaderReader;
use splice_route::{Decision, Inspection, Progress, Waiting};

use super::first_bytes::Came;
use super::{Connection, State};
use crate::client_limit::Excess;
use crate::rate_limited_warning::more;
use crate::resource_limit::words;
use crate::service::{Counts, Destination};
use crate::socket_address::SocketAddress;
use crate::tally::Ending;
use crate::target::is_own;

impl Connection {
    /// The address that the client has connected to.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        let name = getsockname(self.client.as_ref()?).ok();
        SocketAddress::from_kernel(name)?.inet()
    }

    /// Waits for the PROXY header, if the sender may send one.
    pub(super) fn expect_header(&mut self, cx: &mut Context<'_>) -> Step {
        let trusted = self.terms.plan.require_proxy_from.iter().flatten();
        // Who may connect to a UNIX socket is a matter of its file.
        let is_trusted = self.arrival.client.is_none_or(|sender| {
            let mut prefixes = trusted;
            prefixes.any(|prefix| prefix.contains(sender.ip()))
        });
        if !is_trusted {
            return self.refuse_header("its address is not trusted to send PROXY headers");
        }
        self.state = State::ReadingHeader(HeaderReader::new());
        self.read_header(cx)
    }

    pub(super) fn read_header(&mut self, cx: &mut Context<'_>) -> Step {
        loop {
            let State::ReadingHeader(reader) = &mut self.state else {
                return Step::Wait;
            };
            let header = match reader.read(self.first_bytes.payload()) {
                Progress::Complete(header) => header,
                Progress::Other => {
                    return self.refuse_header("it does not begin with a PROXY header");
                }
                Progress::Broken(fault) => return self.refuse_header(&fault.to_string()),
                Progress::More => match self.read(cx) {
                    Ok(true) if self.first_bytes.has_ended() => {
                        return self.refuse_header("it ends within its PROXY header");
                    }
                    Ok(true) => continue,
                    Ok(false) => {
                        cx.set_deadline(Some(self.deadline));
                        return Step::Wait;
                    }
                    Err(_) => return self.reset_by_client("before its PROXY header was complete"),
                },
            };
            let sender = self.arrival.client.map(|sender| sender.ip());
            // Of a client only its packets come here: nothing connects to its port.
            let is_own = |ip| is_own(SocketAddr::new(ip, 0), None);
            match header.endpoints(sender, is_own) {
                Ok(Some(endpoints)) => {
                    self.arrival.client = Some(endpoints.source);
                    self.arrival.local = Some(endpoints.destination);
                    if let Some(record) = &mut self.record {
                        record.comes_from(endpoints.source);
                    }
                }
                Ok(None) => self.arrival.local = self.local(),
                Err(fault) => return self.refuse_header(&fault.to_string()),
            }
            if let (Some(record), Some(id)) = (&mut self.record, header.tlvs().unique_id()) {
                record.identified(id);
            }
            self.first_bytes.consume(header.length_bytes());
            self.header = Some(Box::new(header));
            return self.admit(cx);
        }
    }

    /// Holds the client against its limits, now that its address is known.
    pub(super) fn admit(&mut self, cx: &mut Context<'_>) -> Step {
        if let Some(client) = self.arrival.client {
            let limits = &self.terms.plan.per_client;
            let permit = self
                .service
                .client_limit
                .acquire(limits, client.ip(), cx.now());
            match (permit, &mut self.record) {
                (Ok(permit), Some(record)) => record.admitted(permit),
                (Ok(_), None) => {}
                (Err(excess), _) => return self.turn_away(excess),
            }
        }
        self.state = State::Deciding(Box::new(Inspection::new(self.terms.plan.first_bytes_limit)));
        self.decide(cx, false)
    }

    pub(super) fn turn_away(&mut self, excess: Excess) -> Step {
        let counts = &self.service.counts;
        let (count, ending) = match excess {
            Excess::Connections(_) => (&counts.client_connections, Ending::ClientConnections),
            Excess::NewPerSecond(_) => (&counts.client_rate, Ending::ClientRate),
        };
        Counts::add(count);
        let why = excess.to_string();
        self.service.warnings.client_limit.emit(|suppressed| {
            tracing::warn!(
                "a connection{} was reset: {why}{}",
                self.client_name(),
                more(suppressed)
            );
        });
        self.reset(&why, ending)
    }

    /// Reads as much as a decision needs, and acts on it. Bytes that came in time count even if this is the
    /// first time that the socket is read: a part of them would lead to another route.
    pub(super) fn decide(&mut self, cx: &mut Context<'_>, timed_out: bool) -> Step {
        let mut is_drained = false;
        loop {
            let State::Deciding(inspection) = &mut self.state else {
                return Step::Wait;
            };
            let waiting = match (timed_out && is_drained, self.first_bytes.has_ended()) {
                (true, _) => Waiting::TimedOut,
                (false, true) => Waiting::Ended,
                (false, false) => Waiting::ForMore,
            };
            let conditions = self.terms.routes.iter().map(|route| &route.conditions);
            let payload = self.first_bytes.payload();
            let decision = inspection.decide(conditions, &self.arrival, payload, waiting);
            if !matches!(decision, Decision::More | Decision::Reply(_))
                && let Some(record) = &mut self.record
            {
                record.named(inspection.server_name());
            }
            match decision {
                Decision::More => match self.read(cx) {
                    Ok(true) => {}
                    Ok(false) if timed_out => is_drained = true,
                    Ok(false) => {
                        cx.set_deadline(Some(self.deadline));
                        return Step::Wait;
                    }
                    Err(_) => return self.reset_by_client("before a route was found"),
                },
                Decision::Reply(reply) => {
                    if let Err(errno) = self.reply(reply) {
                        return self.refuse_request(&words(errno));
                    }
                }
                Decision::Route(index) => {
                    if let Some(record) = &mut self.record {
                        record.routed(index);
                    }
                    let for_proxy = inspection.bytes_for_proxy();
                    self.asks_for_tls = inspection.is_postgres_tls();
                    self.first_bytes.consume(for_proxy);
                    return self.go_to(cx, index);
                }
                Decision::NoRoute => return self.undecided("no route takes it"),
                Decision::Reset(fault) => return self.refuse_request(&fault.to_string()),
            }
        }
    }

    /// Reads from the client; returns false if nothing has come.
    pub(super) fn read(&mut self, _cx: &Context<'_>) -> Result<bool, Errno> {
        let Some(client) = &self.client else {
            return Ok(false);
        };
        Ok(self.first_bytes.read(client)? != Came::Nothing)
    }

    /// Writes a few bytes to the client. It has not been written to before, so its buffer has room.
    pub(super) fn reply(&self, bytes: &[u8]) -> Result<(), Errno> {
        let Some(client) = &self.client else {
            return Ok(());
        };
        match send(client, bytes, SendFlags::NOSIGNAL)? {
            sent if sent == bytes.len() => Ok(()),
            _ => Err(Errno::NOBUFS),
        }
    }

    pub(super) fn go_to(&mut self, cx: &mut Context<'_>, route: usize) -> Step {
        let route = &self.terms.routes[route];
        match route.destination.clone() {
            Destination::Backend { backend, fallback } => {
                self.connect_timeout = backend.plan().connect_timeout;
                self.deadline = cx.now() + self.connect_timeout;
                self.fallback = fallback;
                self.choose(cx, backend)
            }
            Destination::Reset => self.undecided("its route resets it"),
            Destination::Requested(rules) => {
                let protocol = route.conditions.protocol;
                self.negotiate_by(cx, protocol, rules)
            }
            // The listener has spliced it to itself already.
            Destination::Client => self.undecided("no route takes it"),
        }
    }
}
