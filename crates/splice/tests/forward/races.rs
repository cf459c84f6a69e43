//! What happens twice, at once, or again at once.

use std::collections::HashSet;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Namespace, Need, PATIENCE, available, pin_thread, until, until_found};
use socket2::{Domain, SockRef, Socket, Type};
use splice::{ForwardEnd, Side};
use splice_base::repair::{Repair, repair};

use crate::forgery::{Forged, Forger, SYN, Watch};
use crate::hops::ip;
use crate::stage::{Stage, ping};

/// Connects from a port of the client's that may have been in use until now.
fn connect_from(stage: &Stage, from: SocketAddr, patience: Duration) -> std::io::Result<TcpStream> {
    let to = stage.listens_at;
    let connect = move || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), patience)?;
        Ok(TcpStream::from(socket))
    };
    // The client's kernel may not yet know that its last connection is over.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let connected = stage.client_side().enter(connect).expect("entered");
        match connected {
            Err(error)
                if error.kind() == ErrorKind::AddrNotAvailable && Instant::now() < deadline =>
            {
                thread::yield_now();
            }
            connected => return connected,
        }
    }
}

fn client_end(port: u16) -> SocketAddr {
    (Lab::CLIENT_V4, port).into()
}

/// How many sockets have got a SYN, and wait for the end of the handshake.
fn half_open_sockets(namespace: &Namespace) -> usize {
    let read = || std::fs::read_to_string("/proc/thread-self/net/tcp");
    let table = namespace.enter(read).expect("entered").expect("read");
    // The fourth column is the state (`tcp_states.h`).
    let states = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(3));
    states.filter(|state| *state == "03").count()
}

/// How many SYNs the clients have repeated.
fn repeated(stage: &Stage) -> u64 {
    let counter = stage.client_side().tcp_counter("TCPSynRetrans");
    counter.expect("a counter")
}

/// One SYN gets one port, however often it comes and on how many CPUs.
#[test]
fn a_syn_that_comes_twice_opens_one_connection() {
    const CLIENTS: u16 = 100;
    const TIMES: usize = 4;
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|options| options.connect_timeout = 2 * PATIENCE);
    let watch = Watch::on(stage.server_side());
    let server = stage.server.local_addr().expect("an address");
    let forgers = [Forger::beside(&stage), Forger::beside(&stage)];
    let at_once = Barrier::new(forgers.len());
    // Nobody has these addresses, and nobody answers for them.
    let from = |client: u16| SocketAddr::from((Ipv4Addr::new(198, 18, 1, 99), 5000 + client));
    thread::scope(|scope| {
        for (cpu, forger) in forgers.iter().enumerate() {
            let (to, at_once) = (stage.listens_at, &at_once);
            scope.spawn(move || {
                // A machine with one CPU races less.
                let _ = pin_thread(cpu);
                for client in 0..CLIENTS {
                    let syn = Forged::new(SYN, [77, 0]).packet(from(client), to);
                    at_once.wait();
                    for _ in 0..TIMES / 2 {
                        forger.send_as_client(&syn);
                    }
                }
            });
        }
    });
    let mut sources = HashSet::new();
    until("the server has got a SYN of each client", || {
        sources.extend(watch.syns_to(server.port()));
        sources.len() >= usize::from(CLIENTS)
    });
    until("the others have been given back", || {
        stage.forward.connections() == usize::from(CLIENTS)
    });
    sources.extend(watch.syns_to(server.port()));
    assert_eq!(sources.len(), usize::from(CLIENTS));
    assert_eq!(half_open_sockets(stage.lab.relay()), 0);
}

#[test]
fn both_ends_close_at_once() {
    const ROUNDS: usize = 50;
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    for _ in 0..ROUNDS {
        let (client, server) = stage.connect();
        ping(&client, &server);
        let at_once = Barrier::new(2);
        thread::scope(|scope| {
            for mut stream in [&client, &server] {
                let at_once = &at_once;
                scope.spawn(move || {
                    at_once.wait();
                    stream.shutdown(Shutdown::Write).expect("shut down");
                    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
                });
            }
        });
        let ended = stage.next_ended();
        assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
        assert_eq!(ended.client_to_server_bytes, 5, "{ended:?}");
        assert_eq!(ended.server_to_client_bytes, 5, "{ended:?}");
    }
}

/// How a connection ends before its client uses its port again.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Before {
    ClosedByServer,
    ResetByClient,
    ResetByServer,
    /// The client's host has lost its memory.
    Vanished,
}

