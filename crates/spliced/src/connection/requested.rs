//! A client that asks for its destination itself, by SOCKS or CONNECT.
//!
//! ```text
//!             a request             a name                 an address that a rule allows
//! Negotiating ─────────▶ resolve() ───────▶ Resolving ───▶ Connecting ──▶ granted, joined
//!      │                     └──────an address─────────────────▲
//!      └──refused, or no address is allowed or answers──▶ told so, and closed
//! ```
//!
//! The rules are held against the addresses that a name resolves to, and the connection goes to one of
//! those that were allowed: the name is not resolved again. Before it connects to one, and once more when the
//! connection is made, the rules are held against that again: time has passed, and the address may have come to this host.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, getsockname, recv, shutdown};
use splice::{Context, Step};
use splice_route::{
    Destination, DestinationRule, Failure, Handshake, Host, Protocol, handshake, permits,
};

use super::attempt::Attempt;
use super::{Connection, State};
use crate::backend::Resolution;
use crate::service::Counts;
use crate::socket_address::SocketAddress;
use crate::tally::Ending;
use crate::target::is_own;

/// How often a client's rest is read before it is closed: 64 KiB, which is what a client may have sent before
/// it reads the first answer (the usual window at the start).
const REST_READS: usize = 16;

/// What a client asks for, and how it is answered.
pub(super) struct Asked {
    rules: Arc<[DestinationRule]>,
    handshake: Handshake,
    destination: Option<Destination>,
}

impl Asked {
    /// Those of `addresses` that the rules allow, or why none is.
    fn allowed(&self, addresses: &[SocketAddr]) -> Result<Arc<[SocketAddress]>, String> {
        let mut denied = "it has no address".to_owned();
        let mut allowed = Vec::new();
        for address in addresses {
            match self.permits(*address, None) {
                Ok(()) => allowed.push(SocketAddress::Inet(*address)),
                Err(why) => denied = why,
            }
        }
        match allowed.is_empty() {
            true => Err(denied),
            false => Ok(allowed.into()),
        }
    }

    /// Whether the rules allow a connection to an address now. `from` is its other end once it is made.
    ///
    /// # Errors
    /// Why they do not.
    pub(super) fn permits(&self, to: SocketAddr, from: Option<SocketAddr>) -> Result<(), String> {
        let Some(destination) = &self.destination else {
            return Err("it asks for nothing".into());
        };
        let is_own = |address| is_own(SocketAddr::new(address, to.port()), from);
        permits(&self.rules, destination, to.ip(), is_own).map_err(|why| why.to_string())
    }

    /// The same of a connection that has been made.
    ///
    /// # Errors
    /// Why they do not.
    pub(super) fn still_permits(
        &self,
        address: &SocketAddress,
        socket: &OwnedFd,
    ) -> Result<(), String> {
        let Some(to) = address.inet() else {
            return Ok(());
        };
        let from = SocketAddress::from_kernel(getsockname(socket).ok());
        self.permits(to, from.and_then(|address| address.inet()))
    }
}

impl Connection {
    /// Reads the request of a client that speaks `protocol`.
    pub(super) fn negotiate_by(
        &mut self,
        cx: &mut Context<'_>,
        protocol: Option<Protocol>,
        rules: Arc<[DestinationRule]>,
    ) -> Step {
        let handshake = match protocol {
            Some(Protocol::Connect) => Handshake::connect(self.terms.plan.first_bytes_limit),
            _ => Handshake::socks(),
        };
        self.asked = Some(Box::new(Asked {
            rules,
            handshake,
            destination: None,
        }));
        self.state = State::Negotiating;
        self.negotiate(cx)
    }

    pub(super) fn negotiate(&mut self, cx: &mut Context<'_>) -> Step {
        loop {
            let Some(asked) = &mut self.asked else {
                return Step::Wait;
            };
            match asked.handshake.read(self.first_bytes.payload()) {
                handshake::Step::More => match self.read(cx) {
                    Ok(true) if self.first_bytes.has_ended() => {
                        return self.refuse_request("it ends within its request for a destination");
                    }
                    Ok(true) => {}
                    Ok(false) => {
                        cx.set_deadline(Some(self.deadline));
                        return Step::Wait;
                    }
                    Err(_) => return self.reset_by_client("before it had asked for a destination"),
                },
                handshake::Step::Reply(reply) => {
                    if self.reply(reply).is_err() {
                        return self.reset_by_client("before it had asked for a destination");
                    }
                }
                handshake::Step::Request {
                    destination,
                    length_bytes,
                } => {
                    self.first_bytes.consume(length_bytes);
                    return self.resolve(cx, destination);
                }
                handshake::Step::Refuse { reply, why } => {
                    return self.turn_down(&reply, &why.to_string(), Ending::NoRoute);
                }
            }
        }
    }

