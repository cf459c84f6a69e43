//! Listening: the sockets, and the task that accepts connections on one of them.

mod directory_lock;
mod socket_access;
mod socket_file;
mod sockets;
mod stale_socket;
mod start;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with};
use splice::{Context, Endpoint, Interest, Kind, Readiness, Step, Task};

pub(crate) use self::socket_access::{AccessChange, change_access};
pub(crate) use self::socket_file::{SocketFile, mark_closed};
use self::sockets::BACKLOG;
pub(crate) use self::sockets::{ListeningSockets, why_not};
pub(crate) use self::stale_socket::remove_stale_by;
pub(crate) use self::start::{InUse, Start};
use crate::connection::Connection;
use crate::connection_limit::ConnectionPermit;
use crate::echo;
use crate::peer_timeouts::PeerTimeouts;
use crate::resource_limit::limit_met;
use crate::service::Service;
use crate::socket_address::{SocketAddress, keep_urgent_bytes};
use crate::tally::NotAccepted;

/// The most connections that one turn of a loop accepts. A turn with 32 bulk flows takes some 40 ms on a
/// busy machine. When each turn accepted one connection, the last of 50 simultaneous clients waited 50
/// turns; with 16 it waits four. With 64 it waits as long, since targets are connected in turns as well.
/// 16 connections cost a turn about 1 ms.
const ACCEPTED_PER_TURN: usize = 16;

/// A listener that is ready again within this time has a crowd waiting, and accepts twice as many as
/// before. Else it accepts one: an accept4(2) that finds nobody costs nearly as much as one that finds
/// somebody, since the kernel makes the socket first (`do_accept`).
const CROWD_WITHIN: Duration = Duration::from_millis(1);

/// How long a listener pauses when descriptors or memory are used up. Meanwhile connections wait in the
/// backlog, and the loop has time for those whose end frees some.
const RETRY_AFTER_SHORTAGE: Duration = Duration::from_millis(100);

/// Accepts on one socket of one thread.
///
/// ```text
/// Accepting ──descriptors or memory used up──▶ Pausing ──RETRY_AFTER_SHORTAGE──▶ Accepting
///     └──────────────limit on connections────▶ Pausing ──a connection ends─────▶ Accepting
/// ```
pub(crate) struct Listener {
    socket: OwnedFd,
    /// The kind of the sockets that it accepts: an IPv4 client of a dual-stack listener has an IPv6
    /// socket.
    kind: Kind,
    interest: Interest,
    accepting: bool,
    /// How many connections the last turn with one has accepted at most, and when it was.
    last_turn: Option<(usize, Instant)>,
    /// What the socket passes on to those that it accepts.
    peer_timeouts: PeerTimeouts,
    /// How many of the next connections may have been made before that changed, and have the former.
    made_before: usize,
    service: Arc<Service>,
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd, shared: bool, service: Arc<Service>) -> Self {
        let interest = if shared {
            Interest::TAKE_SHARED
        } else {
            Interest::TAKE
        };
        let bound = SocketAddress::own(&socket);
        Self {
            socket,
            kind: bound.map_or(Kind::Tcp4, |address| address.kind()),
            interest,
            accepting: false,
            last_turn: None,
            peer_timeouts: service.terms().plan.peer_timeouts,
            made_before: 0,
            service,
        }
    }

    /// Accepts one connection; returns false if there is none for now.
    fn accept(&mut self, cx: &mut Context<'_>, permit: ConnectionPermit) -> bool {
        match acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok((client, peer)) => {
                let peer = match self.kind {
                    kind if kind.is_vsock() || kind.keeps_messages() => {
                        SocketAddress::of_peer(&client)
                    }
                    _ => SocketAddress::from_kernel(peer),
                };
                let service = Arc::clone(&self.service);
                let kind = self.kind;
                if kind == Kind::Unix {
                    keep_urgent_bytes(&client);
                }
                let terms = service.terms();
                self.follow(terms.plan.peer_timeouts, &client);
                if terms.echoes() {
                    let client = Endpoint::prepared(client, kind);
                    echo::spawn(cx, client, peer, permit, &terms, service);
                } else {
                    let connection = Connection::new(client, kind, peer, permit, terms, service);
                    cx.spawn(Box::new(connection));
                }
                true
            }
            Err(errno) => match Failure::of(errno) {
                Failure::NoneWaits => false,
                Failure::ThisOne => {
                    self.not_accepted(NotAccepted::Gone);
                    true
                }
                Failure::Shortage => {
                    self.not_accepted(why_not_accepted(errno));
                    self.service.warnings.shortage.emit(|_| {
                        tracing::warn!(
                            "no connection can be accepted for now: {}; raise the limit or lower the \
                             number of connections (max-connections)",
                            limit_met(errno)
                                .unwrap_or_else(|| std::io::Error::from(errno).to_string())
                        );
                    });
                    self.pause(cx);
                    cx.set_deadline(Some(cx.now() + RETRY_AFTER_SHORTAGE));
                    false
                }
            },
        }
    }

    fn not_accepted(&self, why: NotAccepted) {
        let terms = self.service.terms();
        terms.tallies.without_backend().not_accepted(why);
    }

    /// Applies the timeouts of a reload. The socket has them for later connections. Those that wait in the
    /// backlog have been made with the former ones.
    fn follow(&mut self, wanted: PeerTimeouts, client: &OwnedFd) {
        if !self.kind.is_tcp() {
            return;
        }
        if wanted != self.peer_timeouts {
            self.peer_timeouts = wanted;
            // The kernel lets one more wait (`sk_acceptq_is_full`).
            self.made_before = BACKLOG as usize + 1;
            if let Err(error) = wanted.replace_on(&self.socket) {
                tracing::warn!(
                    "{}: connections keep the former keep-alive and user timeout: {error}",
                    self.service.terms().plan.name
                );
            }
        }
        if self.made_before > 0 {
            self.made_before -= 1;
            // What the listening socket takes, its connections take; else the log says why not.
            let _ = wanted.replace_on(client);
        }
    }

    fn pause(&mut self, cx: &mut Context<'_>) {
        if std::mem::replace(&mut self.accepting, false) {
            cx.deregister(&self.socket);
        }
    }

    fn go_on(&mut self, cx: &mut Context<'_>) -> Step {
        if !self.accepting {
            match cx.register(&self.socket, 0, self.interest) {
                Ok(()) => self.accepting = true,
                Err(error) => {
                    self.service
                        .warnings
                        .shortage
                        .emit(|_| tracing::warn!("no connection can be accepted: {error}"));
                    cx.set_deadline(Some(cx.now() + RETRY_AFTER_SHORTAGE));
                }
            }
        }
        Step::Wait
    }
}

