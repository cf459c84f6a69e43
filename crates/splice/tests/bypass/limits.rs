//! Readers that stop, and readers that would not see what is redirected.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use netlab::{Lab, Need, available, until, until_at_rest};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, recv};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use splice::bypass::{Bypass, Reason, State};

use crate::random::Random;
use crate::stage::{LEAVE, Stage, bytes};

#[test]
fn a_reader_that_stops_makes_its_sender_wait() {
    if !available(Need::Root) {
        return;
    }
    const MOST: u64 = 4 << 20;
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    ends.client.set_nonblocking(true).expect("set");
    let mut random = Random::of_run(40);
    let mut all = Vec::new();
    let mut next = bytes(&mut random, 700);
    let mut is_full = || {
        loop {
            match (&ends.client).write(&next) {
                Ok(count) => {
                    all.extend(next.drain(..count));
                    if next.is_empty() {
                        next = bytes(&mut random, 1 + (all.len() % 900));
                    }
                    assert!(all.len() < 256 << 20, "nobody waits");
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return all.len(),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let sent = until_at_rest(Duration::from_millis(300), &mut is_full);
    let end = stage
        .connection(&ends)
        .expect("it is there")
        .client
        .expect("seen");
    assert!(end.unread_bytes > 0 && end.unread_bytes <= MOST, "{end:?}");
    assert!(end.full_messages > 0, "{end:?}");
    println!(
        "{sent} bytes sent, of which {} redirected and unread",
        end.unread_bytes
    );

    // They are read in order, and it goes on.
    let server = ends.server.try_clone().expect("a duplicate");
    let expected = all.clone();
    let mut heard = vec![0; expected.len()];
    (&server).read_exact(&mut heard).expect("received");
    assert!(heard == expected);
    ends.client.set_nonblocking(false).expect("set");
    ends.converse(&mut Random::of_run(41), 100, 100);
    running.stop();
}

#[test]
fn a_reader_that_waits_for_all_is_not_redirected_to() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    let mut heard = [0; 100];
    for _ in 0..300 {
        ends.client.write_all(&[1; 50]).expect("sent");
        ends.client.write_all(&[2; 50]).expect("sent");
        let (count, _) = recv(&ends.server, &mut heard, RecvFlags::WAITALL).expect("received");
        assert_eq!(count, 100);
        ends.server.write_all(&[3; 10]).expect("sent");
        ends.client.read_exact(&mut heard[..10]).expect("received");
        thread::sleep(Duration::from_millis(1));
    }
    let of = stage.connection(&ends).expect("it is there");
    assert_eq!(of.client.expect("seen").redirected_messages, 0, "{of:?}");
    // The other direction is another matter.
    assert!(of.server.expect("seen").redirected_messages > 0, "{of:?}");
    running.stop();
}

/// On a member such a reader would get EAGAIN now and then.
#[test]
fn threads_that_wait_while_others_send_are_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let ends = stage.connect(Lab::SERVER_V4);
    const MESSAGES: usize = 20_000;
    let flow = |from: &TcpStream, to: &TcpStream, byte: u8| {
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut from = from;
                (0..MESSAGES).for_each(|_| from.write_all(&[byte; 100]).expect("sent"));
            });
            let mut heard = vec![0; MESSAGES * 100];
            let mut to = to;
            to.read_exact(&mut heard).expect("received");
            assert!(heard.iter().all(|heard| *heard == byte));
        });
    };
    thread::scope(|scope| {
        let (client, server) = (&ends.client, &ends.server);
        scope.spawn(|| flow(client, server, 1));
        flow(server, client, 2);
    });
    until("it has left", || {
        let of = stage.connection(&ends).expect("it is there");
        of.state == State::Tcp && of.reason == Some(Reason::Threads)
    });
    running.stop();
}

#[test]
fn a_reader_with_a_low_water_mark_is_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let before = stage
        .connection(&ends)
        .expect("it is there")
        .client
        .expect("seen");
    splice_base::socket_option::set_receive_low_mark(&ends.server, 10).expect("set");
    for _ in 0..20 {
        ends.client.write_all(b"12345").expect("sent");
        ends.client.write_all(b"67890").expect("sent");
        let mut heard = [0; 10];
        let (count, _) = recv(&ends.server, &mut heard, RecvFlags::empty()).expect("received");
        assert_eq!(count, 10);
    }
    let after = stage
        .connection(&ends)
        .expect("it is there")
        .client
        .expect("seen");
    assert_eq!(after.redirected_messages, before.redirected_messages);
    running.stop();
}

