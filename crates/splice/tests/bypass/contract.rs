//! What programs see of a redirected connection, beside what they see over plain TCP.
//!
//! A rule is a function that talks over a connection and notes what it sees. It runs twice, over TCP and over a connection
//! that is redirected, and has to see the same. docs/bypass.md has the exceptions, which `limits` and `calls` test.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::thread;
use std::time::{Duration, Instant};

use io_uring::{IoUring, opcode, types};
use netlab::{Lab, Need, available, present, until, until_at_rest};
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::ioctl_fionread;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{RecvFlags, recv};
use splice_base::socket_option::set_receive_low_mark;

use crate::random::Random;
use crate::stage::{Ends, Polled, Stage, bytes};

/// Longer than anything here takes.
const LONG: Timespec = Timespec {
    tv_sec: 30,
    tv_nsec: 0,
};

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// What a rule has seen, in its order.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen(Vec<String>);

impl Seen {
    fn note(&mut self, what: &str, seen: impl std::fmt::Debug) {
        self.0.push(format!("{what}: {seen:?}"));
    }

    /// A result of a call, whose error is named by its kind.
    fn call(&mut self, what: &str, result: io::Result<usize>) {
        self.note(what, result.map_err(|error| error.kind()));
    }
}

type Rule = fn(&mut Ends, &mut Seen);

/// Whether a rule's messages are redirected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Redirected {
    Yes,
    /// The reader has a trait for which they go over TCP.
    Not,
}

/// Runs a rule both ways. `before` is what its connection does first, while it is young.
fn same_as_tcp(before: Option<Rule>, rule: Rule, redirected: Redirected) {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let run = |stage: &Stage, prepare: &dyn Fn(&mut Ends)| {
        let mut ends = stage.connect(Lab::SERVER_V4);
        if let Some(before) = before {
            before(&mut ends, &mut Seen::default());
        }
        prepare(&mut ends);
        let mut seen = Seen::default();
        rule(&mut ends, &mut seen);
        seen
    };
    let by_tcp = run(&stage, &|_| ());
    assert!(!by_tcp.0.is_empty());

    let running = stage.start();
    let redirected_messages = || stage.status().sum().redirected_messages;
    let count = std::cell::Cell::new(0);
    let past_tcp = run(&stage, &|ends| {
        match redirected {
            Redirected::Yes => drop(stage.until_redirected(ends)),
            // As far as it comes.
            Redirected::Not => ends.converse(&mut Random::of_run(70), 300, 300),
        }
        count.set(redirected_messages());
    });
    assert_eq!(past_tcp, by_tcp);
    if redirected == Redirected::Yes {
        assert!(
            redirected_messages() > count.get(),
            "nothing was redirected"
        );
    }
    until("nothing of it is left", || {
        let status = stage.status();
        status.members == 0 && status.connections.is_empty()
    });
    running.stop();
}

/// Reads as much as there has to be.
fn hear(from: &mut TcpStream, length: usize) -> io::Result<Vec<u8>> {
    let mut heard = vec![0; length];
    from.read_exact(&mut heard).map(|()| heard)
}

fn is_readable(socket: &TcpStream, wait: &Timespec) -> bool {
    let mut waited = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut waited, Some(wait)).expect("waited") > 0
}

