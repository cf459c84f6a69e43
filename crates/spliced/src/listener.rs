//! The task that accepts connections on one socket.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, getsockname};
use splice::{Context, Endpoint, Interest, Kind, Readiness, Step, Task};

use crate::connection::Connection;
use crate::echo;
use crate::listening::BACKLOG;
use crate::live::Alive;
use crate::place::{Place, keep_urgent_bytes};
use crate::relay::{Goal, Relay};
use crate::shortage::limit_met;

/// The most connections that one turn of a loop accepts. A turn beside 32 bulk flows takes some 40 ms
/// on a busy machine; 50 clients that come at once waited 50 of them when each turn accepted one, and
/// wait four with 16. With 64 they wait no less, since their targets are connected in turns as well.
/// 16 connections cost a turn about 1 ms.
const ACCEPTED_PER_TURN: usize = 16;

/// How long to leave a listener alone after the process or the system has run out of something:
/// connections wait in the backlog meanwhile, and the loop has its time for those that will free
/// it.
const RETRY_AFTER_SHORTAGE: Duration = Duration::from_millis(100);

/// Accepts on one socket of one thread.
///
/// ```text
/// Accepting ──descriptors or memory used up──▶ Pausing ──after a moment──▶ Accepting
///     └──────as many connections as allowed──▶ Pausing ──one has ended───▶ Accepting
/// ```
pub(crate) struct Listener {
    socket: OwnedFd,
    /// Of the connections that it accepts: an IPv4 client of a socket of both families has an IPv6
    /// socket.
    kind: Kind,
    interest: Interest,
    accepting: bool,
    relay: Arc<Relay>,
}

impl Listener {
    pub(crate) fn new(socket: OwnedFd, shared: bool, relay: Arc<Relay>) -> Self {
        let interest = if shared {
            Interest::TAKE_SHARED
        } else {
            Interest::TAKE
        };
        let bound = Place::from_kernel(getsockname(&socket).ok());
        Self {
            socket,
            kind: bound.map_or(Kind::Tcp4, |place| place.kind()),
            interest,
            accepting: false,
            relay,
        }
    }

    /// Accepts one connection; false when there is none to be had now.
    fn accept(&mut self, cx: &mut Context<'_>, alive: Alive) -> bool {
        match acceptfrom_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok((client, peer)) => {
                let peer = Place::from_kernel(peer);
                let relay = Arc::clone(&self.relay);
                let kind = self.kind;
                if kind == Kind::Unix {
                    keep_urgent_bytes(&client);
                }
                match &self.relay.goal {
                    Goal::Target(target) => {
                        let target = Arc::clone(target);
                        let connection = Connection::new(client, kind, peer, alive, target, relay);
                        cx.spawn(Box::new(connection));
                    }
                    Goal::Client => echo::spawn(cx, Endpoint::prepared(client, kind), alive, relay),
                }
                true
            }
            Err(errno) => match Failure::of(errno) {
                Failure::NoneWaits => false,
                Failure::ThisOne => true,
                Failure::Shortage => {
                    self.relay.shortage.emit(|_| {
                        tracing::warn!(
                            "no connection can be accepted for now: {}; raise the limit or lower \
                             --max-connections",
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
                    self.relay
                        .shortage
                        .emit(|_| tracing::warn!("no connection can be accepted: {error}"));
                    cx.set_deadline(Some(cx.now() + RETRY_AFTER_SHORTAGE));
                }
            }
        }
        Step::Wait
    }
}

/// What a failed accept4 means for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    /// Nobody waits to be accepted.
    NoneWaits,
    /// The process or the system has run out of something, or forbids it: the next one would fail
    /// as well.
    Shortage,
    /// This connection died in the backlog, or its network had a fault, which accept(2) passes
    /// on: the next one may be well.
    ThisOne,
}

impl Failure {
    fn of(errno: Errno) -> Self {
        match errno {
            Errno::AGAIN => Self::NoneWaits,
            // The list of accept(2), and what a connection leaves that died in the backlog.
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
            // Unknown: it may stay, and must not make the loop spin.
            _ => Self::Shortage,
        }
    }
}

impl Task for Listener {
    fn start(&mut self, cx: &mut Context<'_>) -> Step {
        self.go_on(cx)
    }

