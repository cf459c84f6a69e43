//! How spliced pairs end: by half-closes, and by resets.

use super::window_scale::{MIDDLE, TINY, connect_scaled};
use super::*;
use crate::kernel::segment::change_over::LONGEST_OVERLAP_PAUSE;
use splice_bpf::types::{
    SegmentSide, SegmentSocket, SegmentTuple, segment_mark as mark, segment_socket_flag as has,
};

/// One direction ends, and the other goes on with bulk, whichever it is.
#[test]
fn one_half_ends_and_the_other_goes_on() {
    const BYTES: usize = 8 << 20;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    for server_ends_first in [false, true] {
        let (client, server, handle) = spliced_across(&lab, &splicer);
        let proof = Proof::begin(&lab, &splicer, &handle);
        let (first, second) = if server_ends_first {
            (&server, &client)
        } else {
            (&client, &server)
        };
        first.shutdown(Shutdown::Write).expect("shutdown");
        assert_eq!({ second }.read(&mut [0; 8]).expect("the end"), 0);
        one_way(second, first, BYTES, seed());
        let outcome = ended(&handle);
        assert_eq!(outcome.moved.total(), BYTES as u64 + 10);
        proof.end(BYTES as u64);
    }
}

#[test]
fn a_reset_of_one_side_resets_the_other() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    for (side, half_closed) in [
        (Side::A, false),
        (Side::B, false),
        (Side::A, true),
        (Side::B, true),
    ] {
        let (client, server, handle) = spliced_across(&lab, &splicer);
        let proof = Proof::begin(&lab, &splicer, &handle);
        ping(&client, &server);
        let (first, mut second) = match side {
            Side::A => (client, server),
            Side::B => (server, client),
        };
        if half_closed {
            // The other peer has ended its stream before.
            second.shutdown(Shutdown::Write).expect("shutdown");
            assert_eq!((&first).read(&mut [0; 8]).expect("the end"), 0);
        }
        socket2::SockRef::from(&first)
            .set_linger(Some(Duration::ZERO))
            .expect("SO_LINGER");
        drop(first);
        let error = second.read(&mut [0; 8]).expect_err("a reset");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        let outcome = handle.wait_timeout(PATIENCE);
        let outcome = outcome.expect("it ends");
        assert_eq!(outcome.reason, Reason::Reset(side), "{half_closed}");
        assert_eq!(moved(&outcome), [10, 10]);
        proof.end(10);
    }
}

/// A pair in OVERLAP whose loop is halted. The first stream bypasses the sockets, and user space moves some
/// bytes of the second.
pub(super) struct HalfPast {
    pub(super) lab: Lab,
    pub(super) halt: Halt,
    tuples: [SegmentTuple; 2],
    pub(super) client: TcpStream,
    pub(super) server: TcpStream,
    pub(super) handle: Handle,
    /// The hash of what user space moves.
    pub(super) in_user_space: u64,
    // The pair that had the program loaded, and the splicer of both.
    _others: (Splicer, Joined),
}

impl HalfPast {
    pub(super) fn new(connect: impl Fn(&Lab) -> Connected, bytes: usize) -> Self {
        let (lab, splicer, first) = spliced_lab();
        let halt = Halt::at(&splicer, ["overlap", "emptying"]);
        let connected = connect(&lab);
        let tuples = [&connected.a, &connected.b].map(tuple);
        let (client, server, handle) = connected.join(&splicer, &by_name());
        for stream in [&client, &server] {
            stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
        }
        halt.wait();
        let datapath = datapath_in(&lab);
        let [from_client, from_server] = &datapath.flow(1).side;
        let begun = from_server.high_seq();
        let in_user_space = write_some(&server, bytes, seed());
        netlab::until("the program has seen it", || {
            from_server.high_seq() != begun
        });
        halt.go_on();
        halt.wait();
        let is_taken_over = |side: &SegmentSide| side.marks() & mark::TAKEN_OVER != 0;
        assert!(is_taken_over(from_client) && !is_taken_over(from_server));
        Self {
            lab,
            halt,
            tuples,
            client,
            server,
            handle,
            in_user_space,
            _others: (splicer, first),
        }
    }

    /// Waits for the relay's socket towards the server.
    pub(super) fn until(&self, what: &str, condition: impl Fn(&SegmentSocket) -> bool) {
        let (datapath, tuples) = (datapath_in(&self.lab), &self.tuples);
        netlab::until(what, || {
            let found = self.lab.relay().enter(|| datapath.inspect(tuples));
            condition(&found.expect("entered").expect("run").socket[1])
        });
    }
}

