//! How spliced pairs end: by halves, and by resets.

use super::window_scale::{MIDDLE, TINY, connect_scaled};
use super::*;
use crate::bpf_types::{SegmentSide, segment_mark as mark, segment_socket_flag as has};

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
            // The other one has ended its stream before.
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

/// One stream has gone past the sockets and the other has not, when the receiver of the one resets its
/// connection: the relay's socket gets that, and what it acknowledges only the program sees.
#[test]
fn a_reset_in_overlap_tells_what_has_arrived() {
    const BYTES: usize = 1000;
    if !available(Need::Root) {
        return;
    }
    let (lab, splicer, _first) = spliced_lab();
    let halt = Halt::at(&splicer, ["overlap", "emptying"]);
    let connected = Connected::across(&lab);
    let tuples = [&connected.a, &connected.b].map(tuple);
    let (client, server, handle) = connected.join(&splicer, &by_name());
    halt.wait();
    let ground = ground_in(&lab);
    let [from_client, from_server] = &ground.flow(1).side;
    let begun = from_server.high_seq();
    (&server).write_all(b"by hand").expect("write");
    netlab::until("the program has seen it", || {
        from_server.high_seq() != begun
    });
    halt.go_on();
    halt.wait();
    let is_past = |side: &SegmentSide| side.marks() & mark::PAST != 0;
    assert!(is_past(from_client) && !is_past(from_server));
    // It acknowledges with what it sends, or after 40 ms (`TCP_ATO_MIN`).
    rustix::net::sockopt::set_tcp_quickack(&server, false).expect("TCP_QUICKACK");
    write_some(&client, BYTES, seed());
    read_some(&server, BYTES);
    socket2::SockRef::from(&server)
        .set_linger(Some(Duration::ZERO))
        .expect("SO_LINGER");
    drop(server);
    netlab::until("the socket has been reset", || {
        let found = lab.relay().enter(|| ground.inspect(&tuples));
        found.expect("entered").expect("run").socket[1].flags & has::FOUND == 0
    });
    halt.go_on();
    let outcome = handle.wait_timeout(PATIENCE).expect("it ends");
    assert_eq!(outcome.reason, Reason::Reset(Side::B));
    assert_eq!(outcome.moved.a_to_b, BYTES as u64);
}

/// Both streams come to their ends through the sockets when the change-over has just begun. What the
/// receiver had no room for is sent after that, and has to be stamped as what went before.
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
    assert_eq!(ended(&handle).engine, EngineName::Segment);
    let (length, hash, _) = read_all(&server);
    assert_eq!((length, hash), (BYTES, sent));
    assert_eq!(count(lab.server(), &["PAWSEstab"]), 0);
}

/// The loop does not wait for the program: a pair is tried when that is loaded.
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
