//! SYNs that nobody means.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, PATIENCE, available, until, until_found};
use splice::ForwardEnd;

use crate::forgery::{Forged, Forger, SYN, Watch};
use crate::hops::ip;
use crate::stage::{Stage, payload, ping, pour_around};

/// How many connections may wait for their server.
const HALF_OPEN: u32 = 256;

/// How long they may.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// A network is a /24.
const APART: u32 = 256 + 1;

/// How many honest clients come in the meantime.
const HONEST: usize = 20;

/// SYNs from one address after the other, which lie so far apart.
fn flood(forger: &Forger, to: SocketAddr, syns: u32, apart: u32) {
    for number in 0..syns {
        // 10.0.0.0/8
        let address = Ipv4Addr::from_bits(10 << 24 | number.wrapping_mul(apart) & 0xff_ffff);
        let from = SocketAddr::from((address, 1024 + (number % 60_000) as u16));
        let syn = Forged::new(SYN, [number, 0]).packet(from, to);
        forger.send_as_client(&syn);
    }
}

/// Answers to the flood get to a network whose hosts say nothing.
fn silence(stage: &Stage) {
    let route = format!("route add 10.0.0.0/8 via {}", Lab::CLIENT_V4);
    ip(stage.lab.relay(), &route);
    ip(stage.lab.client(), "route add blackhole 10.0.0.0/8");
}

fn live_traffic_beside_a_flood(syns: u32) {
    let stage = Stage::with(|options| {
        options.half_open = HALF_OPEN;
        options.connect_timeout = CONNECT_TIMEOUT;
    });
    silence(&stage);
    let forger = Forger::beside(&stage);
    let watch = Watch::on(stage.server_side());
    let port = stage.server.local_addr().expect("an address").port();
    for listener in [&stage.server, &stage.socket] {
        listener.set_nonblocking(true).expect("set");
    }
    let accepted = || {
        until_found("somebody accepts", || {
            let by_server = stage.server.accept().map(|(stream, _)| (stream, true));
            let by_socket = || stage.socket.accept().map(|(stream, _)| (stream, false));
            by_server.or_else(|_| by_socket()).ok()
        })
    };
    let client = stage.client();
    let (mut server, true) = accepted() else {
        panic!("it is forwarded as long as nobody else is there");
    };
    ping(&client, &server);

    let mut sources = HashSet::new();
    let mut forwarded = 0;
    let (is_over, begun) = (AtomicBool::new(false), Instant::now());
    let to = stage.listens_at;
    thread::scope(|scope| {
        scope.spawn(|| {
            flood(&forger, to, syns, APART);
            is_over.store(true, Relaxed);
        });
        // Bytes of the connection that was there before.
        let (from, bytes) = (client.try_clone().expect("a clone"), payload(4 << 20, 8));
        let server = &mut server;
        scope.spawn(move || pour_around(from, server, &bytes, || {}));
        let mut honest = 0;
        while honest < HONEST || !is_over.load(Relaxed) {
            sources.extend(watch.syns_to(port));
            if honest < HONEST {
                let client = stage.client();
                let (at_relay, is_forwarded) = accepted();
                ping(&client, &at_relay);
                honest += 1;
                forwarded += usize::from(is_forwarded);
            }
            thread::yield_now();
        }
    });
    sources.extend(watch.syns_to(port));
    // Each one waits at least so long before another one takes its place.
    let turns = begun.elapsed().div_duration_f64(CONNECT_TIMEOUT) as usize + 1;
    let most = HALF_OPEN as usize * turns + forwarded + 1;
    eprintln!(
        "{syns} SYNs in {:?}: the server has seen {}, {forwarded} of {HONEST} clients forwarded",
        begun.elapsed(),
        sources.len()
    );
    assert!(sources.len() <= most, "{} of {most}", sources.len());
    assert!(sources.len() >= HALF_OPEN as usize);

    drop((client, server));
    let mut timed_out = 0;
    while timed_out < HALF_OPEN {
        // The server may have answered, or have dropped the SYN.
        let end = stage.next_ended().end;
        timed_out += u32::from(matches!(end, ForwardEnd::TimedOut | ForwardEnd::Abandoned));
    }
    until("all are given up", || stage.forward.connections() == 0);
    // Nobody counts as waiting any more: there is room for as many again.
    flood(&forger, to, HALF_OPEN, APART);
    let mut again = HashSet::new();
    until("the server has got them all", || {
        again.extend(watch.syns_to(port));
        again.len() == HALF_OPEN as usize
    });
}

#[test]
fn a_flood_of_syns_harms_neither_old_nor_new_connections() {
    if available(Need::Root) {
        live_traffic_beside_a_flood(200_000);
    }
}

#[test]
#[ignore = "soak: a million SYNs take a while"]
fn a_flood_of_a_million_syns_harms_neither_old_nor_new_connections() {
    if available(Need::Root) {
        live_traffic_beside_a_flood(1_000_000);
    }
}

/// A network that floods leaves room for others.
#[test]
fn one_network_gets_half_of_those_that_may_wait() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|options| options.connect_timeout = 2 * PATIENCE);
    silence(&stage);
    let watch = Watch::on(stage.server_side());
    let forger = Forger::beside(&stage);
    flood(&forger, stage.listens_at, 256, 1);
    for _ in 0..HONEST {
        let (client, server) = stage.connect();
        ping(&client, &server);
    }
    assert!(stage.is_unknown_to_the_socket());
    let port = stage.server.local_addr().expect("an address").port();
    let sources: HashSet<_> = watch.syns_to(port).collect();
    assert_eq!(sources.len(), HALF_OPEN as usize / 2 + HONEST);
}

/// Those that are given up count no more, neither at the server nor in the network of their client.
#[test]
fn a_network_gets_room_again() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|options| options.connect_timeout = Duration::from_millis(300));
    silence(&stage);
    let watch = Watch::on(stage.server_side());
    let forger = Forger::beside(&stage);
    let port = stage.server.local_addr().expect("an address").port();
    let mut sources = HashSet::new();
    until("the server has seen twice as many as may wait", || {
        flood(&forger, stage.listens_at, HALF_OPEN, 1);
        sources.extend(watch.syns_to(port));
        sources.len() > 2 * HALF_OPEN as usize
    });
}