/// The receiver of the first stream resets its connection. The relay's socket gets the reset, and only the
/// program sees what it acknowledges.
#[test]
fn a_reset_in_overlap_tells_what_has_arrived() {
    const BYTES: usize = 1000;
    if !available(Need::Root) {
        return;
    }
    let pair = HalfPast::new(Connected::across, 7);
    // The acknowledgement comes with data, or after 40 ms (`TCP_ATO_MIN`).
    rustix::net::sockopt::set_tcp_quickack(&pair.server, false).expect("TCP_QUICKACK");
    write_some(&pair.client, BYTES, seed());
    read_some(&pair.server, BYTES);
    rustix::net::connect_unspec(&pair.server).expect("disconnected");
    pair.until("the socket has been reset", |socket| {
        socket.flags & has::FOUND == 0
    });
    pair.halt.go_on();
    let outcome = pair.handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::B));
    assert_eq!(outcome.moved.a_to_b, BYTES as u64);
}

/// The first stream has ended without the sockets. User space has yet to pass on the second, whose end the
/// relay's socket has acknowledged. The server's socket is gone when `test` gets the client.
fn in_overlap_with_a_peer_gone(
    connect: impl Fn(&Lab) -> Connected,
    bytes: usize,
    test: impl Fn(&Lab, &TcpStream),
) {
    const CLOSE_WAIT: u32 = 8;
    if !available(Need::Root) {
        return;
    }
    let pair = HalfPast::new(connect, bytes);
    pair.client.shutdown(Shutdown::Write).expect("shutdown");
    assert_eq!((&pair.server).read(&mut [0; 8]).expect("the end"), 0);
    pair.server.shutdown(Shutdown::Write).expect("shutdown");
    pair.until("the server's socket is gone", |socket| {
        socket.state == CLOSE_WAIT && socket.rcv_wup == socket.rcv_nxt
    });
    test(&pair.lab, &pair.client);
    pair.halt.go_on();
    netlab::until("it is given on", || {
        pair.handle.counters().total() == bytes as u64
    });
    let (length, hash, _) = read_all(&pair.client);
    assert_eq!((length, hash), (bytes, pair.in_user_space));
    assert_eq!(moved(&ended(&pair.handle)), [0, bytes as u64]);
}

/// The acknowledgement of the second stream's end meets no socket, and is answered with a reset.
#[test]
fn an_answer_to_the_last_acknowledgement_is_no_reset() {
    in_overlap_with_a_peer_gone(Connected::across, 7, |_, _| ());
}

/// So are other segments of the first peer while the rest of the second stream is still in the relay.
#[test]
fn an_answer_to_a_keep_alive_is_no_reset() {
    // Most of it is in the relay until the client reads.
    let connect = |lab: &Lab| connect_scaled(lab, TINY, MIDDLE);
    in_overlap_with_a_peer_gone(connect, 30_000, |lab, client| {
        let answers = || count(lab.server(), &["OutRsts"]);
        let before = answers();
        let second = Duration::from_secs(1);
        let often = socket2::TcpKeepalive::new()
            .with_time(second)
            .with_interval(second);
        let set = socket2::SockRef::from(client).set_tcp_keepalive(&often);
        set.expect("keep-alive");
        netlab::until("one is answered", || answers() > before);
    });
}

