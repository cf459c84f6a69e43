//! Sending a payload, and receiving it byte for byte.

use std::io::{ErrorKind, Read, Write};
use std::ops::Range;
use std::thread;
use std::time::Duration;

use crate::support::patience::{PATIENCE, QUIET};
use crate::support::payload::Payload;
use crate::support::peer::Peer;
use crate::support::random::Random;

const LARGEST_PIECE_BYTES: usize = 200 << 10;

/// The size of the pieces, and the pauses.
pub(crate) enum Pace {
    Steady,
    /// Pieces of every size, with occasional pauses.
    Random(Random),
    /// Each piece has this many bytes.
    Pieces(usize),
}

impl Pace {
    pub(crate) fn random(salt: u64) -> Self {
        Self::Random(Random::of_run(salt))
    }

    fn step(&mut self) -> usize {
        match self {
            Self::Steady => LARGEST_PIECE_BYTES,
            Self::Pieces(bytes) => *bytes,
            Self::Random(random) => {
                if random.below(64) == 0 {
                    thread::sleep(Duration::from_micros(random.below(2000)));
                }
                random.size(LARGEST_PIECE_BYTES)
            }
        }
    }
}

pub(crate) fn send(peer: &Peer, payload: Payload, range: Range<u64>, mut pace: Pace) {
    let mut position = range.start;
    while position < range.end {
        let at_most = (range.end - position).min(pace.step() as u64) as usize;
        let mut piece = payload.piece(position, at_most);
        position += piece.len() as u64;
        while !piece.is_empty() {
            match (&mut &*peer).write(piece) {
                Ok(count) => piece = &piece[count..],
                Err(error) => panic!("{peer:?} cannot write at {position}: {error}"),
            }
        }
    }
}

/// Receives exactly the bytes of `range`.
pub(crate) fn receive(peer: &Peer, payload: Payload, range: Range<u64>, mut pace: Pace) {
    let mut buffer = vec![0; LARGEST_PIECE_BYTES];
    let mut position = range.start;
    while position < range.end {
        let at_most = (range.end - position).min(pace.step() as u64) as usize;
        match (&mut &*peer).read(&mut buffer[..at_most]) {
            Ok(0) => panic!("{peer:?}: end of stream at {position} of {}", range.end),
            Ok(count) => {
                payload.check(position, &buffer[..count]);
                position += count as u64;
            }
            Err(error) => panic!("{peer:?}: at {position} of {}: {error}", range.end),
        }
    }
}

/// Receives the bytes of `range`, and EOF after them.
pub(crate) fn receive_to_end(peer: &Peer, payload: Payload, range: Range<u64>, pace: Pace) {
    let end = range.end;
    receive(peer, payload, range, pace);
    match (&mut &*peer).read(&mut [0; 16]) {
        Ok(0) => {}
        Ok(count) => panic!("{peer:?}: {count} bytes behind the end at {end}"),
        Err(error) => panic!("{peer:?}: no end of stream at {end}: {error}"),
    }
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    EndOfStream,
    Reset,
}

/// Receives until the stream ends in either way. Returns the position.
pub(crate) fn receive_until_cut(peer: &Peer, payload: Payload, from: u64) -> (u64, Ending) {
    let mut buffer = vec![0; LARGEST_PIECE_BYTES];
    let mut position = from;
    loop {
        match (&mut &*peer).read(&mut buffer) {
            Ok(0) => return (position, Ending::EndOfStream),
            Ok(count) => {
                payload.check(position, &buffer[..count]);
                position += count as u64;
            }
            Err(error) => match error.kind() {
                ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
                    return (position, Ending::Reset);
                }
                _ => panic!("{peer:?}: at {position}: {error}"),
            },
        }
    }
}

/// Sends until there was no room for a while, or the stream is cut. Returns the position.
pub(crate) fn send_until_blocked(peer: &Peer, payload: Payload, from: u64, most: u64) -> u64 {
    let mut position = from;
    while peer.is_writable_within(QUIET) {
        match peer.write_now(payload.piece(position, LARGEST_PIECE_BYTES)) {
            Ok(count) => position += count as u64,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => break,
        }
        assert!(
            position - from < most,
            "{peer:?} sent {most} bytes to a receiver that does not read"
        );
    }
    position
}

/// Sends until the stream is cut. A write after EOF in both directions is told apart from a reset:
/// both give `EPIPE`.
pub(crate) fn send_until_cut(peer: &Peer, payload: Payload, from: u64) -> Ending {
    let mut position = from;
    loop {
        assert!(
            peer.is_writable_within(PATIENCE),
            "{peer:?} is neither cut nor writable"
        );
        match peer.write_now(payload.piece(position, LARGEST_PIECE_BYTES)) {
            Ok(count) => position += count as u64,
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => {}
                ErrorKind::ConnectionReset => return Ending::Reset,
                ErrorKind::BrokenPipe => return Ending::EndOfStream,
                _ => panic!("{peer:?}: at {position}: {error}"),
            },
        }
    }
}
