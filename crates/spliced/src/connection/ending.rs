//! Ends without a pair.

use std::time::Duration;

use rustix::net::{getpeername, sockopt};
use splice::Step;

use super::Connection;
use crate::rate_limited_warning::{RateLimitedWarning, more};
use crate::service::{Counts, Warnings};
use crate::socket_address::SocketAddress;
use crate::tally::Ending;

impl Connection {
    /// Resets the connection to the server. It may be established by now, and the server must not see
    /// an end of stream.
    pub(super) fn abandon_server(&mut self) {
        if let Some(server) = self.server.take() {
            // This fails only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(&server, Some(Duration::ZERO));
        }
    }

    /// " from" and the address of the client. Most UNIX sockets have none: then it is empty.
    pub(super) fn client_name(&self) -> String {
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

    /// Ends since no route takes it.
    pub(super) fn undecided(&mut self, why: &str) -> Step {
        self.end_without_route(why, |warnings| &warnings.undecided)
    }

    /// Ends since its PROXY header is missing, broken or not to be believed.
    pub(super) fn refuse_header(&mut self, why: &str) -> Step {
        self.end_without_route(why, |warnings| &warnings.broken_header)
    }

    /// Ends since what it has sent first is broken or incomplete.
    pub(super) fn refuse_request(&mut self, why: &str) -> Step {
        self.end_without_route(why, |warnings| &warnings.broken_request)
    }

    fn end_without_route(
        &mut self,
        why: &str,
        kind: impl FnOnce(&Warnings) -> &RateLimitedWarning,
    ) -> Step {
        Counts::add(&self.service.counts.without_route);
        if let Some(record) = &self.record {
            kind(&self.service.warnings).emit(|suppressed| {
                tracing::warn!(
                    "connection {}{} was reset: {why}{}",
                    record.id(),
                    self.client_name(),
                    more(suppressed)
                );
            });
        }
        self.reset(why, Ending::NoRoute)
    }

    /// Ends without a server.
    pub(super) fn fail(&mut self, why: &str) -> Step {
        Counts::add(&self.service.counts.without_server);
        self.give_up(why, Ending::NoServer)
    }

    /// Warns, and resets the client, or tells it if it has asked for its destination.
    pub(super) fn give_up(&mut self, why: &str, ending: Ending) -> Step {
        if self.is_told_of_failure(why, ending) {
            return Step::Done;
        }
        self.warn(why);
        self.reset(why, ending)
    }

    pub(super) fn warn(&self, why: &str) {
        if let Some(record) = &self.record {
            self.service.warnings.target_unreachable.emit(|suppressed| {
                let to = match record.wanted() {
                    wanted if wanted.is_empty() => wanted,
                    wanted => format!(" to {wanted}"),
                };
                tracing::warn!(
                    "connection {}{}{to} was reset: {why}{}",
                    record.id(),
                    self.client_name(),
                    more(suppressed)
                );
            });
        }
    }

    /// Resets the client, since it could take an end of stream for an empty answer.
    pub(super) fn reset(&mut self, why: &str, ending: Ending) -> Step {
        if let Some(client) = self.client.take()
            && self.client_kind.is_tcp()
        {
            // This fails only on a connection that is already gone.
            let _ = sockopt::set_socket_linger(&client, Some(Duration::ZERO));
        }
        self.abandon_server();
        if let Some(record) = self.record.take() {
            record.write(None, why, ending);
        }
        Step::Done
    }

    pub(super) fn reset_by_client(&mut self, when: &str) -> Step {
        self.client = None;
        self.abandon_server();
        if let Some(record) = self.record.take() {
            let why = format!("reset by client {when}");
            record.write(None, &why, Ending::ClientGone);
        }
        Step::Done
    }
}