#[test]
fn a_client_uses_its_port_again_at_once() {
    const ROUNDS: u16 = 15;
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    for (at, before) in [
        Before::ClosedByServer,
        Before::ResetByClient,
        Before::ResetByServer,
        Before::Vanished,
    ]
    .into_iter()
    .enumerate()
    {
        let from = client_end(40_000 + at as u16);
        let repeated_before = repeated(&stage);
        for _ in 0..ROUNDS {
            let mut client = connect_from(&stage, from, PATIENCE).expect("connected");
            let (server, _) = stage.server.accept().expect("accepted");
            ping(&client, &server);
            match before {
                Before::ClosedByServer => {
                    drop(server);
                    assert_eq!(client.read(&mut [0]).expect("the end"), 0);
                }
                Before::ResetByClient => {
                    SockRef::from(&client)
                        .set_linger(Some(Duration::ZERO))
                        .expect("set");
                }
                Before::ResetByServer => {
                    SockRef::from(&server)
                        .set_linger(Some(Duration::ZERO))
                        .expect("set");
                    drop(server);
                    client.read(&mut [0]).expect_err("it was reset");
                }
                // A socket in this mode says nothing when it is closed.
                Before::Vanished => repair(&client, Repair::On).expect("repair mode"),
            }
            drop(client);
        }
        // A server that knows the connection asks back, and the client's second SYN opens another one.
        if before != Before::Vanished {
            assert_eq!(repeated(&stage), repeated_before, "{before:?}");
        }
        let mut seen = Vec::new();
        for _ in 0..ROUNDS - 1 {
            seen.push(stage.next_ended().end);
        }
        let expected = match before {
            Before::ClosedByServer => ForwardEnd::EndOfStream,
            Before::ResetByServer => ForwardEnd::Reset(Side::B),
            Before::ResetByClient | Before::Vanished => ForwardEnd::Reset(Side::A),
        };
        assert!(
            seen.iter().all(|end| *end == expected),
            "{before:?}: {seen:?}"
        );
        if before != Before::Vanished {
            assert_eq!(stage.next_ended().end, expected);
        }
    }
    assert!(stage.is_unknown_to_the_socket());
}

/// The server keeps the connections in TIME_WAIT, and the next clients come from the same ports of the relay: with
/// clocks of their own, which the server must not see go back.
#[test]
fn few_ports_serve_many_clients_one_after_the_other() {
    const CLIENTS: u8 = 5;
    if !available(Need::Root) {
        return;
    }
    for (ports, connections) in [(1_u16, 15), (3, 45)] {
        let lab = Lab::new().expect("a lab");
        let kernels = format!("1024 {}", u16::MAX - ports);
        let range = "net.ipv4.ip_local_port_range";
        lab.relay().set_sysctl(range, &kernels).expect("set");
        let ends = [Lab::RELAY_V4, Lab::SERVER_V4].map(IpAddr::from);
        let stage = Stage::between(lab, None, ends, |_| {});
        stage.server.set_nonblocking(true).expect("set");
        let address = |client: u8| Ipv4Addr::new(198, 18, 1, 10 + client);
        for client in 0..CLIENTS {
            let add = format!("address add {}/24 dev {}", address(client), Lab::TO_RELAY);
            ip(stage.client_side(), &add);
        }
        let mut sources = HashSet::new();
        let before = repeated(&stage);
        for client in (0..CLIENTS).cycle().take(connections) {
            let from = (address(client), 0).into();
            let (mut client, (server, peer)) = until_found("a port is free", || {
                let client = connect_from(&stage, from, PATIENCE).expect("connected");
                let is_forwarded = || match (stage.server.accept(), stage.socket.accept()) {
                    (Ok(at_server), _) => Some(Some(at_server)),
                    // Without a free port the relay's socket has it.
                    (_, Ok(_)) => Some(None),
                    _ => None,
                };
                let accepted = until_found("somebody has it", is_forwarded);
                if accepted.is_none() {
                    let end = SockRef::from(&client).set_linger(Some(Duration::ZERO));
                    end.expect("set");
                }
                accepted.map(|at_server| (client, at_server))
            });
            ping(&client, &server);
            drop(server);
            assert_eq!(client.read(&mut [0]).expect("the end"), 0);
            sources.insert(peer.port());
        }
        assert_eq!(repeated(&stage), before);
        assert!(sources.len() <= usize::from(ports), "{sources:?}");
    }
}

/// The client gives up, and its next connection has the port of the first one.
#[test]
fn a_client_tries_again_before_the_server_answers() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::with(|options| options.connect_timeout = 2 * PATIENCE);
    let from = client_end(40_000);
    // It gets the SYN, and cannot answer.
    let route = format!("blackhole {}", Lab::RELAY_FAR_V4);
    ip(stage.server_side(), &format!("route add {route}"));
    let patience = Duration::from_millis(100);
    connect_from(&stage, from, patience).expect_err("nobody answers");
    ip(stage.server_side(), &format!("route del {route}"));
    let client = connect_from(&stage, from, PATIENCE).expect("connected");
    let (server, _) = stage.server.accept().expect("accepted");
    ping(&client, &server);
    assert_eq!(stage.next_ended().end, ForwardEnd::Reset(Side::A));
    drop((client, server));
    assert_eq!(stage.next_ended().end, ForwardEnd::EndOfStream);
}
