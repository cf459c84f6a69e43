//! Sockets that are left alone, since something else has to do with them.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use netlab::{Lab, Need, available, present, until, until_at_rest};
use rustix::net::ipproto;
use socket2::{Domain, Protocol, Socket, Type};
use splice::bypass::{Reason, State};
use splice_base::repair::{Repair, RepairQueue, queue_sequence, repair, set_queue_sequence};
use splice_base::socket_option::set_zero_copy;
use splice_sockmap::{MapType, Redirect, Redirections};

use crate::random::Random;
use crate::stage::{Ends, Running, Stage, bytes};

/// Talks until a connection is refused for this reason.
fn until_refused(stage: &Stage, ends: &mut Ends, reason: Reason) {
    let mut random = Random::of_run(95);
    until(reason.as_str(), || {
        ends.converse(&mut random, 20, 300);
        let of = stage.connection(ends).expect("it is there");
        of.state == State::Tcp && of.reason == Some(reason)
    });
    ends.converse(&mut random, 100, 300);
    let of = stage.connection(ends).expect("it is there");
    for end in [of.client, of.server] {
        assert_eq!(end.expect("seen").redirected_messages, 0, "{of:?}");
    }
}

#[test]
fn an_end_with_zero_copy_is_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    for is_client in [true, false] {
        let mut ends = stage.connect(Lab::SERVER_V4);
        let end = if is_client {
            &ends.client
        } else {
            &ends.server
        };
        set_zero_copy(end).expect("set");
        until_refused(&stage, &mut ends, Reason::ZeroCopy);
    }
    assert_eq!(stage.status().members, 0);
    running.stop();
}

#[test]
fn a_socket_that_another_program_redirects_is_left_to_it() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    let others = Redirections::new(Redirect::SendToLocal, MapType::Hash, 2).expect("loaded");
    let link = others.link(&ends.client, &ends.server).expect("linked");
    until_refused(&stage, &mut ends, Reason::Refused);
    // The other program has them still.
    let before = link.counters().messages;
    ends.converse(&mut Random::of_run(96), 100, 300);
    assert_eq!(link.counters().messages, before + 100);
    running.stop();
}

/// It is not ESTABLISHED any more, and no socket of that kind enters a map.
#[test]
fn a_connection_that_is_half_closed_before_stays_on_tcp() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    ends.converse(&mut Random::of_run(93), 5, 300);
    ends.client.shutdown(Shutdown::Write).expect("shut");
    let mut random = Random::of_run(94);
    for _ in 0..500 {
        let message = bytes(&mut random, 100);
        ends.server.write_all(&message).expect("sent");
        let mut heard = [0; 100];
        ends.client.read_exact(&mut heard).expect("received");
        assert!(message == heard, "other bytes");
    }
    assert_eq!(stage.status().members, 0);
    assert_eq!(stage.status().sum().redirected_messages, 0);
    assert_eq!(ends.server.read(&mut [0]).expect("the end"), 0);
    running.stop();
}

/// They are read before anything that is redirected, and do not wait for the next segment.
#[test]
fn bytes_that_wait_when_it_starts_are_read_first() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut ends = stage.connect(Lab::SERVER_V4);
    let mut random = Random::of_run(92);
    ends.converse(&mut random, 50, 300);
    let mut waiting = bytes(&mut random, 3000);
    ends.client.write_all(&waiting).expect("sent");
    let running = stage.start();
    // Of what it has, it reads a part each time, and more comes.
    until("it is redirected", || {
        for _ in 0..20 {
            let message = bytes(&mut random, 100);
            ends.client.write_all(&message).expect("sent");
            waiting.extend(message);
            let mut heard = vec![0; waiting.len().min(110)];
            ends.server.read_exact(&mut heard).expect("received");
            assert!(waiting.drain(..heard.len()).eq(heard), "other bytes");
            ends.server.write_all(b"ok").expect("sent");
            ends.client.read_exact(&mut [0; 2]).expect("received");
        }
        let of = stage.connection(&ends);
        of.is_some_and(|of| of.client.is_some_and(|end| end.redirected_messages > 0))
    });
    running.stop();
}