/// What is used up.
fn why_not_accepted(errno: Errno) -> NotAccepted {
    match errno {
        Errno::MFILE | Errno::NFILE => NotAccepted::Descriptors,
        Errno::NOBUFS | Errno::NOMEM => NotAccepted::Memory,
        _ => NotAccepted::Other,
    }
}

/// What a failed accept4 means for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// The backlog is empty.
    NoneWaits,
    /// The process or the system has run out of something, or forbids it: the next accept would fail
    /// as well.
    Shortage,
    /// This connection died in the backlog, or accept(2) passed on an error of its network: the next
    /// connection may be fine.
    ThisOne,
}

impl Failure {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::NoneWaits,
            // The list in accept(2), and the errors of connections that died in the backlog.
            Errno::CONNABORTED
            | Errno::INTR
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
            | Errno::TIMEDOUT => Self::ThisOne,
            // An unknown error may persist, and must not make the loop spin.
            _ => Self::Shortage,
        }
    }
}

impl Task for Listener {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    /// Accepts a few at a time. While more wait, the kernel reports the socket as readable again, and
    /// the other connections have their turn in between.
    fn ready(&mut self, cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        let now = cx.now();
        let most = match self.last_turn {
            Some((most, at)) if now.saturating_duration_since(at) <= CROWD_WITHIN => {
                (2 * most).min(ACCEPTED_PER_TURN)
            }
            _ => 1,
        };
        self.last_turn = Some((most, now));
        for _ in 0..most {
            let Some(permit) = self.service.connection_limit.acquire(|| cx.waker()) else {
                self.service.warnings.max_connections_reached.emit(|_| {
                    tracing::warn!(
                        "the limit of {} connections (max-connections) is reached: clients wait in the backlog until a \
                         connection ends",
                        self.service.connection_limit.most()
                    );
                });
                self.pause(cx);
                break;
            };
            if !self.accept(cx, permit) {
                break;
            }
        }
        Step::Wait
    }

