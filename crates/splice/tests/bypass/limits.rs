//! Readers that stop, and readers that would not see what is redirected.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use netlab::{Lab, Need, available, until, until_at_rest};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};
use splice::bypass::{Bypass, Reason, State};

use crate::payload::Payload;
use crate::random::Random;
use crate::stage::{Ends, LEAVE, Stage, bytes};

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
fn a_connection_that_another_thread_takes_over_stays_redirected() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    // It sends and waits as the first one did.
    thread::scope(|scope| {
        scope.spawn(|| ends.converse(&mut Random::of_run(3), 200, 1000));
    });
    let of = stage.connection(&ends).expect("it is there");
    assert_eq!((of.state, of.reason), (State::Redirected, None));
    running.stop();
}

/// A call that sends, and does not wait for room.
fn send_now(to: &TcpStream, bytes: &[u8]) -> Result<usize, Errno> {
    send(to, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)
}

#[test]
fn a_program_that_sends_without_waiting_and_waits_for_answers_is_left_alone() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    let mut heard = [0; 50];
    until("it is known", || {
        for _ in 0..20 {
            assert_eq!(send_now(&ends.client, &[1; 50]), Ok(50));
            ends.server.read_exact(&mut heard).expect("received");
            ends.server.write_all(&[2; 50]).expect("sent");
            ends.client.read_exact(&mut heard).expect("received");
        }
        let of = stage.connection(&ends).expect("it is there");
        for end in [of.client, of.server].into_iter().flatten() {
            assert_eq!(end.redirected_messages, 0, "{of:?}");
        }
        of.state == State::Tcp && of.reason == Some(Reason::Mixes)
    });
    running.stop();
}

/// Of recv(2) without a timeout: how often it has returned EAGAIN before it has filled the buffer.
fn read_all(from: &TcpStream, heard: &mut [u8]) -> usize {
    let (mut at, mut early) = (0, 0);
    while at < heard.len() {
        match recv(from, &mut heard[at..], RecvFlags::empty()) {
            Ok((0, _)) => panic!("it ended"),
            Ok((count, _)) => at += count,
            Err(Errno::AGAIN) => early += 1,
            Err(errno) => panic!("{errno}"),
        }
    }
    early
}

/// Sends until there is no room, and waits for an answer then, again and again. The peer reads only when it waits, so that the
/// room that it makes wakes it up. `goes_on` is asked after each time, with how often it was woken for nothing so far.
fn fill_and_wait(
    ends: &Ends,
    fill: impl Fn(&TcpStream, &Payload, u64) -> u64,
    mut goes_on: impl FnMut(usize) -> bool,
) {
    const ANSWER: [u8; 100] = [7; 100];
    let payload = Payload::new(5);
    let (full, answered) = (channel(), channel());
    thread::scope(|scope| {
        let payload = &payload;
        scope.spawn(move || {
            let mut at = 0;
            for sent in full.1 {
                let mut heard = vec![0; 3000];
                while at < sent {
                    let most = heard.len().min((sent - at) as usize);
                    read_all(&ends.server, &mut heard[..most]);
                    payload.check(at, &heard[..most]);
                    at += most as u64;
                }
                (&ends.server).write_all(&ANSWER).expect("sent");
                answered.0.send(()).expect("it waits");
            }
        });
        let (mut sent, mut early) = (0, 0);
        loop {
            sent = fill(&ends.client, payload, sent);
            full.0.send(sent).expect("it reads");
            let mut heard = [0; ANSWER.len()];
            early += read_all(&ends.client, &mut heard);
            assert!(heard == ANSWER);
            answered.1.recv().expect("it has answered");
            if !goes_on(early) {
                break;
            }
        }
        drop(full.0);
    });
}

/// What it did before does not show it: it is seen when its first message has no room in the map.
#[test]
fn a_program_that_begins_to_send_without_waiting_leaves_and_is_woken_for_nothing_no_more() {
    /// Each would wake a member for nothing.
    const AFTERWARDS: usize = 20;
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    for end in [&ends.client, &ends.server] {
        end.set_read_timeout(None).expect("set");
    }
    stage.until_redirected(&mut ends);
    let has_left = || {
        let of = stage.connection(&ends).expect("it is there");
        // Another thread than that which sends now may have waited for the messages before.
        let is_known = matches!(of.reason, Some(Reason::Mixes | Reason::Threads));
        of.state == State::Tcp && is_known
    };
    let fill = |to: &TcpStream, payload: &Payload, mut sent| loop {
        match send_now(to, payload.piece(sent, 700)) {
            Ok(count) => sent += count as u64,
            Err(Errno::AGAIN) => return sent,
            Err(errno) => panic!("{errno}"),
        }
    };
    let (mut early_until_left, mut afterwards) = (None, 0);
    fill_and_wait(&ends, fill, |early| {
        if early > 0 {
            until("it has left", has_left);
        }
        // Where all messages were redirected, none has taken room, and it stays.
        if has_left() {
            let until_left = *early_until_left.get_or_insert(early);
            assert_eq!(early, until_left, "it was woken after it had left");
            afterwards += 1;
        }
        afterwards <= AFTERWARDS
    });
    println!("woken for nothing: {early_until_left:?}");
    assert_eq!(stage.status().members, 0);
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
