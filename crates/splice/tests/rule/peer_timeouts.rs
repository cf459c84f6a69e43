//! Keep-alive and the user timeout are those of the sockets, whoever moves the bytes.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt;
use splice::{
    Endpoint, ErrorKind, EventLoop, Handle, KeepAlive, KeepAliveTimes, Kind, Options, UserTimeout,
};

use crate::support::contestant::Contestant;
use crate::support::peer::Peer;

const IDLE: Duration = Duration::from_secs(31);
const INTERVAL: Duration = Duration::from_secs(12);
const PROBES: u32 = 4;
const USER_TIMEOUT_MS: u32 = 45_678;

/// What a socket has: SO_KEEPALIVE, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT.
type Found = (bool, Duration, Duration, u32, u32);

const SET: Found = (true, IDLE, INTERVAL, PROBES, USER_TIMEOUT_MS);

fn found(socket: &OwnedFd) -> Found {
    (
        sockopt::socket_keepalive(socket).expect("SO_KEEPALIVE"),
        sockopt::tcp_keepidle(socket).expect("TCP_KEEPIDLE"),
        sockopt::tcp_keepintvl(socket).expect("TCP_KEEPINTVL"),
        sockopt::tcp_keepcnt(socket).expect("TCP_KEEPCNT"),
        sockopt::tcp_user_timeout(socket).expect("TCP_USER_TIMEOUT"),
    )
}

fn set(socket: BorrowedFd<'_>) {
    sockopt::set_tcp_keepidle(socket, IDLE).expect("TCP_KEEPIDLE");
    sockopt::set_tcp_keepintvl(socket, INTERVAL).expect("TCP_KEEPINTVL");
    sockopt::set_tcp_keepcnt(socket, PROBES).expect("TCP_KEEPCNT");
    sockopt::set_socket_keepalive(socket, true).expect("SO_KEEPALIVE");
    sockopt::set_tcp_user_timeout(socket, USER_TIMEOUT_MS).expect("TCP_USER_TIMEOUT");
}

/// A pair whose loop does not turn: `segment` ends the keep-alive of sockets that it has put to sleep.
struct Still {
    sockets: [OwnedFd; 2],
    joined: splice::Result<Handle>,
    _peers: [Peer; 2],
    _event_loop: EventLoop,
}

fn join(kinds: [Kind; 2], options: &Options, tune: impl Fn(BorrowedFd<'_>)) -> Still {
    let connections = kinds.map(Peer::connected);
    let [(a, near), (b, far)] = connections;
    let sockets = [&near, &far].map(|socket| socket.try_clone().expect("a descriptor"));
    for (socket, kind) in sockets.iter().zip(kinds) {
        if is_tcp(kind) {
            tune(socket.as_fd());
        }
    }
    let mut event_loop = EventLoop::new().expect("an event loop");
    let [near, far] = [near, far].map(|socket| Endpoint::new(socket).expect("an endpoint"));
    let joined = event_loop.join(near, far, options);
    Still {
        sockets,
        joined,
        _peers: [a, b],
        _event_loop: event_loop,
    }
}

fn is_tcp(kind: Kind) -> bool {
    matches!(kind, Kind::Tcp4 | Kind::Tcp6)
}

fn options(engine: &Contestant, keepalive: KeepAlive) -> Options {
    let timeout = Duration::from_millis(USER_TIMEOUT_MS.into());
    Options {
        keepalive,
        user_timeout: Some(UserTimeout::new(timeout).expect("within the bounds")),
        ..engine.options()
    }
}

pub(crate) fn are_set_on_both_sockets(engine: &Contestant) {
    let times = KeepAliveTimes::new(Some(IDLE), Some(INTERVAL), Some(PROBES));
    let on = KeepAlive::On(times.expect("within the bounds"));
    engine.with_each_mix(|mix| {
        let pair = join(mix.kinds(), &options(engine, on), |_| {});
        if mix.kinds().contains(&Kind::Mptcp) {
            // It has not every option on every kernel, and the pair must not look as if it had.
            if let Err(error) = pair.joined {
                assert_eq!(error.kind(), ErrorKind::System);
                let text = error.to_string();
                assert!(text.starts_with("cannot set TCP_"), "{text}");
            }
            return;
        }
        pair.joined.expect("a pair");
        for (socket, kind) in pair.sockets.iter().zip(mix.kinds()) {
            if is_tcp(kind) {
                assert_eq!(found(socket), SET, "{kind:?}");
            }
        }
    });
}

pub(crate) fn stay_as_the_caller_has_set_them(engine: &Contestant) {
    let off = Options {
        keepalive: KeepAlive::Off,
        ..engine.options()
    };
    let system = Options {
        keepalive: KeepAlive::On(KeepAliveTimes::SYSTEM),
        ..engine.options()
    };
    let reset = Options {
        user_timeout: Some(UserTimeout::SYSTEM),
        ..engine.options()
    };
    let (cleared, without) = (
        (false, IDLE, INTERVAL, PROBES, USER_TIMEOUT_MS),
        (true, IDLE, INTERVAL, PROBES, 0),
    );
    engine.with_each_kind(|mix| {
        for (options, expected) in [
            (engine.options(), SET),
            (system, SET),
            (off, cleared),
            (reset, without),
        ] {
            if mix.kinds().contains(&Kind::Mptcp) && options.user_timeout.is_some() {
                continue;
            }
            let pair = join(mix.kinds(), &options, set);
            pair.joined.expect("a pair");
            for (socket, kind) in pair.sockets.iter().zip(mix.kinds()) {
                if is_tcp(kind) {
                    assert_eq!(found(socket), expected, "{kind:?}");
                }
            }
        }
    });
}