/// The pair's turn comes before the loop has seen that the client has reset its connection. The kernel then
/// finds the listener in place of the socket, whose sequence numbers are all 0.
#[test]
fn a_listener_is_not_taken_for_the_socket_that_was_reset() {
    const BYTES: usize = 1000;
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let (front, front_address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let (back, back_address) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
    // 0 is ahead of sequence numbers in the upper half, so they would be raised to it.
    let connected = loop {
        let client = lab.client().enter(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            // Less room than was announced to the server, so its stream goes through the sockets for a while.
            socket.set_recv_buffer_size(12_000)?;
            socket.connect(&front_address.into())?;
            Ok::<_, std::io::Error>(TcpStream::from(socket))
        });
        let client = client.expect("entered").expect("connect");
        let a = front.accept().expect("accept").0;
        let b = connect_in(lab.relay(), back_address);
        let server = back.accept().expect("accept").0;
        let connected = Connected::new(client, [a, b], server);
        let [a, _] = sockets_across(&lab, [&connected.a, &connected.b]);
        if a.rcv_nxt > u32::MAX / 2 + BYTES as u32 && a.rcv_nxt < u32::MAX - 2 * BYTES as u32 {
            break connected;
        }
    };
    let cookie = rustix::net::sockopt::socket_cookie(&connected.a).expect("a cookie");
    let tuples = [&connected.a, &connected.b].map(tuple);
    // The loop may look once or twice before it sees the bytes that user space has to move.
    let mut steps = ["emptying"; 16];
    steps[0] = "overlap";
    let halt = Halt::at(&splicer, steps);
    let (client, server, handle) = connected.join(&splicer, &by_name());
    halt.wait();
    let datapath = datapath_in(&lab);
    let [from_client, from_server] = &datapath.flow(1).side;
    let begun = from_server.high_seq();
    (&server).write_all(b"rest   ").expect("write");
    netlab::until("the program has seen it", || {
        from_server.high_seq() != begun
    });
    let has_come = || rustix::io::ioctl_fionread(&client).expect("FIONREAD") == 7;
    while !has_come() {
        halt.go_on();
        halt.wait();
    }
    (&client).read_exact(&mut [0; 7]).expect("read");
    assert_ne!(from_client.marks() & mark::TAKEN_OVER, 0);
    let (begin, begun) = mpsc::channel();
    let (end, ended) = mpsc::channel();
    let stand_still = move |_: &mut EventLoop| {
        begin.send(()).expect("awaited");
        ended.recv().expect("told");
    };
    splicer.remote().run(stand_still).expect("a loop");
    watch(&splicer, |_| ());
    let halted_at = Instant::now();
    netlab::until("the pair's next turn is due", || {
        halted_at.elapsed() > LONGEST_OVERLAP_PAUSE
    });
    halt.go_on();
    begun.recv_timeout(PATIENCE).expect("it stands still");
    write_some(&client, BYTES, seed());
    read_some(&server, BYTES);
    socket2::SockRef::from(&client)
        .set_linger(Some(Duration::ZERO))
        .expect("SO_LINGER");
    drop(client);
    netlab::until("the listener is found", || {
        let found = lab.relay().enter(|| datapath.inspect(&tuples));
        let found = found.expect("entered").expect("run").socket[0];
        found.flags & has::FOUND != 0 && found.cookie != cookie
    });
    end.send(()).expect("awaited");
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::A));
    assert_eq!(moved(&outcome), [BYTES as u64, 7]);
}

/// Both streams end through the sockets when the change-over has just begun. What the receiver had no room for is
/// sent after that, and its timestamps must not be behind earlier ones.
#[test]
fn the_rest_of_a_pair_that_ends_as_it_changes_over_arrives() {
    const BYTES: usize = 48 << 10;
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let connected = connect_scaled(&lab, TINY, MIDDLE);
    let (client, server, handle) = connected.join(&splicer, &by_volume(10));
    let halt = Halt::at(&splicer, ["overlap"]);
    ping(&client, &server);
    halt.wait();
    let sent = write_all(&client, BYTES, seed());
    server.shutdown(Shutdown::Write).expect("shutdown");
    halt.go_on();
    // It depends on the peers whether the program has a byte left to move.
    let outcome = ended(&handle);
    let took = outcome.engine == EngineName::Segment
        || outcome.why_engine.contains("segment took the pair");
    assert!(took, "{outcome:?}");
    let (length, hash, _) = read_all(&server);
    assert_eq!((length, hash), (BYTES, sent));
    assert_eq!(count(lab.server(), &["PAWSEstab"]), 0);
}

/// The loop does not wait for the program: it tries a pair once the program is loaded.
#[test]
fn auto_takes_a_pair_that_lives_long() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let (client, server, handle) = Connected::across(&lab).join(&splicer, &Options::default());
    let deadline = Instant::now() + PATIENCE;
    while !handle.is_taken() {
        assert!(Instant::now() < deadline, "{handle:?}");
        ping(&client, &server);
    }
    assert_eq!(handle.engine().0, EngineName::Segment, "{handle:?}");
    let proof = Proof::begin(&lab, &splicer, &handle);
    exchange(&client, &server, 1 << 20, seed());
    proof.end(2 << 20);
    assert_eq!(handle.wait().reason, Reason::EndOfStream);
}
