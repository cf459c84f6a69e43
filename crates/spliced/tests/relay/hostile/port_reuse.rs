//! A client that connects again from the port of a connection that has just ended, or that lives and is forgotten: it gets
//! a connection at once, as one whose connection is copied.

use std::net::SocketAddr;

use netlab::{Need, available};
use socket2::{Domain, Protocol, Socket, Type};
use splice_base::repair::{Repair, repair};
use splice_bpf::types::segment_reason;

use super::connection::Connection;
use super::stage::{BY_RESET, IN_ORDER, Stage};
use crate::patience::until;
use crate::payload::Payload;
use crate::peer::{End, Peer};

const ROUNDS: usize = 20;
const LOST_BYTES: u64 = 500;

/// Of one end, without a segment, as by a crash.
fn forget(end: Peer) {
    repair(&end, Repair::On).expect("TCP_REPAIR");
    // A process that another test starts may have the descriptor for a moment more.
    rustix::net::connect_unspec(&end).expect("disconnected");
    drop(end);
}

fn connect_from([from, to]: [SocketAddr; 2]) -> Peer {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP));
    let socket = socket.expect("a socket");
    socket.set_reuse_address(true).expect("SO_REUSEADDR");
    socket.bind(&from.into()).expect("its port is free");
    socket.connect(&to.into()).expect("connected");
    socket.set_tcp_nodelay(true).expect("TCP_NODELAY");
    Peer::new(socket.into())
}

/// Has clients connect again after `end`, which leaves them none of their connections. Whoever is left of them must be
/// reset. No client repeats its SYN more often than `repeats`: for the first time after a second.
fn come_again(stage: &Stage, repeats: u64, end: impl Fn(Connection) -> Option<Peer>) {
    let repeated = || {
        stage
            .client()
            .tcp_counter("TCPSynRetrans")
            .expect("counted")
    };
    for round in 0..ROUNDS {
        let connection = stage.connect(1).pop().expect("one");
        connection.moves_data();
        let address = |text: String| -> SocketAddr { text.parse().expect("an address") };
        let client = &connection.client;
        let ends = [client.local_address(), client.peer_address()].map(address);
        let server = end(connection);
        let before = repeated();
        let client = stage
            .client()
            .enter(|| connect_from(ends))
            .expect("entered");
        assert!(
            repeated() - before <= repeats,
            "{round}: {}",
            repeated() - before
        );
        if let Some(server) = server {
            assert_eq!(server.read_to_end(Payload::new(4), 0).1, End::Reset);
        }
        let server = stage.target().accept();
        let connection = Connection { client, server };
        connection.moves_data();
        connection.ends_in_order();
        drop(connection);
        until("both have ended", || {
            stage.hop().connections() == 2 * (round + 1)
        });
    }
    stage.expect_ended(2 * ROUNDS, &[BY_RESET, IN_ORDER].concat());
}

/// Who has forgotten its connection is asked, resets it, and repeats its SYN at once (`tcp_rcv_synsent_state_process`).
fn come_again_when_asked(stage: &Stage, end: impl Fn(Connection) -> Option<Peer>) {
    come_again(stage, 1, end);
    if stage.splices() {
        // Not the server, which may have been asked for something else.
        let asked = stage.server().tcp_counter("TCPSYNChallenge");
        assert_eq!(asked.expect("counted"), 0);
        assert_eq!(
            stage.hop().counted(segment_reason::CHALLENGED),
            ROUNDS as u64
        );
    }
}

fn after_the_end(stage: &Stage) {
    come_again(stage, 0, |Connection { client, server }| {
        server.end_stream();
        client.expect_end();
        drop(client);
        server.expect_end();
        None
    });
}

fn after_a_reset_of_its_own(stage: &Stage) {
    come_again(stage, 0, |Connection { client, server }| {
        client.reset();
        Some(server)
    });
}

fn after_a_reset_of_the_server(stage: &Stage) {
    come_again(stage, 0, |Connection { client, server }| {
        server.reset();
        client.expect_reset();
        None
    });
}

fn after_a_crash(stage: &Stage) {
    come_again_when_asked(stage, |Connection { client, server }| {
        forget(client);
        Some(server)
    });
}

/// The server would take the SYN for the first of a new connection.
fn after_a_crash_of_both(stage: &Stage) {
    come_again_when_asked(stage, |Connection { client, server }| {
        forget(server);
        forget(client);
        None
    });
}

/// What the server has received ends before what the client has sent.
fn after_a_crash_with_bytes_that_got_lost(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    const TABLE: &str = "table inet lose {
        counter lost {}
        chain in { type filter hook input priority 0; meta length > 500 counter name lost drop; }
    }";
    let nft = |words: &[&str]| {
        let done = stage.server().command("nft").args(words).output();
        let done = done.expect("nft runs");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).expect("text")
    };
    come_again_when_asked(stage, |Connection { client, server }| {
        nft(&[TABLE]);
        client.send(Payload::new(4), 0, LOST_BYTES);
        until("they are lost", || {
            !nft(&["list", "counters"]).contains("packets 0")
        });
        forget(client);
        nft(&["delete", "table", "inet", "lose"]);
        Some(server)
    });
}

with_each_engine!(after_the_end);
with_each_engine!(after_a_reset_of_its_own);
with_each_engine!(after_a_reset_of_the_server);
with_each_engine!(after_a_crash);
with_each_engine!(after_a_crash_of_both);
with_each_engine!(after_a_crash_with_bytes_that_got_lost);