    fn resolve(&mut self, cx: &mut Context<'_>, destination: Destination) -> Step {
        self.connect_timeout = self.terms.plan.connect_timeout;
        self.deadline = cx.now() + self.connect_timeout;
        if let Some(record) = &mut self.record {
            record.asks_for(destination.to_string());
        }
        let port = destination.port;
        let host = destination.host.clone();
        if let Some(asked) = &mut self.asked {
            asked.destination = Some(destination);
        }
        match host {
            Host::Address(address) => self.reach(cx, &[(address, port).into()]),
            Host::Name(name) => {
                let control = &self.service.process.control;
                let waker = cx.waker();
                let client = self.arrival.client.map(|address| address.ip());
                let resolution =
                    Resolution::start(control, client, name, port, move || waker.wake());
                cx.set_deadline(Some(self.deadline));
                self.state = State::Resolving(resolution);
                if self.client_readiness.is_hung_up() {
                    return self.gone_while_resolving();
                }
                // Without a thread for it there is an answer at once.
                self.resolved(cx)
            }
        }
    }

    /// The client has ended its stream. Most have closed their socket, which looks the same, and a question that nobody
    /// waits for is in the way of others.
    pub(super) fn gone_while_resolving(&mut self) -> Step {
        let Some(asked) = &self.asked else {
            return Step::Done;
        };
        let reply = asked.handshake.refused(Failure::Other);
        self.answer_and_close(
            &reply,
            "ended by the client before its name was resolved",
            Ending::ClientGone,
        )
    }

    /// The name has been resolved.
    pub(super) fn resolved(&mut self, cx: &mut Context<'_>) -> Step {
        let State::Resolving(resolution) = &mut self.state else {
            return Step::Wait;
        };
        match resolution.take() {
            None => Step::Wait,
            Some(Ok(addresses)) => self.reach(cx, &addresses),
            Some(Err(why)) => {
                self.last_error = Some(Errno::HOSTUNREACH);
                self.fail(&format!("its name cannot be resolved: {why}"))
            }
        }
    }

    /// Connects to the one of `addresses` that a rule allows and that answers first.
    fn reach(&mut self, cx: &mut Context<'_>, addresses: &[SocketAddr]) -> Step {
        let Some(asked) = &self.asked else {
            return Step::Done;
        };
        match asked.allowed(addresses) {
            Ok(addresses) => {
                self.attempt = Some(Attempt::new(addresses, None));
                self.connect(cx)
            }
            Err(why) => self.deny(&why),
        }
    }

    pub(super) fn deny(&mut self, why: &str) -> Step {
        let Some(asked) = &self.asked else {
            return Step::Done;
        };
        Counts::add(&self.service.counts.denied);
        let reply = asked.handshake.refused(Failure::NotAllowed);
        self.turn_down(&reply, &format!("not allowed: {why}"), Ending::Denied)
    }

    /// `address`, of those in the order `tried`, has taken the connection.
    pub(super) fn remember_address(&self, address: &SocketAddress, tried: &[SocketAddress]) {
        let destination = self.asked.as_ref().and_then(|it| it.destination.as_ref());
        if let Some(Destination {
            host: Host::Name(name),
            port,
        }) = destination
        {
            let control = &self.service.process.control;
            control.answered(name, *port, address, tried);
        }
    }

    /// Tells the client that its destination has been reached.
    ///
    /// # Errors
    /// If the client is gone.
    pub(super) fn grant(&mut self) -> Result<(), Errno> {
        let (Some(asked), Some(server)) = (self.asked.take(), &self.server) else {
            return Ok(());
        };
        let bound = SocketAddress::from_kernel(getsockname(server).ok());
        let bound = bound.and_then(|address| address.inet());
        self.reply(&asked.handshake.granted(bound))
    }

    /// Tells the client that its destination cannot be reached. `false` if it has asked for none.
    pub(super) fn is_told_of_failure(&mut self, why: &str, ending: Ending) -> bool {
        let Some(asked) = &self.asked else {
            return false;
        };
        let failure = match self.last_error {
            Some(Errno::CONNREFUSED) => Failure::ConnectionRefused,
            Some(Errno::NETUNREACH) => Failure::NetworkUnreachable,
            Some(Errno::HOSTUNREACH) => Failure::HostUnreachable,
            Some(Errno::TIMEDOUT) | None => Failure::TimedOut,
            Some(_) => Failure::Other,
        };
        let reply = asked.handshake.refused(failure);
        self.turn_down(&reply, why, ending);
        true
    }

    fn turn_down(&mut self, reply: &[u8], why: &str, ending: Ending) -> Step {
        self.warn(why);
        self.abandon_server();
        self.answer_and_close(reply, why, ending)
    }

    /// The client is to read the answer, so it gets no reset.
    fn answer_and_close(&mut self, reply: &[u8], why: &str, ending: Ending) -> Step {
        let answered = self.reply(reply);
        if let Some(client) = self.client.take()
            && answered.is_ok()
        {
            let _ = shutdown(&client, Shutdown::Write);
            // close(2) resets if something is left unread. One that sends without end gets the reset.
            let mut rest = [0; 4096];
            for _ in 0..REST_READS {
                if recv(&client, &mut rest, RecvFlags::empty()).is_ok_and(|(_, count)| count > 0) {
                    continue;
                }
                break;
            }
        }
        if let Some(record) = self.record.take() {
            record.write(None, why, ending);
        }
        Step::Done
    }
}