    fn deadline_passed(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    fn resume(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    /// Accepts the backlog: its clients are connected, and closing the socket would reset them.
    ///
    /// Accepts no more than the backlog holds, since new clients may keep coming.
    fn close(&mut self, cx: &mut Context<'_>) {
        for _ in 0..BACKLOG {
            let permit = self.service.connection_limit.acquire_beyond_limit();
            if !self.accept(cx, permit) {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use netlab::until;
    use splice::EventLoop;

    use super::*;
    use crate::file_access::FileAccess;
    use crate::plan::{Action, ListenerPlan};
    use crate::service::{Destination, Process, Route, Terms};

    fn service_that_echoes(max_connections: Option<u32>) -> Arc<Service> {
        let address = "127.0.0.1:0".parse().expect("an address");
        let plan = ListenerPlan {
            max_connections,
            ..ListenerPlan::of_one(address, Action::Echo)
        };
        let route = Route {
            conditions: Default::default(),
            destination: Destination::Client,
        };
        Service::new(
            &Process::new(),
            Terms::new(Arc::new(plan), vec![route], None),
        )
    }

    fn listening_on(address: &str) -> ListeningSockets {
        let address = address.parse().expect("an address");
        let addresses = SocketAddress::to_listen(&address).expect("addresses");
        ListeningSockets::bind(
            &address,
            addresses,
            1,
            None,
            FileAccess::default(),
            &Arc::default(),
        )
        .expect("it listens")
    }

    #[test]
    fn a_turn_accepts_a_bounded_number_of_connections() {
        const CLIENTS: usize = 3 * ACCEPTED_PER_TURN + 2;
        let service = service_that_echoes(None);
        let mut listening = listening_on("127.0.0.1:0");
        let address = listening.addresses[0].to_string();
        let mut event_loop = EventLoop::new().expect("a loop");
        let socket = listening.by_thread[0].pop().expect("a socket");
        event_loop.spawn(Box::new(Listener::new(socket, false, Arc::clone(&service))));
        // All clients are in the backlog before the first turn.
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| TcpStream::connect(&address).expect("connected"))
            .collect();
        let mut accepted = Vec::new();
        until("all are accepted", || {
            let before = service.connection_limit.count();
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            let now = service.connection_limit.count();
            accepted.extend((now > before).then_some(now - before));
            now == CLIENTS
        });
        assert_eq!(accepted[0], 1);
        assert!(accepted.iter().all(|count| *count <= ACCEPTED_PER_TURN));
        drop(clients);
    }

    #[test]
    fn a_listener_never_accepts_beyond_max_connections() {
        let service = service_that_echoes(Some(3));
        let mut listening = listening_on("127.0.0.1:0");
        let address = listening.addresses[0].to_string();
        let mut event_loop = EventLoop::new().expect("a loop");
        let socket = listening.by_thread[0].pop().expect("a socket");
        event_loop.spawn(Box::new(Listener::new(socket, false, Arc::clone(&service))));
        let mut clients: Vec<_> = (0..5)
            .map(|_| TcpStream::connect(&address).expect("connected"))
            .collect();
        until("three are accepted", || {
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            service.connection_limit.count() == 3
        });
        event_loop.turn(Some(Duration::ZERO)).expect("a turn");
        assert_eq!(service.connection_limit.count(), 3);
        clients.drain(..3);
        until("the others are let in", || {
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            service.connection_limit.count() == 2
        });
    }

    #[test]
    fn each_listening_socket_knows_the_kind_of_its_clients() {
        let service = service_that_echoes(None);
        let kinds = |address: &str| -> Vec<_> {
            let mut listening = listening_on(address);
            let sockets = listening.by_thread[0].drain(..);
            sockets
                .map(|socket| Listener::new(socket, false, Arc::clone(&service)).kind)
                .collect()
        };
        assert_eq!(kinds("127.0.0.1:0"), [Kind::Tcp4]);
        assert_eq!(kinds("unix:@spliced-test-kind"), [Kind::Unix]);
        if netlab::available(netlab::Need::Netns) {
            let namespace = netlab::Namespace::new("kinds").expect("a namespace");
            let both = namespace.enter(|| [kinds("localhost:0"), kinds(":0")]);
            let both = both.expect("entered");
            assert_eq!(both, [vec![Kind::Tcp4, Kind::Tcp6], vec![Kind::Tcp6]]);
        }
    }

    #[test]
    fn a_dead_connection_is_skipped_and_a_shortage_pauses_the_listener() {
        for errno in [
            Errno::CONNABORTED,
            Errno::PROTO,
            Errno::NETDOWN,
            Errno::INTR,
        ] {
            assert_eq!(Failure::of(errno), Failure::ThisOne);
        }
        for errno in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM] {
            assert_eq!(Failure::of(errno), Failure::Shortage);
        }
        assert_eq!(Failure::of(Errno::AGAIN), Failure::NoneWaits);
    }
}
