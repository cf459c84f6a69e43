//! Pairs of sockets that keep messages apart, and what holds for every socket without a reset.
#![allow(clippy::unwrap_used, reason = "a test ends with a panic")]

use std::fs;
use std::io::{ErrorKind as IoError, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use netlab::{Need, available, connection, until};
use rustix::io::{Errno, ioctl_fionread};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
    getpeername, recv, send, shutdown, socketpair, sockopt,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use splice::{
    Counters, Endpoint, EngineChoice, EngineName, ErrorKind, EventLoop, Handle, Kind, Limits,
    Options, Outcome, Reason, Side,
};

/// The longest message that is passed on.
const LONGEST_BYTES: usize = 4 << 20;

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
    let mut buffer = vec![0; LONGEST_BYTES + 1];
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

/// The send buffer of a new socket takes 208 KiB at most (`net.core.wmem_default`).
#[test]
fn long_messages_arrive_whole() {
    if !available(Need::Root) {
        return;
    }
    let mut event_loop = EventLoop::new().unwrap();
    let ((a, near), (b, far)) = (messages(), messages());
    for peer in [&a, &b] {
        sockopt::set_socket_send_buffer_size_force(peer, LONGEST_BYTES).unwrap();
    }
    let _pair = event_loop.join(near, far, &Options::default()).unwrap();
    for bytes in [
        212_960,
        212_961,
        1 << 20,
        3,
        LONGEST_BYTES - 1,
        LONGEST_BYTES,
    ] {
        for (from, to) in [(&a, &b), (&b, &a)] {
            let text: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
            assert_eq!(send(from, &text, SendFlags::empty()), Ok(bytes));
            assert!(message(&mut event_loop, to) == text, "{bytes} bytes differ");
        }
    }
}

/// `net.core.wmem_max` bounds what the relay may send then: twice as much.
#[test]
fn without_the_right_messages_may_be_as_long_as_the_host_allows() {
    if !available(Need::Root) {
        return;
    }
    let most = fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap();
    let most = 2 * most.trim().parse::<usize>().unwrap() - 32;
    let mut event_loop = EventLoop::new().unwrap();
    let ((a, near), (b, far)) = (messages(), messages());
    sockopt::set_socket_send_buffer_size_force(&a, LONGEST_BYTES).unwrap();
    // Of this thread only.
    let mut rights = capabilities(None).unwrap();
    rights.effective.remove(CapabilitySet::NET_ADMIN);
    set_capabilities(None, rights).unwrap();
    let pair = event_loop.join(near, far, &Options::default()).unwrap();
    for bytes in [300_000, most.min(LONGEST_BYTES)] {
        assert_eq!(send(&a, &vec![1; bytes], SendFlags::empty()), Ok(bytes));
        assert_eq!(message(&mut event_loop, &b).len(), bytes);
    }
    // Kernels before 6.18 allow less than the longest, unless they are told otherwise.
    if most < LONGEST_BYTES {
        assert_eq!(
            send(&a, &vec![1; most + 1], SendFlags::empty()),
            Ok(most + 1)
        );
        let reason = outcome(&mut event_loop, &pair).reason;
        assert_eq!(reason, Reason::MessageTooLong(Side::B));
    }
}

/// What waits for room is kept in memory of its own length, which may be that of a buffer. The next message may be longer.
#[test]
fn a_message_that_has_waited_does_not_bound_the_next_one() {
    if !available(Need::Root) {
        return;
    }
    for waiting in [4 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let mut event_loop = EventLoop::new().unwrap();
        let ((a, near), (b, far)) = (messages(), messages());
        sockopt::set_socket_send_buffer_size_force(&a, 8 << 20).unwrap();
        let pair = event_loop.join(near, far, &Options::default()).unwrap();
        let count = (1 << 20) / waiting;
        for _ in 0..count {
            assert_eq!(send(&a, &vec![1; waiting], SendFlags::empty()), Ok(waiting));
        }
        assert_eq!(send(&a, &[2; 300_000], SendFlags::empty()), Ok(300_000));
        let mut before = None;
        until("one waits", || {
            event_loop.turn(Some(Duration::ZERO)).unwrap();
            before.replace(pair.counters().a_to_b) == Some(pair.counters().a_to_b)
        });
        assert!(pair.counters().a_to_b < (count * waiting) as u64);
        for _ in 0..count {
            assert_eq!(message(&mut event_loop, &b).len(), waiting);
        }
        assert_eq!(message(&mut event_loop, &b).len(), 300_000);
    }
}

/// To ask for credentials would give the socket a name with the first message (`unix_autobind`).
#[test]
fn the_relays_socket_gets_no_name() {
    let mut event_loop = EventLoop::new().unwrap();
    let ((a, near), (b, far)) = (messages(), messages());
    let _pair = event_loop.join(near, far, &Options::default()).unwrap();
    for (from, to) in [(&a, &b), (&b, &a)] {
        send(from, b"text", SendFlags::empty()).unwrap();
        assert_eq!(message(&mut event_loop, to), b"text");
    }
    for peer in [&a, &b] {
        let name = SocketAddrUnix::try_from(getpeername(peer).unwrap().unwrap()).unwrap();
        assert!(name.path().is_none(), "{name:?}");
        assert!(
            name.abstract_name().is_none_or(<[u8]>::is_empty),
            "{name:?}"
        );
    }
}

/// A queue does not tell who sent what, if nobody had asked for it by then.
#[test]
fn an_empty_message_from_before_the_join_is_not_the_end() {
    let mut event_loop = EventLoop::new().unwrap();
    let (a, near) = socketpair(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::NONBLOCK,
        None,
    )
    .unwrap();
    for text in [&b""[..], b"later"] {
        send(&a, text, SendFlags::empty()).unwrap();
    }
    let (b, far) = messages();
    let near = Endpoint::prepared(near, Kind::UnixSeqpacket);
    let _pair = event_loop.join(near, far, &Options::default()).unwrap();
    assert_eq!(message(&mut event_loop, &b), b"");
    assert_eq!(message(&mut event_loop, &b), b"later");
}

/// Sends until nothing moves any more, and returns how many bytes it took.
fn fill(event_loop: &mut EventLoop, socket: impl AsFd, piece: &[u8]) -> usize {
    let (mut sent, mut full) = (0, 0);
    until("nothing moves", || {
        match send(&socket, piece, SendFlags::empty()) {
            Ok(count) => (sent, full) = (sent + count, 0),
            Err(Errno::AGAIN) => full += 1,
            Err(error) => panic!("{error}"),
        }
        event_loop.turn(Some(Duration::ZERO)).unwrap();
        full > 9
    });
    sent
}

/// Has the server send messages and close. The close finds an unread byte, which is a reset for a UNIX socket.
fn close_with_unread(
    event_loop: &mut EventLoop,
    server: OwnedFd,
    client: impl AsFd,
    last: &[&[u8]],
) {
    send(&client, b"!", SendFlags::empty()).unwrap();
    until("it has arrived", || {
        event_loop.turn(Some(Duration::ZERO)).unwrap();
        ioctl_fionread(&server).unwrap() == 1
    });
    for text in last {
        send(&server, text, SendFlags::empty()).unwrap();
    }
    drop(server);
}

/// What a client reads until the end, or an error.
fn received(event_loop: &mut EventLoop, client: impl AsFd) -> usize {
    let (mut buffer, mut bytes) = (vec![0; 1 << 16], 0);
    until("its stream ends", || {
        event_loop.turn(Some(Duration::ZERO)).unwrap();
        match recv(&client, &mut buffer[..], RecvFlags::empty()) {
            Ok((_, 0)) => return true,
            Ok((_, count)) => bytes += count,
            Err(Errno::AGAIN) => {}
            Err(Errno::CONNRESET) => return true,
            Err(error) => panic!("{error}"),
        }
        false
    });
    bytes
}

/// The kernel reports that before what is queued (`__skb_try_recv_datagram`).
#[test]
fn the_last_messages_of_a_server_that_has_not_read_all_arrive() {
    let mut event_loop = EventLoop::new().unwrap();
    let ((client, near), (server, far)) = (messages(), messages());
    let pair = event_loop.join(near, far, &Options::default()).unwrap();
    let last = [&b"one"[..], b"", b"three"];
    close_with_unread(&mut event_loop, server, &client, &last);
    for text in [&b"one"[..], b"", b"three", b""] {
        assert_eq!(message(&mut event_loop, &client), text);
    }
    let outcome = outcome(&mut event_loop, &pair);
    assert_eq!(outcome.reason, Reason::Reset(Side::B));
    assert_eq!(outcome.messages.b_to_a, 3);
}

/// A client that has no room for them gets them, too, once it reads: over UNIX, and over TCP before the reset.
#[test]
fn last_words_wait_for_a_client_that_reads_late() {
    for (client, near, server, far) in [
        {
            let ((client, near), (server, far)) = (messages(), messages());
            (client, near, server, far)
        },
        {
            let ((client, near), (server, far)) = (stream(), stream());
            (client.into(), near, server.into(), far)
        },
        {
            let ((client, near), (server, far)) = (connection(), stream());
            client.set_nonblocking(true).unwrap();
            let near = Endpoint::new(near).unwrap();
            (client.into(), near, server.into(), far)
        },
    ] {
        let mut event_loop = EventLoop::new().unwrap();
        let kind = near.kind();
        let pair = event_loop.join(near, far, &Options::default()).unwrap();
        let sent = fill(&mut event_loop, &server, &[7; 1000]);
        close_with_unread(&mut event_loop, server, &client, &[]);
        assert_eq!(received(&mut event_loop, &client), sent, "{kind:?}");
        let outcome = outcome(&mut event_loop, &pair);
        assert_eq!(outcome.reason, Reason::Reset(Side::B), "{kind:?}");
        assert_eq!(outcome.moved.b_to_a, sent as u64, "{kind:?}");
    }
}

/// Nobody would end the connection otherwise: the server is gone. Over TCP the client may even go on writing.
#[test]
fn a_client_that_takes_no_last_words_does_not_keep_the_pair() {
    let mut event_loop = EventLoop::new().unwrap();
    let ((client, near), (server, far)) = (stream(), stream());
    let pair = event_loop.join(near, far, &Options::default()).unwrap();
    fill(&mut event_loop, &server, &[7; 1000]);
    drop(server);
    let ((mut writer, near), (mut server, far)) = (connection(), stream());
    writer.set_nonblocking(true).unwrap();
    // The relay's socket has room for all of them, and the client's has not.
    sockopt::set_socket_recv_buffer_size(&writer, 4 << 10).unwrap();
    sockopt::set_socket_send_buffer_size(&near, 1 << 20).unwrap();
    let near = Endpoint::new(near).unwrap();
    let writers_pair = event_loop.join(near, far, &Options::default()).unwrap();
    server.write_all(&[7; 100_000]).unwrap();
    drop(server);
    send(&client, b"more", SendFlags::empty()).unwrap();
    until("both pairs end", || {
        // At the end it is refused.
        let _ = writer.write(b"more");
        event_loop.turn(Some(Duration::from_millis(1))).unwrap();
        [&pair, &writers_pair]
            .iter()
            .all(|pair| pair.outcome().is_some())
    });
    for pair in [pair, writers_pair] {
        let reason = pair.outcome().map(|outcome| outcome.reason);
        assert_eq!(reason, Some(Reason::Reset(Side::B)));
    }
}

/// It reads only when it has written all, as many clients do. Over TCP nothing tells it that nobody takes that.
#[test]
fn a_client_that_still_writes_gets_to_the_last_words() {
    let by_default = Options::default();
    let by_ring = Options {
        engine: EngineChoice::Only(EngineName::Uring),
        ..Options::default()
    };
    for (is_tcp, options) in [
        (false, &by_default),
        (true, &by_default),
        (false, &by_ring),
        (true, &by_ring),
    ] {
        let mut event_loop = EventLoop::new().unwrap();
        let (server, far) = stream();
        let (mut client, near): (Box<dyn ReadWrite>, Endpoint) = match is_tcp {
            false => {
                let (client, near) = stream();
                (Box::new(client), near)
            }
            true => {
                let (client, near) = connection();
                client.set_nonblocking(true).unwrap();
                (Box::new(client), Endpoint::new(near).unwrap())
            }
        };
        let pair = event_loop.join(near, far, options).unwrap();
        let sent = fill(&mut event_loop, &server, &[7; 1000]);
        drop(server);
        let mut left = 64 << 20;
        until("all is written", || {
            event_loop.turn(Some(Duration::ZERO)).unwrap();
            match client.write(&vec![1; left.min(1 << 16)]) {
                Ok(count) => left -= count,
                Err(error) if error.kind() == IoError::BrokenPipe && !is_tcp => left = 0,
                Err(error) => assert_eq!(error.kind(), IoError::WouldBlock),
            }
            left == 0
        });
        assert_eq!(received(&mut event_loop, client.as_fd()), sent);
        let outcome = outcome(&mut event_loop, &pair);
        assert_eq!(outcome.reason, Reason::Reset(Side::B));
    }
}

trait ReadWrite: Read + Write + AsFd {}
impl<T: Read + Write + AsFd> ReadWrite for T {}

/// The event of the client comes first, so the write fails before anybody looks for what the server had sent.
#[test]
fn the_last_words_of_a_server_arrive_although_a_write_to_it_fails_first() {
    for (client, near, server, far) in [
        {
            let ((client, near), (server, far)) = (messages(), messages());
            (client, near, server, far)
        },
        {
            let ((client, near), (server, far)) = (stream(), stream());
            (client.into(), near, server.into(), far)
        },
    ] {
        let mut event_loop = EventLoop::new().unwrap();
        let pair = event_loop.join(near, far, &Options::default()).unwrap();
        event_loop.turn(Some(Duration::ZERO)).unwrap();
        send(&client, b"more", SendFlags::empty()).unwrap();
        send(&server, b"no more than that", SendFlags::empty()).unwrap();
        drop(server);
        assert_eq!(received(&mut event_loop, &client), 17);
        let outcome = outcome(&mut event_loop, &pair);
        assert_eq!(outcome.reason, Reason::Reset(Side::B));
        assert_eq!(outcome.moved.b_to_a, 17);
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
    client.read_to_end(&mut received).unwrap();
    assert_eq!(received, b"no more than that");
}
