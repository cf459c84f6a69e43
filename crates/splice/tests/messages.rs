//! Pairs of sockets that keep messages apart, and what holds for every socket without a reset.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netlab::{Need, available, until};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair, sockopt,
};
use splice::{
    Counters, Endpoint, EngineChoice, EngineName, ErrorKind, EventLoop, Handle, Kind, Limits,
    Options, Outcome, Reason, Side,
};

/// A peer's socket, and the relay's.
fn messages() -> (OwnedFd, Endpoint) {
    let (peer, near) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    (peer, Endpoint::prepared(near, Kind::UnixSeqpacket))
}

fn stream() -> (UnixStream, Endpoint) {
    let (peer, near) = UnixStream::pair().unwrap();
    peer.set_nonblocking(true).unwrap();
    (peer, Endpoint::new(near).unwrap())
}

/// What arrives; an empty message is also what the end of the stream looks like.
fn message(event_loop: &mut EventLoop, socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = vec![0; 1 << 20];
    let mut length = None;
    until("a message arrives", || {
        event_loop.turn(Some(Duration::ZERO)).unwrap();
        length = recv(socket, &mut buffer[..], RecvFlags::empty()).ok();
        length.is_some()
    });
    buffer.truncate(length.unwrap().1);
    buffer
}

fn outcome(event_loop: &mut EventLoop, pair: &Handle) -> Outcome {
    let mut outcome = None;
    until("the pair ends", || {
        event_loop.turn(Some(Duration::ZERO)).unwrap();
        outcome = pair.outcome();
        outcome.is_some()
    });
    outcome.unwrap()
}

#[test]
fn messages_arrive_whole_and_are_counted() {
    let mut event_loop = EventLoop::new().unwrap();
    let ((a, near), (b, far)) = (messages(), messages());
    let pair = event_loop.join(near, far, &Options::default()).unwrap();
    for text in [&b"one"[..], b"", b"three", &[7; 100_000]] {
        send(&a, text, SendFlags::empty()).unwrap();
        assert!(message(&mut event_loop, &b) == text);
    }
    send(&b, b"", SendFlags::empty()).unwrap();
    assert_eq!(message(&mut event_loop, &a), b"");
    assert_eq!(pair.outcome(), None);
    shutdown(&a, Shutdown::Write).unwrap();
    assert_eq!(message(&mut event_loop, &b), b"");
    shutdown(&b, Shutdown::Write).unwrap();
    let outcome = outcome(&mut event_loop, &pair);
    assert_eq!(outcome.reason, Reason::EndOfStream);
    let count = |a_to_b, b_to_a| Counters { a_to_b, b_to_a };
    assert_eq!(outcome.messages, count(4, 1));
    assert_eq!(outcome.moved, count(100_008, 0));
    assert_eq!(outcome.engine, EngineName::Copy);
}

/// A part would pass for all of it.
#[test]
fn a_message_that_is_too_long_ends_the_pair() {
    const BYTES: usize = (4 << 20) + 1;
    if !available(Need::Root) {
        return;
    }
    let mut event_loop = EventLoop::new().unwrap();
    let ((a, near), (_b, far)) = (messages(), messages());
    sockopt::set_socket_send_buffer_size_force(&a, 4 * BYTES).unwrap();
    let pair = event_loop.join(near, far, &Options::default()).unwrap();
    assert_eq!(send(&a, &vec![1; BYTES], SendFlags::empty()), Ok(BYTES));
    let errno = Errno::MSGSIZE.raw_os_error();
    let side = Side::A;
    assert_eq!(
        outcome(&mut event_loop, &pair).reason,
        Reason::Failed { side, errno }
    );
}

#[test]
fn what_would_break_messages_up_is_refused() {
    let mut event_loop = EventLoop::new().unwrap();
    let mut refused = |far: Endpoint, options: &Options| {
        let (_a, near) = messages();
        let error = event_loop.join(near, far, options).unwrap_err();
        (error.kind(), error.to_string())
    };
    let (kind, why) = refused(stream().1, &Options::default());
    assert_eq!(kind, ErrorKind::UnsupportedSocket);
    assert!(why.contains("the other one is a stream"), "{why}");
    let limited = Options {
        limits: Limits {
            byte_limit: Some(10),
            ..Limits::default()
        },
        ..Options::default()
    };
    let (kind, why) = refused(messages().1, &limited);
    assert_eq!(kind, ErrorKind::UnsupportedSocket);
    assert!(why.contains("within a message"), "{why}");
    for engine in EngineName::ALL {
        if engine == EngineName::Copy {
            continue;
        }
        let options = Options {
            engine: EngineChoice::Only(engine),
            ..Options::default()
        };
        let (kind, why) = refused(messages().1, &options);
        assert_eq!(kind, ErrorKind::EngineRefused);
        assert!(why.contains("keep messages apart"), "{engine}: {why}");
    }
}

/// TCP would have reset the connection.
#[test]
fn the_last_words_of_a_server_arrive_although_its_client_still_sends() {
    let mut event_loop = EventLoop::new().unwrap();
    let ((mut client, near), (mut server, far)) = (stream(), stream());
    let pair = event_loop.join(near, far, &Options::default()).unwrap();
    server.write_all(b"no more than that").unwrap();
    drop(server);
    client.write_all(b"more").unwrap();
    let outcome = outcome(&mut event_loop, &pair);
    assert_eq!(outcome.reason, Reason::Reset(Side::B));
    assert_eq!(outcome.moved.b_to_a, 17);
    let mut received = Vec::new();
    // The client's socket was closed with its bytes unread.
    let _ = client.read_to_end(&mut received);
    assert_eq!(received, b"no more than that");
}