    /// A few at a time: while more wait, the kernel says so again, and the connections that are
    /// already there have their turn in between.
    fn ready(&mut self, cx: &mut Context<'_>, _source: u8, _readiness: Readiness) -> Step {
        for _ in 0..ACCEPTED_PER_TURN {
            let Some(alive) = self.relay.live.enter(|| cx.waker()) else {
                self.relay.max_connections_reached.emit(|_| {
                    tracing::warn!(
                        "--max-connections {} is reached: clients wait in the backlog until a \
                         connection ends",
                        self.relay.live.most()
                    );
                });
                self.pause(cx);
                break;
            };
            if !self.accept(cx, alive) {
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

    /// What has been established by the kernel was promised to its client: it is accepted before
    /// the socket goes, since closing it resets what is left in the backlog.
    ///
    /// Not more than the backlog holds, since more may come all the time.
    fn close(&mut self, cx: &mut Context<'_>) {
        for _ in 0..BACKLOG {
            let alive = self.relay.live.enter_beyond_limit();
            if !self.accept(cx, alive) {
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
    use crate::listening::Listening;

    fn listening_on(address: &str) -> Listening {
        let address = address.parse().expect("an address");
        let places = Place::to_listen(&address).expect("places");
        Listening::on(&address, places, 1, None).expect("it listens")
    }

    /// The connections that are there have their turn after a few new ones.
    #[test]
    fn a_turn_accepts_a_few_connections_and_leaves_the_others_to_the_next() {
        const CLIENTS: usize = 3 * ACCEPTED_PER_TURN + 2;
        let relay = Arc::new(Relay::back_to_clients(None));
        let mut listening = listening_on("127.0.0.1:0");
        let address = listening.places[0].to_string();
        let mut event_loop = EventLoop::new().expect("a loop");
        let socket = listening.by_thread[0].pop().expect("a socket");
        event_loop.spawn(Box::new(Listener::new(socket, false, Arc::clone(&relay))));
        // Who has connected waits in the backlog, and no turn is taken meanwhile.
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| TcpStream::connect(&address).expect("connected"))
            .collect();
        let mut accepted = Vec::new();
        until("all are accepted", || {
            let before = relay.live.count();
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            let now = relay.live.count();
            accepted.extend((now > before).then_some(now - before));
            now == CLIENTS
        });
        let most = ACCEPTED_PER_TURN;
        assert_eq!(accepted, [most, most, most, 2]);
        drop(clients);
    }

    #[test]
    fn no_turn_accepts_beyond_the_limit_on_connections() {
        let relay = Arc::new(Relay::back_to_clients(Some(3)));
        let mut listening = listening_on("127.0.0.1:0");
        let address = listening.places[0].to_string();
        let mut event_loop = EventLoop::new().expect("a loop");
        let socket = listening.by_thread[0].pop().expect("a socket");
        event_loop.spawn(Box::new(Listener::new(socket, false, Arc::clone(&relay))));
        let mut clients: Vec<_> = (0..5)
            .map(|_| TcpStream::connect(&address).expect("connected"))
            .collect();
        until("three are accepted", || {
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            relay.live.count() == 3
        });
        event_loop.turn(Some(Duration::ZERO)).expect("a turn");
        assert_eq!(relay.live.count(), 3);
        clients.drain(..3);
        until("the others are let in", || {
            event_loop.turn(Some(Duration::ZERO)).expect("a turn");
            relay.live.count() == 2
        });
    }

    #[test]
    fn each_socket_of_a_listener_knows_the_kind_of_its_own_clients() {
        let relay = Arc::new(Relay::back_to_clients(None));
        let kinds = |address: &str| -> Vec<_> {
            let mut listening = listening_on(address);
            let sockets = listening.by_thread[0].drain(..);
            sockets
                .map(|socket| Listener::new(socket, false, Arc::clone(&relay)).kind)
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
    fn a_connection_that_died_does_not_stop_the_others_and_a_shortage_pauses_them() {
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
