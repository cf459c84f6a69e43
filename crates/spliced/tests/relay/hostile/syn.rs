//! A SYN on the addresses and ports of a connection that lives (RFC 5961, 4): whoever gets it asks, and only a peer that has
//! no connection ends it.

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use splice_base::repair::{Repair, repair};

use super::connection::Connection;
use super::crowd::Crowd;
use super::segment::{ACK, SYN, Segment};
use super::stage::{BY_RESET, IN_ORDER, Stage};
use crate::patience::until_found;
use crate::peer::Peer;
use crate::random::Random;

const SEGMENTS: usize = 100;
/// Between two attempts of a client whose SYN was answered by a question.
const PAUSE: Duration = Duration::from_millis(20);

fn forged_ones_end_nothing(stage: &Stage) {
    let crowd = Crowd::on(stage, &[SYN, SYN | ACK]);
    let mut random = Random::of_run(44);
    crowd.attack(|flags, forger, next| {
        for number in 0..SEGMENTS {
            // One of them at the very next number.
            let seq = if number == 0 {
                next.seq
            } else {
                random.next() as u32
            };
            forger.send(&Segment {
                flags,
                seq,
                ..next.clone()
            });
        }
    });
    crowd.check(|_, connection| {
        connection.moves_data();
        connection.ends_in_order();
    });
    crowd.close(IN_ORDER);
}

/// A client that has forgotten its connection, as after a crash, connects from the same port.
fn a_client_comes_again_from_its_port(stage: &Stage) {
    let Connection { client, server } = stage.connect(1).pop().expect("one");
    client.send(crate::payload::Payload::new(1), 0, 1000);
    server.expect(crate::payload::Payload::new(1), 0, 1000);
    let parse = |text: String| -> SocketAddr { text.parse().expect("an address") };
    let [from, to] = [client.local_address(), client.peer_address()].map(parse);
    repair(&client, Repair::On).expect("TCP_REPAIR");
    // Without a segment.
    drop(client);
    let again = until_found("it connects again", || {
        let connected = stage.client().enter(|| connect_from(from, to));
        let connected = connected.expect("entered");
        if connected.is_none() {
            thread::sleep(PAUSE);
        }
        connected
    });
    server.expect_reset();
    let connection = Connection {
        client: again,
        server: stage.target().accept(),
    };
    connection.moves_data();
    connection.ends_in_order();
    drop((server, connection));
    stage.expect_ended(2, &[BY_RESET, IN_ORDER].concat());
}

fn connect_from(from: SocketAddr, to: SocketAddr) -> Option<Peer> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP));
    let socket = socket.expect("a socket");
    socket.set_reuse_address(true).expect("SO_REUSEADDR");
    socket.bind(&from.into()).expect("its port is free");
    socket.connect(&to.into()).ok()?;
    socket.set_tcp_nodelay(true).expect("TCP_NODELAY");
    Some(Peer::new(socket.into()))
}

with_each_engine!(forged_ones_end_nothing);
with_each_engine!(a_client_comes_again_from_its_port);