#[test]
fn a_reader_that_splices_gets_everything_over_tcp() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    let (from_pipe, to_pipe) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let mut random = Random::of_run(42);
    for _ in 0..300 {
        // The head with recv and the rest with splice(2), as proxies do.
        let mut message = bytes(&mut random, 200);
        ends.client.write_all(&message).expect("sent");
        let mut head = [0; 50];
        ends.server.read_exact(&mut head).expect("received");
        let mut rest = vec![0; 150];
        let mut at = 0;
        while at < 150 {
            match splice(
                &ends.server,
                None,
                &to_pipe,
                None,
                150 - at,
                SpliceFlags::empty(),
            ) {
                Ok(0) => panic!("it ended"),
                Ok(count) => {
                    let mut left = count;
                    while left > 0 {
                        let read =
                            rustix::io::read(&from_pipe, &mut rest[at..at + left]).expect("read");
                        at += read;
                        left -= read;
                    }
                }
                Err(Errno::INTR) => {}
                Err(errno) => panic!("{errno}: {:?}", stage.connection(&ends)),
            }
        }
        assert!(message[..50] == head && message.split_off(50) == rest);
        ends.server.write_all(&[3; 10]).expect("sent");
        ends.client.read_exact(&mut head[..10]).expect("received");
        thread::sleep(Duration::from_millis(1));
    }
    let of = stage.connection(&ends).expect("it is there");
    assert_eq!(of.client.expect("seen").redirected_messages, 0, "{of:?}");
    running.stop();
}

/// It would wait for ever, or read what comes behind first.
#[test]
fn a_first_splice_over_unread_messages_ends_in_a_reset_and_its_process_is_left_alone_from_then_on()
{
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    ends.client.write_all(b"unread").expect("sent");
    let (_from_pipe, to_pipe) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let spliced = splice(&ends.server, None, &to_pipe, None, 6, SpliceFlags::empty());
    assert_eq!(spliced, Err(Errno::CONNABORTED));
    until("its peer is reset", || {
        let mut one = [0];
        let read = (&ends.client).read(&mut one);
        read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset)
    });
    drop(ends);
    until("it is forgotten", || stage.status().connections.is_empty());
    let mut next = stage.connect(Lab::SERVER_V4);
    next.converse(&mut Random::of_run(43), 300, 300);
    let of = stage.connection(&next).expect("it is there");
    for end in [of.client, of.server] {
        assert_eq!(end.expect("seen").redirected_messages, 0, "{of:?}");
    }

    running.stop();
}

#[test]
fn large_messages_from_the_start_never_enter_the_map() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    let message = vec![5; 60_000];
    until("it is known for bulk", || {
        for _ in 0..20 {
            ends.client.write_all(&message).expect("sent");
            let mut heard = vec![0; message.len()];
            ends.server.read_exact(&mut heard).expect("received");
        }
        let of = stage.connection(&ends).expect("it is there");
        assert_eq!(of.state, State::Tcp);
        of.reason == Some(Reason::Bulk)
    });
    assert_eq!(stage.status().members, 0);
    running.stop();
}

/// Programs that ask before they read would stall.
#[test]
fn a_kernel_whose_fionread_is_wrong_is_refused_unless_told_otherwise() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    // The first is redirected; the second goes over TCP, since it is large.
    let counted = [100, 5000].map(|length| {
        ends.client.write_all(&vec![1; length]).expect("sent");
        let mut heard = vec![0; length];
        until("it is there", || {
            let (seen, _) = recv(&ends.server, &mut heard[..], RecvFlags::PEEK).expect("peeked");
            seen == length
        });
        let counted = ioctl_fionread(&ends.server).expect("asked");
        ends.server.read_exact(&mut heard).expect("received");
        counted
    });
    running.stop();
    let is_wrong = counted != [100, 5000];
    println!(
        "FIONREAD: {} of 100 redirected bytes, {} of 5000 by TCP",
        counted[0], counted[1]
    );

    let mut options = stage.options();
    options.despite_fionread = false;
    match Bypass::start(&options) {
        Ok(mut bypass) => {
            assert!(!is_wrong, "{counted:?}");
            bypass.stop(LEAVE).expect("nothing is left");
        }
        Err(error) => {
            assert!(is_wrong, "{error}");
            assert!(
                error.to_string().contains("FIONREAD does not count"),
                "{error}"
            );
            let remedy = error.remedy().expect("one");
            assert!(remedy.contains("--despite-fionread"), "{remedy}");
        }
    }
    assert!(!stage.pins.path().exists());
}
