//! Both ways of reading completions, and partial writes.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU32;

use super::completion_ring::{RING_MAGIC, RingHeader};
use super::*;
use crate::carrier::buffer::{Buffers, Size};

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_nonblocking(true).unwrap();
    (near, far)
}

fn buffer() -> Buffer {
    Buffers::default().take(Size::default())
}

/// Passes messages from one socket to another.
fn carries(context: &mut AioContext) {
    let mut buffer = buffer();
    let (mut sender, source) = pair();
    let (mut receiver, destination) = pair();
    let onward = Some(destination.as_fd());
    let mut received = [0; 16];
    // More rounds than a ring has slots.
    for round in 0..1000 {
        assert_eq!(
            context.fill(&mut buffer, source.as_fd(), 16, onward),
            Ok(ReadOutcome::Empty)
        );
        assert_eq!(buffer.bytes().len(), 0);
        let message = &b"0123456789abcdef"[..1 + round % 16];
        sender.write_all(message).unwrap();
        let filled = context
            .fill(&mut buffer, source.as_fd(), 16, onward)
            .unwrap();
        assert_eq!(filled, ReadOutcome::of_read(message.len(), 16));
        assert_eq!(buffer.bytes().len(), message.len());
        assert_eq!(
            context.drain(&mut buffer, destination.as_fd()),
            Ok(message.len())
        );
        assert_eq!(buffer.bytes().len(), 0);
        let count = receiver.read(&mut received).unwrap();
        assert_eq!(&received[..count], message);
    }
    sender.write_all(b"abc").unwrap();
    // Not beyond `at_most`, and not onward unless asked to.
    assert_eq!(
        context.fill(&mut buffer, source.as_fd(), 2, None),
        Ok(ReadOutcome::Bytes(2))
    );
    assert_eq!(context.drain(&mut buffer, destination.as_fd()), Ok(2));
    assert_eq!(
        context.fill(&mut buffer, source.as_fd(), 2, onward),
        Ok(ReadOutcome::LastBytes(1))
    );
    assert_eq!(context.drain(&mut buffer, destination.as_fd()), Ok(1));
    let count = receiver.read(&mut received).unwrap();
    assert_eq!(&received[..count], b"abc");

    sender.write_all(b"lost").unwrap();
    // A process that another test is starting holds a duplicate until its exec, so dropping it may
    // not close it.
    receiver.shutdown(Shutdown::Both).unwrap();
    assert_eq!(
        context.fill(&mut buffer, source.as_fd(), 16, onward),
        Ok(ReadOutcome::LastBytes(4))
    );
    assert_eq!(
        context.drain(&mut buffer, destination.as_fd()),
        Err(Errno::PIPE)
    );
    assert_eq!(buffer.bytes().len(), 4, "not given");
    let mut buffer = self::buffer();
    sender.shutdown(Shutdown::Both).unwrap();
    assert_eq!(
        context.fill(&mut buffer, source.as_fd(), 16, onward),
        Ok(ReadOutcome::EndOfStream)
    );
}

#[test]
fn reads_and_writes_in_one_call() {
    let mut context = AioContext::new().unwrap();
    assert!(context.known_ring && context.chained);
    carries(&mut context);
}

#[test]
fn works_with_an_unknown_ring_layout() {
    let mut context = AioContext::new().unwrap();
    (context.known_ring, context.chained) = (false, false);
    carries(&mut context);
}

#[test]
fn a_partial_or_refused_write_leaves_the_rest_in_flight() {
    let context = &mut AioContext::new().unwrap();
    let (mut sender, source) = pair();
    let (mut receiver, destination) = pair();
    let mut buffer = buffer();
    let mut given = 0;
    let mut full = false;
    while !full {
        sender.write_all(&[7; 4096]).unwrap();
        let filled = context.fill(&mut buffer, source.as_fd(), 4096, Some(destination.as_fd()));
        assert_eq!(filled, Ok(ReadOutcome::Bytes(4096)));
        while !buffer.bytes().is_empty() && !full {
            match context.drain(&mut buffer, destination.as_fd()) {
                Ok(count) => given += count,
                Err(errno) => {
                    assert_eq!(errno, Errno::AGAIN);
                    full = true;
                }
            }
        }
    }
    let left = buffer.bytes().len();
    assert!(left > 0);
    receiver.read_exact(&mut vec![0; given]).unwrap();
    assert_eq!(context.drain(&mut buffer, destination.as_fd()), Ok(left));
}

#[test]
fn a_ring_of_another_layout_is_not_read() {
    let header = || RingHeader {
        _id: 0,
        slots: 127,
        head: AtomicU32::new(0),
        tail: AtomicU32::new(0),
        magic: RING_MAGIC,
        _compatible: 1,
        incompatible: 0,
        header_bytes: 32,
    };
    assert!(header().is_known());
    assert!(
        !RingHeader {
            magic: 1,
            ..header()
        }
        .is_known()
    );
    assert!(
        !RingHeader {
            incompatible: 1,
            ..header()
        }
        .is_known()
    );
    assert!(
        !RingHeader {
            header_bytes: 40,
            ..header()
        }
        .is_known()
    );
}

#[test]
fn a_refusal_says_why_and_what_to_do() {
    for (errno, why) in [
        (Errno::NOSYS, "no Linux AIO"),
        (Errno::AGAIN, "fs.aio-max-nr"),
        (Errno::PERM, "Operation not permitted"),
    ] {
        let obstacle = obstacle(errno);
        assert!(obstacle.reason.contains(why), "{obstacle:?}");
        assert!(!obstacle.remedy.is_empty(), "{obstacle:?}");
    }
}
