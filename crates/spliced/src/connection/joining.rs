//! From a connected server to the pair.

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, getsockname, recv, send};
use splice::{Context, Endpoint, EngineChoice, Kind, Step, observed_pair_task};
use splice_route::proxy_protocol::{OutTlvs, header_v1, header_v2};
use splice_route::{Fault, POSTGRES_SSL_REQUEST};

use super::record::Record;
use super::{Connection, State};
use crate::plan::ProxyVersion;
use crate::resource_limit::words;
use crate::service::Counts;
use crate::socket_address::SocketAddress;
use crate::tally::{Ending, Promotion};

/// What a PostgreSQL server answers if it does TLS.
const TLS_ACCEPTED: &[u8; 1] = b"S";

impl Connection {
    /// Joins the client with the server.
    pub(super) fn connected(&mut self, cx: &mut Context<'_>) -> Step {
        if let Some(attempt) = &self.attempt
            && let Some(address) = attempt.address()
        {
            match &attempt.place {
                Some(place) => place.lease.reached(address, &attempt.addresses),
                None => self.remember_address(address, &attempt.addresses),
            }
        }
        if self.grant().is_err() {
            return self.reset_by_client("before it could be answered");
        }
        let mut preface = match self.header_for_server() {
            Ok(header) => header,
            // Without the header the client could write one itself.
            Err(fault) => return self.fail(&fault.to_string()),
        };
        if self.asks_for_tls {
            preface.extend(POSTGRES_SSL_REQUEST);
        }
        if preface.is_empty() {
            return self.send_payload(cx);
        }
        self.state = State::Sending {
            bytes: preface,
            sent: 0,
            is_preface: true,
        };
        self.send(cx)
    }

    /// The PROXY header for the server; empty if it gets none.
    fn header_for_server(&mut self) -> Result<Vec<u8>, Fault> {
        let version = self
            .place()
            .and_then(|place| place.backend.plan().send_proxy);
        let (client, local) = (self.arrival.client, self.arrival.local);
        match version {
            None => Ok(Vec::new()),
            Some(ProxyVersion::V1) => Ok(header_v1(client, local.or_else(|| self.local()))),
            Some(ProxyVersion::V2) => {
                let local = local.or_else(|| self.local());
                let unique_id = self.record.as_mut().map(|record| {
                    let made = self.service.process.unique_id(record.id());
                    record.identified(made.as_bytes());
                    made
                });
                let server_name = self.record.as_ref().and_then(Record::server_name);
                let tlvs = OutTlvs {
                    authority: server_name.as_deref().map(str::as_bytes),
                    unique_id: unique_id.as_ref().map(String::as_bytes),
                    received: self.header.as_ref().map(|header| header.tlvs()),
                    ..OutTlvs::default()
                };
                header_v2(client, local, &tlvs)
            }
        }
    }

    /// Passes on what the client has sent.
    fn send_payload(&mut self, cx: &mut Context<'_>) -> Step {
        let bytes = std::mem::take(&mut self.first_bytes).into_payload();
        if bytes.is_empty() {
            return self.join();
        }
        if let Some(record) = &mut self.record {
            record.passed_on(bytes.len() as u64);
        }
        self.state = State::Sending {
            bytes,
            sent: 0,
            is_preface: false,
        };
        self.send(cx)
    }

