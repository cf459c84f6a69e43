//! Every byte arrives once and in order, whichever way it goes.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv6Addr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use netlab::{Lab, Need, available, until};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, recv};
use splice::bypass::{Reason, State};

use crate::random::Random;
use crate::stage::{Ends, Polled, Stage, bytes, connect_to};

/// How much a test sends each way.
const BYTES: usize = 2 << 20;

#[test]
fn messages_go_from_socket_to_socket_over_ipv4_and_ipv6() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut addresses = vec![IpAddr::from(Lab::SERVER_V4)];
    if stage.lab.has_ipv6() {
        addresses.push(Lab::SERVER_V6.into());
    }
    for address in addresses {
        let mut ends = stage.connect(address);
        let before = stage.until_redirected(&mut ends);
        let packets = || stage.lab.client().packets(Lab::TO_RELAY).expect("counted");
        let packets_before = packets();
        ends.converse(&mut Random::of_run(2), 500, 3000);
        let after = stage.connection(&ends).expect("it is there");
        let redirected = |of: &splice::bypass::Connection| {
            of.client.map_or(0, |end| end.redirected_messages)
                + of.server.map_or(0, |end| end.redirected_messages)
        };
        assert_eq!(redirected(&after) - redirected(&before), 1000, "{after:?}");
        // TCP would need a packet a message at least; a neighbour may be looked up.
        assert!(packets() - packets_before < 100);
        assert_eq!(after.reason, None);
    }
    running.stop();
    assert!(!stage.pins.path().exists());
}

#[test]
fn a_mapped_socket_has_a_peer_over_ipv4() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    if !stage.lab.has_ipv6() {
        return;
    }
    let running = stage.start();
    let [near, far] = &stage.groups;
    let bind = || TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).expect("a listener");
    let listener = far
        .enter(|| stage.lab.server().enter(bind))
        .expect("entered")
        .expect("entered");
    let port = listener.local_addr().expect("bound").port();
    let to = (Lab::SERVER_V4, port).into();
    let mut ends = connect_to((near, stage.lab.client()), &listener, to, None);
    assert!(ends.server.local_addr().expect("bound").is_ipv6());
    stage.until_redirected(&mut ends);
    ends.converse(&mut Random::of_run(3), 200, 3000);
    running.stop();
}

/// Writes `BYTES` in pieces of random size, and a digest of them.
fn pour(socket: &TcpStream, seed: u64) {
    let mut socket = Polled(socket);
    let mut random = Random::seeded(seed);
    let mut left = BYTES;
    while left > 0 {
        let length = random.size(20_000).min(left);
        socket.write_all(&bytes(&mut random, length)).expect("sent");
        left -= length;
    }
}

/// Reads what [`pour`] has written, with buffers of random size.
fn drink(socket: &TcpStream, seed: u64) {
    let mut socket = Polled(socket);
    let mut random = Random::seeded(seed);
    let mut sizes = Random::of_run(4);
    let mut left = BYTES;
    while left > 0 {
        let length = random.size(20_000).min(left);
        let expected = bytes(&mut random, length);
        let mut heard = vec![0; length];
        let mut at = 0;
        while at < length {
            let most = (1 + sizes.below(30_000) as usize).min(length - at);
            let count = socket.read(&mut heard[at..at + most]).expect("received");
            assert_ne!(count, 0, "it ended {left} bytes early");
            at += count;
        }
        assert!(heard == expected, "other bytes with {left} to come");
        left -= length;
    }
}

fn flow(ends: &Ends, seed: u64) {
    // An end that sends without waiting leaves the map if it has read by a call that waits.
    for (mut from, to) in [(&ends.client, &ends.server), (&ends.server, &ends.client)] {
        from.write_all(b"!").expect("sent");
        Polled(to).read_exact(&mut [0]).expect("received");
    }
    thread::scope(|scope| {
        scope.spawn(|| pour(&ends.client, seed));
        scope.spawn(|| pour(&ends.server, seed + 1));
        scope.spawn(|| drink(&ends.server, seed));
        scope.spawn(|| drink(&ends.client, seed + 1));
    });
}