#[test]
fn multipath_tcp_is_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let missing = rustix::net::socket(
        rustix::net::AddressFamily::INET,
        rustix::net::SocketType::STREAM,
        Some(ipproto::MPTCP),
    );
    let missing = missing.err().map(|errno| errno.to_string());
    if !present("mptcp", missing) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let fresh = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).expect("one");
    let [near, far] = &stage.groups;
    let listen = || {
        let listener = fresh();
        let to: SocketAddr = (Lab::SERVER_V4, 0).into();
        listener.bind(&to.into()).expect("bound");
        listener.listen(1).expect("listens");
        listener
    };
    let listener = far.enter(|| stage.lab.server().enter(listen));
    let listener = listener.expect("entered").expect("entered");
    let to = listener.local_addr().expect("bound");
    let dial = || {
        let client = fresh();
        client.connect(&to).expect("connected");
        client
    };
    let client = near.enter(|| stage.lab.client().enter(dial));
    let client: TcpStream = client.expect("entered").expect("entered").into();
    let server: TcpStream = listener.accept().expect("accepted").0.into();
    let mut ends = Ends { client, server };
    ends.converse(&mut Random::of_run(97), 300, 300);
    until_at_rest(Duration::from_millis(300), || stage.status().members);
    assert_eq!(stage.status().members, 0);
    assert_eq!(stage.status().sum().redirected_messages, 0);
    ends.converse(&mut Random::of_run(98), 300, 300);
    running.stop();
}

/// A connection that is made up: it begins with these numbers, and there was no handshake.
fn made_up(stage: &Stage, lab: &Lab, address: IpAddr, numbers: [u32; 2]) -> Ends {
    let [near, far] = &stage.groups;
    let ports = [7_001, 7_000];
    let fresh = |at: usize| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
        let name = SocketAddr::new(address, ports[at]);
        socket.set_reuse_address(true).expect("set");
        socket.bind(&name.into()).expect("bound");
        repair(&socket, Repair::On).expect("repair mode");
        for (queue, number) in [
            (RepairQueue::Send, numbers[at]),
            (RepairQueue::Receive, numbers[1 - at]),
        ] {
            set_queue_sequence(&socket, queue, number).expect("set");
        }
        let peer = SocketAddr::new(address, ports[1 - at]);
        socket.connect(&peer.into()).expect("connected");
        socket
    };
    let at_client = |at| lab.client().enter(|| fresh(at)).expect("entered");
    let client = near.enter(|| at_client(0)).expect("entered");
    let server = far.enter(|| at_client(1)).expect("entered");
    for end in [&client, &server] {
        // The probe tells the other end the window.
        repair(end, Repair::OffWithProbe).expect("in use");
        end.set_tcp_nodelay(true).expect("set");
        end.set_read_timeout(Some(netlab::PATIENCE)).expect("set");
    }
    Ends {
        client: client.into(),
        server: server.into(),
    }
}

/// Namespaces may give the same tuple the same numbers when they connect in the same moment.
#[test]
fn two_connections_with_the_same_numbers_are_both_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut options = stage.options();
    // Nothing is decided before both have talked.
    options.least_reads = 200;
    let running = Running::start(&options);
    let mut ends = stage.connect(Lab::SERVER_V4);
    repair(&ends.client, Repair::On).expect("repair mode");
    let numbers = [RepairQueue::Send, RepairQueue::Receive];
    let numbers = numbers.map(|queue| queue_sequence(&ends.client, queue).expect("asked"));
    repair(&ends.client, Repair::Off).expect("in use");
    let mut random = Random::of_run(99);
    until("both ends are seen", || {
        ends.converse(&mut random, 5, 100);
        let of = stage.connection(&ends);
        of.is_some_and(|of| of.client.is_some() && of.server.is_some())
    });
    let lab = Lab::new().expect("a lab");
    let mut twin = made_up(&stage, &lab, Lab::CLIENT_V4.into(), numbers);
    until("the conflict is seen", || {
        twin.converse(&mut random, 5, 100);
        stage.status().conflicts > 0
    });
    until_refused(&stage, &mut ends, Reason::Conflict);
    twin.converse(&mut random, 20, 100);
    assert_eq!(stage.status().members, 0);
    assert_eq!(stage.status().sum().redirected_messages, 0);
    running.stop();
}
