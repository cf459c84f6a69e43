//! Segments that neither end has sent, and damaged ones.

use std::net::TcpStream;

use netlab::{Lab, Need, PATIENCE, available, until};
use socket2::{Domain, Socket, Type};
use splice::ForwardEnd;

use crate::forgery::{ACK, FIN, Forged, Forger, RST, SYN};
use crate::stage::{Stage, ping};

/// Three octets of nothing, and the end of the list.
const IP_OPTIONS: &[u8] = &[1, 1, 1, 0];

/// An option that is longer than the header.
const BAD_TCP_OPTIONS: &[u8] = &[8, 40, 1, 1];

/// Timestamps all around the clock: one of them is far ahead of any other.
const TIMESTAMPS: [&[u8]; 4] = [
    &[1, 1, 8, 10, 0x00, 0, 0, 1, 0, 0, 0, 0],
    &[1, 1, 8, 10, 0x40, 0, 0, 1, 0, 0, 0, 0],
    &[1, 1, 8, 10, 0x80, 0, 0, 1, 0, 0, 0, 0],
    &[1, 1, 8, 10, 0xc0, 0, 0, 1, 0, 0, 0, 0],
];

/// The flag of a fragment that others follow.
const MORE: u16 = 0x2000;

/// What is a forgery although its sender knows what the ends send next, as far as an end can tell.
fn forgeries(seq: u32, ack: u32) -> Vec<Forged> {
    let at = |flags, ahead: u32, beyond: u32| {
        Forged::new(flags, [seq.wrapping_add(ahead), ack.wrapping_add(beyond)])
    };
    let mut all = Vec::new();
    for flags in [RST, RST | ACK] {
        for ahead in [1, 1000, 1 << 20, 1 << 30, u32::MAX] {
            all.push(at(flags, ahead, 0));
        }
    }
    for flags in [SYN, SYN | ACK] {
        for ahead in [0, 1, 1000, 1 << 30, u32::MAX] {
            all.push(at(flags, ahead, 0));
        }
    }
    // What acknowledges bytes that were not sent yet does not count, and neither does what is far off.
    for beyond in [1, 1 << 20, 1 << 30] {
        all.push(at(ACK, 0, beyond));
        all.push(at(FIN | ACK, 0, beyond));
        all.push(at(FIN | ACK, 1 << 30, beyond));
    }
    all.push(at(FIN | ACK, 1 << 30, 0));
    all.push(at(FIN, 0, 0));
    all.push(at(0, 0, 0));
    all
}

/// What the relay does not translate. Its own stack would answer with a reset that the sender accepts.
fn damaged(seq: u32, ack: u32) -> Vec<Forged> {
    let next = Forged::new(ACK, [seq, ack]);
    let with = |change: fn(&mut Forged)| {
        let mut one = next.clone();
        change(&mut one);
        one
    };
    vec![
        with(|one| one.ip_options = IP_OPTIONS),
        with(|one| one.tcp_options = BAD_TCP_OPTIONS),
        with(|one| one.fragment = MORE),
        with(|one| one.fragment = 1),
        with(|one| one.fragment = MORE | 1),
    ]
}

#[test]
fn forgeries_and_damaged_segments_do_no_harm() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let forger = Forger::beside(&stage);
    let (client, server) = stage.connect();
    let ends = [
        client.local_addr(),
        client.peer_addr(),
        server.local_addr(),
        server.peer_addr(),
    ];
    let [client_end, listener, server_end, source] = ends.map(|end| end.expect("an address"));
    let mut pings = 0;
    let mut numbers = || {
        pings += 1;
        forger.numbers(&client, || ping(&client, &server))
    };
    for kind in [forgeries, damaged] {
        let now = numbers();
        for at in 0..kind(0, 0).len() {
            let from_client = &kind(now.client, now.server)[at];
            forger.send_as_client(&from_client.packet(client_end, listener));
            let from_server = &kind(now.server, now.client)[at];
            forger.send_as_server(&from_server.packet(server_end, source));
        }
        numbers();
    }
    drop((client, server));
    let ended = stage.next_ended();
    assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
    assert_eq!(ended.client_to_server_bytes, 5 * pings, "{ended:?}");
    assert_eq!(ended.server_to_client_bytes, 5 * pings, "{ended:?}");
}

/// While the server has not answered, nobody knows what it and the client send next, but for their SYNs.
#[test]
fn a_connection_that_opens_learns_from_nobody_else() {
    const PINGS: u64 = 20;
    if ![Need::Root, Need::Nft].into_iter().all(available) {
        return;
    }
    let stage = Stage::with(|options| options.connect_timeout = 2 * PATIENCE);
    let forger = Forger::beside(&stage);
    let nft = |command: &str| {
        let done = stage.server_side().command("nft").arg(command).status();
        assert!(done.expect("nft").success(), "{command}");
    };
    nft("add table ip deaf");
    nft("add chain ip deaf in { type filter hook input priority 0; }");
    nft("add rule ip deaf in tcp flags syn drop");
    let from = (Lab::CLIENT_V4, 4000).into();
    let to = stage.listens_at;
    let connect = move || {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        socket.bind(&socket2::SockAddr::from(from)).expect("bound");
        socket
            .connect_timeout(&to.into(), 2 * PATIENCE)
            .expect("connected");
        TcpStream::from(socket)
    };
    let client = std::thread::scope(|scope| {
        let near = stage.client_side();
        let client = scope.spawn(move || near.enter(connect).expect("entered"));
        until("its SYN has been repeated", || {
            let repeated = near.tcp_counter("TCPSynRetrans");
            repeated.expect("a counter") > 0
        });
        for tcp_options in TIMESTAMPS {
            for quarter in 0..4 {
                let forged = Forged {
                    tcp_options,
                    ..Forged::new(ACK, [quarter << 30, quarter << 30])
                };
                forger.send_as_client(&forged.packet(from, to));
            }
        }
        nft("delete table ip deaf");
        client.join().expect("no panic")
    });
    let (server, _) = stage.server.accept().expect("accepted");
    for _ in 0..PINGS {
        ping(&client, &server);
    }
    drop((client, server));
    let ended = stage.next_ended();
    assert_eq!(ended.end, ForwardEnd::EndOfStream, "{ended:?}");
    assert_eq!(ended.client_to_server_bytes, 5 * PINGS, "{ended:?}");
    assert_eq!(ended.server_to_client_bytes, 5 * PINGS, "{ended:?}");
}