#[test]
fn both_ways_mix_in_both_directions_at_once() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut options = stage.options();
    // Messages up to 8 KiB are redirected, larger ones pass, and the average does not end it.
    options.bulk_bytes = Some(8192);
    options.unread_bytes = 64 << 10;
    let running = crate::stage::Running::start(&options);
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let mut random = Random::of_run(5);
    for round in 0..5 {
        // In a flow the reader is behind most of the time.
        ends.converse(&mut random, 50, 10_000);
        flow(&ends, random.next() + round * 2);
    }
    let of = stage.connection(&ends).expect("it is there");
    for end in [of.client.expect("seen"), of.server.expect("seen")] {
        assert!(end.redirected_messages > 100, "{end:?}");
        assert!(end.passed_messages > 100, "{end:?}");
    }
    running.stop();
}

#[test]
fn bulk_goes_over_tcp_for_good() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let flood = thread::scope(|scope| {
        scope.spawn(|| {
            let chunk = vec![7; 64 << 10];
            (0..200).for_each(|_| (&ends.client).write_all(&chunk).expect("sent"));
        });
        let mut heard = vec![0; 200 * (64 << 10)];
        (&ends.server).read_exact(&mut heard).expect("received");
        heard
    });
    assert!(flood.iter().all(|byte| *byte == 7));
    until("it has left", || {
        stage.status().members == 0
            && stage
                .connection(&ends)
                .is_some_and(|of| of.state == State::Tcp)
    });
    let of = stage.connection(&ends).expect("it is there");
    assert_eq!(of.reason, Some(Reason::Bulk));
    ends.converse(&mut Random::of_run(6), 300, 300);
    let after = stage.connection(&ends).expect("it is there");
    assert_eq!(after.state, State::Tcp);
    assert_eq!(
        after.client.expect("seen").redirected_messages,
        of.client.expect("seen").redirected_messages
    );
    running.stop();
}

/// A member whose messages pass pays for each of them.
#[test]
fn a_connection_of_which_many_messages_pass_leaves_the_map() {
    if !available(Need::Root) {
        return;
    }
    type Read = fn(&TcpStream, &mut [u8]);
    let wait_for_all: Read = |server, heard| {
        let (count, _) = recv(server, &mut *heard, RecvFlags::WAITALL).expect("received");
        assert_eq!(count, heard.len());
    };
    let read: Read = |mut server, heard| server.read_exact(heard).expect("received");
    // What the reader does once the connection is redirected, and how much is left unread at first.
    let rows: [(&str, Read, Option<i32>, usize); 4] = [
        ("MSG_WAITALL", wait_for_all, None, 0),
        (
            "MSG_WAITALL, with answers that are redirected",
            wait_for_all,
            None,
            0,
        ),
        ("SO_RCVLOWAT", read, Some(10), 0),
        ("a pipeline that is never empty", read, None, 5000),
    ];
    for (what, read, low_mark, ahead) in rows {
        let stage = Stage::new();
        let running = stage.start();
        let mut ends = stage.connect(Lab::SERVER_V4);
        stage.until_redirected(&mut ends);
        if let Some(bytes) = low_mark {
            splice_base::socket_option::set_receive_low_mark(&ends.server, bytes).expect("set");
        }
        // It is large enough to go over TCP.
        let mut unread = bytes(&mut Random::of_run(12), ahead);
        ends.client.write_all(&unread).expect("sent");
        let mut random = Random::of_run(13);
        until(what, || {
            for _ in 0..100 {
                let message = bytes(&mut random, 100);
                ends.client.write_all(&message).expect("sent");
                unread.extend(message);
                let mut heard = [0; 100];
                read(&ends.server, &mut heard);
                assert!(unread.drain(..100).eq(heard), "other bytes");
                if what.contains("answers") {
                    ends.server.write_all(&heard).expect("sent");
                    ends.client.read_exact(&mut heard).expect("received");
                }
            }
            let of = stage.connection(&ends).expect("it is there");
            of.state == State::Tcp && of.reason == Some(Reason::Passing)
        });
        assert_eq!(stage.status().members, 0);
        let mut rest = vec![0; unread.len()];
        ends.server.read_exact(&mut rest).expect("received");
        assert!(rest == unread, "other bytes");
        running.stop();
    }
}

