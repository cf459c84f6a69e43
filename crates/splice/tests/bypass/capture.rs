//! What a capture has of the messages that are redirected.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, Scratch, available, until};
use rustix::fs::sendfile;
use splice::bypass::{Capture, CaptureEnd, CaptureOptions, Captured, Message};

use crate::random::Random;
use crate::stage::{Ends, LEAVE, Running, Stage, bytes};

/// One direction of a connection, as it was captured.
#[derive(Debug, Default)]
struct Stream {
    bytes: Vec<u8>,
    /// Of its first byte, and the next one.
    sequence: Option<(u32, u32)>,
    messages: u64,
    redirected: u64,
    torn: u64,
}

/// A connection as it was captured.
#[derive(Debug, Default)]
struct Conversation {
    by_client: Stream,
    by_server: Stream,
    last: Option<Instant>,
}

impl Conversation {
    /// A message follows those before without a gap, and knows what the other end has sent.
    fn add(&mut self, message: &Message<'_>) {
        let (own, other) = match message.is_of_client {
            true => (&mut self.by_client, &self.by_server),
            false => (&mut self.by_server, &self.by_client),
        };
        let (first, next) = own.sequence.unwrap_or((message.sequence, message.sequence));
        assert_eq!(next, message.sequence, "after {} messages", own.messages);
        if let Some((_, acknowledged)) = other.sequence {
            assert_eq!(message.acknowledged, acknowledged);
        }
        own.sequence = Some((first, next.wrapping_add(message.bytes)));
        own.messages += 1;
        own.redirected += u64::from(message.is_redirected);
        own.torn += u64::from(message.payload.len() < message.bytes as usize);
        own.bytes.extend(message.payload);
        self.last = Some(message.at);
    }
}

/// A capture that a thread takes the messages of.
struct Taken<'scope> {
    thread: thread::ScopedJoinHandle<'scope, (Conversation, Captured)>,
}

fn take<'scope>(
    scope: &'scope thread::Scope<'scope, '_>,
    mut capture: Capture,
    is_over: &'scope AtomicBool,
) -> Taken<'scope> {
    let thread = scope.spawn(move || {
        let mut conversation = Conversation::default();
        let mut add = |message: &Message<'_>| {
            conversation.add(message);
            Ok::<_, ()>(())
        };
        while !is_over.load(Ordering::Relaxed) {
            assert_eq!(capture.turn(&mut add), Ok(None));
            thread::sleep(Duration::from_millis(5));
        }
        let captured = capture.finish(&mut add).expect("it cannot fail");
        (conversation, captured)
    });
    Taken { thread }
}

fn options(stage: &Stage, ends: &Ends) -> CaptureOptions {
    let filter = format!("{}", ends.name());
    CaptureOptions {
        connection: Some(filter.parse().expect("a filter")),
        // Whatever the machine does meanwhile, the stream is whole.
        with_passed: true,
        ..CaptureOptions::of(stage.pins.path().to_path_buf())
    }
}

/// Every way to send, and every length: those of several pieces and of pages of files, too.
fn speak(from: &mut TcpStream, to: &mut TcpStream, random: &mut Random, most: usize) -> Vec<u8> {
    let scratch = Scratch::new("sent").expect("a directory");
    let mut all = Vec::new();
    for round in 0..60 {
        let length = random.size(most);
        let message = bytes(random, length);
        if round % 3 == 0 {
            let path = scratch.path().join("file");
            std::fs::write(&path, &message).expect("written");
            let file = std::fs::File::open(&path).expect("a file");
            let mut left = length;
            while left > 0 {
                left -= sendfile(&*from, &file, None, left).expect("sent");
            }
        } else {
            from.write_all(&message).expect("sent");
        }
        let mut heard = vec![0; length];
        to.read_exact(&mut heard).expect("received");
        assert!(heard == message, "other bytes");
        all.extend(message);
    }
    all
}