#[test]
fn every_byte_arrives_once_and_in_order_in_both_directions_at_once() {
    const BYTES: usize = 1 << 20;
    fn pour(socket: &TcpStream, seed: u64) {
        let mut random = Random::seeded(seed);
        let mut left = BYTES;
        while left > 0 {
            let length = random.size(3000).min(left);
            let message = bytes(&mut random, length);
            Polled(socket).write_all(&message).expect("sent");
            left -= length;
        }
    }
    fn drink(socket: &TcpStream, seed: u64) -> usize {
        let mut random = Random::seeded(seed);
        let mut left = BYTES;
        while left > 0 {
            let length = random.size(3000).min(left);
            let expected = bytes(&mut random, length);
            let mut heard = vec![0; length];
            Polled(socket).read_exact(&mut heard).expect("received");
            assert!(heard == expected, "other bytes with {left} to come");
            left -= length;
        }
        BYTES - left
    }
    let rule: Rule = |ends, seen| {
        let heard = thread::scope(|scope| {
            scope.spawn(|| pour(&ends.client, 71));
            scope.spawn(|| pour(&ends.server, 72));
            let by_server = scope.spawn(|| drink(&ends.server, 71));
            let by_client = drink(&ends.client, 72);
            [by_server.join().expect("no panic"), by_client]
        });
        seen.note("heard", heard);
        let more = [&ends.client, &ends.server].map(|end| is_readable(end, &NOW));
        seen.note("more", more);
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn a_half_close_comes_behind_the_last_message_and_the_other_direction_goes_on() {
    let rule: Rule = |ends, seen| {
        ends.client.write_all(b"last words").expect("sent");
        ends.client.shutdown(Shutdown::Write).expect("shut");
        // The FIN is there before the message is read.
        let mut waited = [PollFd::new(&ends.server, PollFlags::RDHUP)];
        poll(&mut waited, Some(&LONG)).expect("waited");
        seen.note("events", waited[0].revents());
        let mut heard = Vec::new();
        ends.server.read_to_end(&mut heard).expect("received");
        seen.note("heard", &heard);
        seen.call("at the end", ends.server.read(&mut [0; 10]));
        seen.call("written", ends.client.write(b"more"));
        let mut random = Random::seeded(73);
        for _ in 0..50 {
            let length = random.size(300);
            let message = bytes(&mut random, length);
            ends.server.write_all(&message).expect("sent");
            assert_eq!(hear(&mut ends.client, length).expect("received"), message);
        }
        ends.server.shutdown(Shutdown::Write).expect("shut");
        seen.call("the other end", ends.client.read(&mut [0; 10]));
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn shutdown_of_reading_ends_waits_and_of_both_is_seen() {
    let rule: Rule = |ends, seen| {
        ends.client.write_all(b"before").expect("sent");
        assert!(is_readable(&ends.server, &LONG));
        ends.server.shutdown(Shutdown::Read).expect("shut");
        seen.call("what was there", ends.server.read(&mut [0; 10]));
        seen.call("the end", ends.server.read(&mut [0; 10]));
        ends.server.write_all(b"answer").expect("sent");
        seen.note("answer", hear(&mut ends.client, 6).expect("received"));
        ends.server.shutdown(Shutdown::Both).expect("shut");
        seen.call("the other end", ends.client.read(&mut [0; 10]));
        seen.call("written", ends.server.write(b"more"));
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn a_reset_comes_behind_what_was_sent_before_and_fails_further_calls() {
    let rule: Rule = |ends, seen| {
        ends.client.write_all(b"last words").expect("sent");
        set_socket_linger(&ends.client, Some(Duration::ZERO)).expect("set");
        let other = TcpStream::from(std::os::fd::OwnedFd::from(std::mem::replace(
            &mut ends.client,
            ends.server.try_clone().expect("one"),
        )));
        drop(other);
        let mut waited = [PollFd::new(&ends.server, PollFlags::RDHUP)];
        poll(&mut waited, Some(&LONG)).expect("waited");
        seen.note("events", waited[0].revents());
        let mut heard = [0; 20];
        for what in ["first", "second", "third"] {
            seen.call(what, Polled(&ends.server).read(&mut heard));
        }
        seen.call("written", ends.server.write(b"more"));
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn a_reader_that_stops_makes_its_writer_wait_and_loses_nothing() {
    let rule: Rule = |ends, seen| {
        ends.client.set_nonblocking(true).expect("set");
        let mut random = Random::seeded(74);
        let mut all = Vec::new();
        let mut next = Vec::new();
        let mut is_full = || {
            loop {
                if next.is_empty() {
                    let length = random.size(3000);
                    next = bytes(&mut random, length);
                }
                match (&ends.client).write(&next) {
                    Ok(count) => all.extend(next.drain(..count)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return all.len(),
                    Err(error) => panic!("{error}"),
                }
                assert!(all.len() < 256 << 20, "nobody waits");
            }
        };
        until_at_rest(Duration::from_millis(300), &mut is_full);
        let is_writable = |socket: &TcpStream, wait| {
            let mut waited = [PollFd::new(socket, PollFlags::OUT)];
            poll(&mut waited, Some(wait)).expect("waited") > 0
        };
        seen.note("writable", is_writable(&ends.client, &NOW));
        let heard = hear(&mut ends.server, all.len()).expect("received");
        seen.note("in order", heard == all);
        seen.note("writable again", is_writable(&ends.client, &LONG));
        ends.client.set_nonblocking(false).expect("set");
        ends.converse(&mut Random::seeded(75), 50, 300);
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn peeking_shows_the_next_bytes_and_takes_nothing() {
    let rule: Rule = |ends, seen| {
        ends.client.write_all(b"abc").expect("sent");
        ends.client.write_all(b"defgh").expect("sent");
        let peek = |length: usize| {
            let mut heard = vec![0; length];
            let (count, _) = recv(&ends.server, &mut heard[..], RecvFlags::PEEK).expect("peeked");
            heard.truncate(count);
            heard
        };
        until("both are there", || peek(100).len() == 8);
        for length in [1, 3, 5, 100] {
            seen.note("peeked", peek(length));
        }
        seen.note("read", hear(&mut ends.server.try_clone().expect("one"), 2));
        seen.note("peeked behind", peek(100));
        seen.note(
            "read to the end",
            hear(&mut ends.server.try_clone().expect("one"), 6),
        );
        let empty = recv(
            &ends.server,
            &mut [0; 10],
            RecvFlags::PEEK | RecvFlags::DONTWAIT,
        );
        seen.note("empty", empty.map(|(count, _)| count));
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn a_read_of_all_waits_for_all() {
    let read: Rule = |ends, seen| {
        for round in 0..20 {
            let message = [round; 50];
            ends.client.write_all(&message).expect("sent");
            let mut heard = [0; 100];
            let received = thread::scope(|scope| {
                let server = &ends.server;
                let heard = &mut heard[..];
                let waiting = scope.spawn(move || recv(server, heard, RecvFlags::WAITALL));
                ends.client.write_all(&message).expect("sent");
                waiting.join().expect("no panic").map(|(count, _)| count)
            });
            seen.note("received", received);
            seen.note("in order", heard == [round; 100]);
        }
    };
    same_as_tcp(Some(read), read, Redirected::Not);
}

#[test]
fn a_low_water_mark_holds() {
    let rule: Rule = |ends, seen| {
        set_receive_low_mark(&ends.server, 10).expect("set");
        for _ in 0..20 {
            ends.client.write_all(b"12345").expect("sent");
            seen.note("too little", is_readable(&ends.server, &NOW));
            ends.client.write_all(b"67890").expect("sent");
            seen.note("enough", is_readable(&ends.server, &LONG));
            let received = recv(&ends.server, &mut [0; 20], RecvFlags::empty());
            let received = received.map(|(count, _)| count);
            seen.note("received", received);
        }
    };
    same_as_tcp(None, rule, Redirected::Not);
}

#[test]
fn a_receive_timeout_holds_and_a_message_ends_the_wait() {
    let rule: Rule = |ends, seen| {
        let patience = Duration::from_millis(200);
        ends.server.set_read_timeout(Some(patience)).expect("set");
        let begun = Instant::now();
        seen.call("nothing is there", ends.server.read(&mut [0; 10]));
        seen.note("in time", begun.elapsed() >= patience);
        ends.server
            .set_read_timeout(Some(netlab::PATIENCE))
            .expect("set");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| (&ends.server).read(&mut [0; 10]));
            ends.client.write_all(b"now").expect("sent");
            seen.call("now", waiting.join().expect("no panic"));
        });
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

/// One wait of epoll: the events of the only socket.
fn events(set: &impl std::os::fd::AsFd, wait: &Timespec) -> Vec<epoll::EventFlags> {
    let mut events = Vec::with_capacity(1);
    epoll::wait(set, spare_capacity(&mut events), Some(wait)).expect("waited");
    events.iter().map(|event| event.flags).collect()
}

fn polling(edge: epoll::EventFlags, ends: &mut Ends, seen: &mut Seen) {
    ends.server.set_nonblocking(true).expect("set");
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll instance");
    let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP | edge;
    epoll::add(&set, &ends.server, epoll::EventData::new_u64(1), flags).expect("added");
    let mut random = Random::seeded(76);
    for _ in 0..100 {
        let length = random.size(700);
        let message = bytes(&mut random, length);
        ends.client.write_all(&message).expect("sent");
        seen.note("it comes", events(&set, &LONG));
        let mut heard = vec![0; 1000];
        let count = ends.server.read(&mut heard).expect("received");
        seen.note("in order", heard[..count] == message);
        seen.call("empty", ends.server.read(&mut heard));
        seen.note("nothing is left", events(&set, &NOW));
    }
    // By level it is told as long as something is left, and by edge once.
    ends.client.write_all(&[1; 100]).expect("sent");
    seen.note("it comes", events(&set, &LONG));
    for _ in 0..3 {
        ends.server.read_exact(&mut [0; 10]).expect("received");
        seen.note("some is left", events(&set, &NOW));
    }
    ends.server.read_exact(&mut [0; 70]).expect("received");
    ends.client.shutdown(Shutdown::Write).expect("shut");
    seen.note("the end", events(&set, &LONG));
    seen.call("the end", ends.server.read(&mut [0; 10]));
}

#[test]
fn polling_by_level_tells_of_all_that_is_left() {
    let rule: Rule = |ends, seen| polling(epoll::EventFlags::empty(), ends, seen);
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn polling_by_edge_tells_of_each_message() {
    let rule: Rule = |ends, seen| polling(epoll::EventFlags::ET, ends, seen);
    same_as_tcp(None, rule, Redirected::Yes);
}

#[test]
fn io_uring_receives_messages_that_are_there_and_that_come_later() {
    let missing = IoUring::new(4).err();
    let why = missing.map(|error| format!("no io_uring: {error}"));
    if !present("io_uring", why) {
        return;
    }
    let rule: Rule = |ends, seen| {
        let mut ring = IoUring::new(4).expect("present");
        let mut random = Random::seeded(77);
        for round in 0..200 {
            let length = random.size(600);
            let message = bytes(&mut random, length);
            let mut heard = vec![0u8; 1000];
            let into = types::Fd(ends.server.as_raw_fd());
            let receive = opcode::Recv::new(into, heard.as_mut_ptr(), heard.len() as u32).build();
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
            seen.note("received", completion.result());
            seen.note("in order", heard[..length] == message);
        }
    };
    same_as_tcp(None, rule, Redirected::Yes);
}

/// Where the kernel has a defect, bypass refuses to start: `limits::a_kernel_whose_fionread_is_wrong_…`.
#[test]
fn fionread_counts_what_is_there_where_the_kernel_can() {
    let rule: Rule = |ends, seen| {
        let mut left = 0;
        for length in [5, 100, 300] {
            ends.client.write_all(&vec![1; length]).expect("sent");
            left += length;
            let all = |wanted: usize| {
                let mut heard = vec![0; wanted];
                let (count, _) =
                    recv(&ends.server, &mut heard[..], RecvFlags::PEEK).expect("peeked");
                count == wanted
            };
            until("all are there", || all(left));
            seen.note("counted", ioctl_fionread(&ends.server).expect("asked"));
        }
        hear(&mut ends.server, 100).expect("received");
        seen.note("of the rest", ioctl_fionread(&ends.server).expect("asked"));
    };
    match splice_sockmap::has_fionread_defect() {
        true => {
            println!("FIONREAD is wrong on this kernel, and bypass refuses unless told otherwise")
        }
        false => same_as_tcp(None, rule, Redirected::Yes),
    }
}