/// A few that pass among many that are redirected are no reason.
#[test]
fn a_connection_some_of_whose_messages_pass_stays_in_the_map() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let mut heard = vec![0; 5000];
    for round in 0..5_000 {
        // The second and third pass behind the first, which is large.
        let all: &[usize] = if round % 8 == 0 {
            &[5000, 10, 10]
        } else {
            &[10]
        };
        for length in all {
            ends.client.write_all(&heard[..*length]).expect("sent");
        }
        for length in all {
            let heard = &mut heard[..*length];
            ends.server.read_exact(heard).expect("received");
        }
        ends.server.write_all(&[1; 10]).expect("sent");
        ends.client.read_exact(&mut heard[..10]).expect("received");
    }
    let of = stage.connection(&ends).expect("it is there");
    assert_eq!(of.state, State::Redirected, "{of:?}");
    assert!(of.client.expect("seen").passed_messages > 1500, "{of:?}");
    running.stop();
}

#[test]
fn a_reset_arrives_as_a_reset() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    for is_waiting in [false, true] {
        let mut ends = stage.connect(Lab::SERVER_V4);
        stage.until_redirected(&mut ends);
        set_socket_linger(&ends.client, Some(Duration::ZERO)).expect("set");
        drop(ends.client);
        let error = match is_waiting {
            false => Polled(&ends.server).read(&mut [0]),
            true => ends.server.read(&mut [0]),
        };
        let mut kind = error.expect_err("a reset").kind();
        // The kernel's recv(2) of a member says so if it slept meanwhile (tcp_msg_wait_data).
        if is_waiting && kind == ErrorKind::WouldBlock {
            kind = ends.server.read(&mut [0]).expect_err("a reset").kind();
        }
        assert_eq!(kind, ErrorKind::ConnectionReset);
    }
    running.stop();
}

#[test]
fn what_was_sent_before_is_read_first_and_peeking_takes_nothing() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut options = stage.options();
    options.bulk_bytes = Some(1000);
    let running = crate::stage::Running::start(&options);
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    // The large one passes by TCP; those behind must not overtake it.
    let large = vec![1; 5000];
    ends.client.write_all(&large).expect("sent");
    (0..10).for_each(|_| ends.client.write_all(b"small").expect("sent"));
    let mut heard = vec![0; 5000 + 50];
    until("all can be seen", || {
        let (seen, _) = recv(&ends.server, &mut heard[..], RecvFlags::PEEK).expect("peeked");
        seen >= 5000
    });
    ends.server.read_exact(&mut heard).expect("received");
    assert!(heard[..5000] == large[..]);
    assert_eq!(heard[5000..], b"small".repeat(10)[..]);

    // Redirected bytes can be peeked at, too.
    stage.until_redirected(&mut ends);
    ends.client.write_all(b"twice").expect("sent");
    let mut seen = [0; 5];
    let (count, _) = recv(&ends.server, &mut seen, RecvFlags::PEEK).expect("peeked");
    assert_eq!((count, &seen), (5, b"twice"));
    let (count, _) = recv(&ends.server, &mut seen, RecvFlags::empty()).expect("read");
    assert_eq!((count, &seen), (5, b"twice"));
    let empty = recv(&ends.server, &mut seen, RecvFlags::DONTWAIT);
    assert_eq!(empty.err(), Some(rustix::io::Errno::AGAIN));
    running.stop();
}
