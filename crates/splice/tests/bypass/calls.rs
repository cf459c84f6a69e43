//! The system calls by which programs read and write behave as over TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use netlab::{Lab, Need, Scratch, available, present};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::sendfile;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, splice};

use crate::random::Random;
use crate::stage::{Ends, Running, Stage, bytes};

/// Longer than anything here takes.
const LONG: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

/// A redirected connection.
fn redirected(stage: &Stage) -> (Running, Ends) {
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    (running, ends)
}

#[test]
fn epoll_tells_of_each_message_by_level_and_by_edge() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    ends.server.set_nonblocking(true).expect("set");
    for by_edge in [false, true] {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll instance");
        let edge = match by_edge {
            true => epoll::EventFlags::ET,
            false => epoll::EventFlags::empty(),
        };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | edge;
        epoll::add(&set, &ends.server, epoll::EventData::new_u64(1), flags).expect("added");
        let mut random = Random::of_run(50);
        for _ in 0..300 {
            let message = bytes(&mut random, 700);
            ends.client.write_all(&message).expect("sent");
            let mut events = Vec::with_capacity(1);
            epoll::wait(&set, spare_capacity(&mut events), Some(&LONG)).expect("waited");
            assert_eq!(events.len(), 1);
            let mut heard = vec![0; 1000];
            let count = ends.server.read(&mut heard).expect("received");
            assert!(heard[..count] == message);
            // By level it tells nothing any more, and by edge it would not anyway.
            let mut events = Vec::with_capacity(1);
            let now = Timespec::default();
            epoll::wait(&set, spare_capacity(&mut events), Some(&now)).expect("waited");
            assert!(events.is_empty());
        }
        // By level it tells as long as something is left.
        ends.client.write_all(&[1; 100]).expect("sent");
        for _ in 0..10 {
            let mut events = Vec::with_capacity(1);
            epoll::wait(&set, spare_capacity(&mut events), Some(&LONG)).expect("waited");
            ends.server.read_exact(&mut [0; 10]).expect("received");
            if by_edge {
                ends.server.read_exact(&mut [0; 90]).expect("received");
                break;
            }
        }
    }
    running.stop();
}

#[test]
fn io_uring_receives_what_is_redirected() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    let ring = IoUring::new(4);
    let why = ring
        .as_ref()
        .err()
        .map(|error| format!("no io_uring: {error}"));
    if !present("io_uring", why) {
        return;
    }
    let mut ring = ring.expect("present");
    let mut random = Random::of_run(51);
    for round in 0..300 {
        let message = bytes(&mut random, 600);
        let mut heard = vec![0u8; 1000];
        let into = types::Fd(ends.server.as_raw_fd());
        let receive = opcode::Recv::new(into, heard.as_mut_ptr(), heard.len() as u32).build();
        // Half of them wait before there is something.
        if round % 2 == 0 {
            ends.client.write_all(&message).expect("sent");
        }
        // SAFETY: the buffer and the socket live until the completion is taken below.
        #[allow(unsafe_code, reason = "see the comment")]
        unsafe {
            ring.submission().push(&receive).expect("room");
        }
        ring.submit().expect("submitted");
        if round % 2 == 1 {
            ends.client.write_all(&message).expect("sent");
        }
        ring.submit_and_wait(1).expect("waited");
        let completion = ring.completion().next().expect("a completion");
        assert_eq!(completion.result(), message.len() as i32);
        assert!(heard[..message.len()] == message);
    }
    running.stop();
}

#[test]
fn a_receive_timeout_holds() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    let patience = Duration::from_millis(200);
    ends.server.set_read_timeout(Some(patience)).expect("set");
    let begun = Instant::now();
    let error = ends
        .server
        .read(&mut [0; 10])
        .expect_err("nothing is there");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(begun.elapsed() >= patience, "{:?}", begun.elapsed());
    // What comes meanwhile ends the wait.
    ends.server
        .set_read_timeout(Some(netlab::PATIENCE))
        .expect("set");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| (&ends.server).read(&mut [0; 10]).expect("received"));
        ends.client.write_all(b"now").expect("sent");
        assert_eq!(waiting.join().expect("no panic"), 3);
    });
    running.stop();
}

#[test]
fn files_and_pipes_are_sent_in_order() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    let scratch = Scratch::new("sent").expect("a directory");
    let mut random = Random::of_run(52);
    let (from_pipe, to_pipe) = pipe_with(PipeFlags::CLOEXEC).expect("a pipe");
    let before = stage.connection(&ends).expect("it is there");
    for round in 0..200 {
        let length = random.size(3000);
        let message = bytes(&mut random, length);
        match round % 3 {
            0 => {
                let path = scratch.path().join("file");
                std::fs::write(&path, &message).expect("written");
                let file = std::fs::File::open(&path).expect("a file");
                let mut left = length;
                while left > 0 {
                    left -= sendfile(&ends.client, &file, None, left).expect("sent");
                }
            }
            1 => {
                let mut left = &message[..];
                while !left.is_empty() {
                    let count = rustix::io::write(&to_pipe, left).expect("written");
                    left = &left[count..];
                    let mut moved = 0;
                    while moved < count {
                        let flags = SpliceFlags::empty();
                        let most = count - moved;
                        let to = &ends.client;
                        moved += splice(&from_pipe, None, to, None, most, flags).expect("spliced");
                    }
                }
            }
            _ => ends.client.write_all(&message).expect("sent"),
        }
        let mut heard = vec![0; length];
        ends.server.read_exact(&mut heard).expect("received");
        assert!(heard == message, "other bytes in round {round}");
        ends.server.write_all(b"ok").expect("sent");
        ends.client.read_exact(&mut [0; 2]).expect("received");
    }
    let after = stage.connection(&ends).expect("it is there");
    let [before, after] = [before, after].map(|of| of.client.expect("seen").redirected_messages);
    assert!(after - before > 100, "{before} {after}");
    running.stop();
}

#[test]
fn shutdown_of_either_direction_is_seen() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    ends.client.write_all(b"last").expect("sent");
    ends.client.shutdown(Shutdown::Write).expect("shut");
    let error = ends.client.write(b"more").expect_err("it is shut");
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
    let mut heard = Vec::new();
    ends.server.read_to_end(&mut heard).expect("received");
    assert_eq!(heard, b"last");
    // The server's own direction goes on, and its reads stay at the end.
    ends.server.write_all(b"answer").expect("sent");
    ends.client.read_exact(&mut [0; 6]).expect("received");
    assert_eq!(ends.server.read(&mut [0; 1]).expect("read"), 0);
    ends.server.shutdown(Shutdown::Both).expect("shut");
    assert_eq!(ends.client.read(&mut [0; 1]).expect("read"), 0);
    running.stop();
}

/// The limit that docs/bypass.md names.
#[test]
fn an_urgent_byte_arrives_in_the_stream_or_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let (running, mut ends) = redirected(&stage);
    match send(&ends.client, b"!", SendFlags::OOB) {
        Ok(1) => {
            let mut heard = [0; 1];
            let urgent = recv(&ends.server, &mut heard, RecvFlags::OOB);
            if urgent.is_err() {
                ends.server.read_exact(&mut heard).expect("received");
            }
            assert_eq!(&heard, b"!");
        }
        refused => assert_eq!(refused, Err(Errno::OPNOTSUPP)),
    }
    ends.client.write_all(b"behind").expect("sent");
    let mut heard = [0; 6];
    ends.server.read_exact(&mut heard).expect("received");
    assert_eq!(&heard, b"behind");
    running.stop();
}