#[test]
fn every_byte_of_both_directions_is_captured_with_its_sequence_number() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let mut limits = stage.options();
    limits.bulk_bytes = Some(100_000);
    let running = Running::start(&limits);
    let mut addresses = vec![IpAddr::from(Lab::SERVER_V4)];
    if stage.lab.has_ipv6() {
        addresses.push(Lab::SERVER_V6.into());
    }
    for address in addresses {
        let mut ends = stage.connect(address);
        stage.until_redirected(&mut ends);
        // Another one, which the filter does not take.
        let mut beside = stage.connect(Lab::SERVER_V4);
        stage.until_redirected(&mut beside);
        let options = options(&stage, &ends);
        let is_over = AtomicBool::new(false);
        let begun = Instant::now();
        let capture = Capture::start(&options).expect("a capture");
        thread::scope(|scope| {
            let taken = take(scope, capture, &is_over);
            let mut random = Random::of_run(60);
            let by_client = speak(&mut ends.client, &mut ends.server, &mut random, 60_000);
            beside.converse(&mut random, 100, 300);
            let by_server = speak(&mut ends.server, &mut ends.client, &mut random, 60_000);
            is_over.store(true, Ordering::Relaxed);
            let (of, captured) = taken.thread.join().expect("no panic");
            let count = of.by_client.messages + of.by_server.messages;
            assert_eq!(
                (captured.messages, captured.lost, captured.torn),
                (count, 0, 0)
            );
            let late = of.last.expect("a message");
            assert!(begun <= late && late <= Instant::now() + Duration::from_millis(10));
            for (stream, sent) in [(of.by_client, by_client), (of.by_server, by_server)] {
                assert!(
                    stream.bytes == sent,
                    "{} of {}",
                    stream.bytes.len(),
                    sent.len()
                );
                assert_eq!(stream.torn, 0);
                assert!(stream.redirected * 2 > stream.messages, "{stream:?}");
            }
        });
    }
    running.stop();
}

#[test]
fn of_long_messages_only_the_first_bytes_are_captured_if_that_is_asked_for() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let options = CaptureOptions {
        snap_bytes: 10,
        ..options(&stage, &ends)
    };
    let capture = Capture::start(&options).expect("a capture");
    ends.client.write_all(&[1; 8]).expect("sent");
    ends.client.write_all(&[2; 3000]).expect("sent");
    let mut of = Vec::new();
    let add = |message: &Message<'_>| {
        of.push((message.bytes, message.payload.to_vec()));
        Ok::<_, ()>(())
    };
    capture.finish(add).expect("it cannot fail");
    assert_eq!(of, [(8, vec![1; 8]), (3000, vec![2; 10])]);
    ends.server.read_exact(&mut [0; 3008]).expect("received");
    running.stop();
}

/// What there was no room for is counted.
#[test]
fn messages_that_nobody_takes_are_lost_and_counted() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let capture = Capture::start(&options(&stage, &ends)).expect("a capture");
    const MESSAGES: u64 = 8000;
    let mut heard = [0; 3000];
    for _ in 0..MESSAGES {
        ends.client.write_all(&[3; 3000]).expect("sent");
        ends.server.read_exact(&mut heard).expect("received");
    }
    let mut count = 0;
    let add = |_: &Message<'_>| {
        count += 1;
        Ok::<_, ()>(())
    };
    let captured = capture.finish(add).expect("it cannot fail");
    assert_eq!(captured.messages, count);
    assert_eq!(captured.messages + captured.lost, MESSAGES, "{captured:?}");
    assert!(captured.lost > MESSAGES / 4, "{captured:?}");
    running.stop();
}

#[test]
fn there_is_one_capture_at_a_time_and_it_ends_with_the_bypass() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let options = options(&stage, &ends);
    let mut first = Capture::start(&options).expect("a capture");
    let refused = Capture::start(&options)
        .expect_err("there is one")
        .to_string();
    assert!(refused.contains("another process captures"), "{refused}");
    drop(first);
    first = Capture::start(&options).expect("a capture");
    // As one that was killed.
    std::mem::forget(first);
    let mut next = None;
    until("the next can start", || {
        next = Capture::start(&options).ok();
        next.is_some()
    });
    let mut next = next.expect("started");
    ends.converse(&mut Random::of_run(61), 10, 300);
    let mut count = 0;
    until("all are there", || {
        let add = |_: &Message<'_>| {
            count += 1;
            Ok::<_, ()>(())
        };
        assert_eq!(next.turn(add), Ok(None));
        count == 20
    });
    let mut bypass = running.abandon();
    let ended = thread::spawn(move || {
        loop {
            if let Some(why) = next.turn(|_| Ok::<_, ()>(())).expect("it cannot fail") {
                return why;
            }
            thread::sleep(Duration::from_millis(5));
        }
    });
    bypass.stop(LEAVE).expect("nothing is left");
    assert_eq!(ended.join().expect("no panic"), CaptureEnd::BypassEnded);
}

/// Its ring does not stay with the bypass.
#[test]
fn the_bypass_forgets_a_capture_that_was_killed() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let captures = splice_bpf::Map::open("captures", &stage.pins.path().join("captures"));
    let captures = captures.expect("it is pinned");
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    std::mem::forget(Capture::start(&options(&stage, &ends)).expect("a capture"));
    let has_ring = || captures.read::<u32, u32>(&0).is_some();
    assert!(has_ring());
    until("it is forgotten", || !has_ring());
    ends.converse(&mut Random::of_run(62), 100, 300);
    running.stop();
}