    /// Writes what the server gets before the client's bytes flow by themselves.
    pub(super) fn send(&mut self, cx: &mut Context<'_>) -> Step {
        let (
            State::Sending {
                bytes,
                sent,
                is_preface,
            },
            Some(server),
        ) = (&mut self.state, &self.server)
        else {
            return Step::Wait;
        };
        while *sent < bytes.len() {
            match send(server, &bytes[*sent..], SendFlags::NOSIGNAL) {
                Ok(count) => *sent += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    cx.set_deadline(Some(self.deadline));
                    return Step::Wait;
                }
                Err(errno) => return self.failed_by_server(errno),
            }
        }
        match (*is_preface, self.asks_for_tls) {
            (true, true) => {
                self.state = State::AskingForTls;
                cx.set_deadline(Some(self.deadline));
                self.read_tls_answer(cx)
            }
            (true, false) => self.send_payload(cx),
            (false, _) => self.join(),
        }
    }

    /// Reads the one byte of a PostgreSQL server that was asked for TLS. What follows it belongs to the
    /// client.
    pub(super) fn read_tls_answer(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(server) = &self.server else {
            return Step::Wait;
        };
        let mut answer = [0];
        let received = recv(server, &mut answer, RecvFlags::empty());
        if let (Ok((1, _)), Some(record)) = (&received, &mut self.record) {
            record.answered();
        }
        match received {
            Ok((1, _)) if answer == *TLS_ACCEPTED => self.send_payload(cx),
            Ok((1, _)) => self.fail("the target refuses TLS"),
            Ok(_) => self.fail("the target has closed the connection when asked for TLS"),
            Err(Errno::AGAIN | Errno::INTR) => Step::Wait,
            Err(errno) => self.failed_by_server(errno),
        }
    }

    /// The server has ended the connection before it was joined.
    fn failed_by_server(&mut self, errno: Errno) -> Step {
        let has_answer = self.record.as_ref().is_some_and(Record::has_answer);
        // EPIPE: it has ended its stream before, in order (`tcp_reset`).
        if errno == Errno::CONNRESET && !has_answer {
            self.report_reset();
        }
        self.fail(&format!("the target failed: {}", words(errno)))
    }

    pub(super) fn join(&mut self) -> Step {
        let (Some(client), Some(server), Some(mut record), Some(attempt)) = (
            self.client.take(),
            self.server.take(),
            self.record.take(),
            self.attempt.take(),
        ) else {
            return Step::Done;
        };
        let Some(address) = attempt.address().cloned() else {
            return Step::Done;
        };
        let kind = address.kind();
        let mut options = self.terms.options;
        let never_spliced = match &attempt.place {
            _ if options.engine != EngineChoice::Auto => None,
            _ if self.terms.plan.rate.is_some() => Some("its sockets keep its rate"),
            Some(place) if place.backend.plan().excludes_segment() => {
                Some("its server needs a mark or a device")
            }
            // The pair says why.
            _ if [self.client_kind, kind]
                .iter()
                .any(|kind| kind.is_vsock() || kind.keeps_messages()) =>
            {
                None
            }
            _ if [self.client_kind, kind].contains(&Kind::Unix) => {
                Some("one of its sockets is a UNIX socket")
            }
            _ => None,
        };
        if never_spliced.is_some() {
            options.segment_after = None;
        }
        Counts::add(&self.service.counts.joined);
        record.connected_to(attempt.place.map(|place| (place.lease, place.seat)));
        let session = record.session();
        let source = SocketAddress::from_kernel(getsockname(&server).ok());
        let pair = observed_pair_task(
            Endpoint::prepared(client, self.client_kind),
            Endpoint::prepared(server, kind),
            &options,
            Some([self.client_readiness, self.server_readiness]),
            move |outcome| record.ended(&outcome),
        );
        match pair {
            Ok((pair, observer)) => {
                let mut facts = session.facts();
                facts.target = Some(address);
                facts.source = source.filter(|source| source.inet().is_some());
                facts.pair = Some(observer);
                facts.never_spliced = never_spliced;
                if never_spliced.is_some() {
                    facts.tally.promoted(Promotion::NeverTried);
                }
                drop(facts);
                session.log_start(self.terms.access_log.as_ref());
                Step::Become(pair)
            }
            Err(error) => {
                session.ended(None, Ending::Other);
                self.service
                    .warnings
                    .engine_refused
                    .emit(|_| tracing::error!("{error}"));
                if let Some(log) = &self.terms.access_log {
                    session.log_end(log, None, &error.to_string());
                }
                Step::Done
            }
        }
    }
}
