//! Frames that say who has sent them and which they are, with content that follows from both.

use std::collections::HashMap;
use std::sync::OnceLock;

use splice::mesh::{Framing, LONGEST_FRAME};

use crate::random::Random;

/// The header: length, sender, number, destination.
const SENDER_AT: usize = 4;
const NUMBER_AT: usize = 12;
const DESTINATION_AT: usize = 20;
pub(crate) const HEADER_BYTES: usize = 24;

/// From one byte to the longest frame.
pub(crate) const MOST_BODY_BYTES: usize = LONGEST_FRAME as usize - HEADER_BYTES;

pub(crate) fn framing() -> Framing {
    let length = "u32be@0".parse().expect("a length");
    let destination = format!("u32be@{DESTINATION_AT}");
    Framing::new(length, destination.parse().expect("a field"), LONGEST_FRAME).expect("a framing")
}

/// Bytes to take contents from: each frame begins somewhere else.
fn noise() -> &'static [u8] {
    static NOISE: OnceLock<Vec<u8>> = OnceLock::new();
    NOISE.get_or_init(|| {
        let mut random = Random::seeded(1);
        let words = (0..2 * LONGEST_FRAME / 8).flat_map(|_| random.next().to_ne_bytes());
        words.collect()
    })
}

/// The body of a frame of at most `most` bytes.
fn body(sender: u64, receiver: u64, number: u64, most: usize) -> &'static [u8] {
    let mut random = Random::seeded(sender << 40 ^ receiver << 20 ^ number);
    let bytes = random.size(most);
    let from = random.below(LONGEST_FRAME.into()) as usize;
    &noise()[from..from + bytes]
}

fn number_at(frame: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(frame[at..at + 8].try_into().expect("eight bytes"))
}

/// What one member has sent, and what has come to it.
#[derive(Debug)]
pub(crate) struct Numbers {
    id: u64,
    framing: Framing,
    sent: HashMap<u64, u64>,
    /// By sender, the number of the next frame.
    come: HashMap<u64, u64>,
    pub(crate) sent_frames: u64,
    pub(crate) come_frames: u64,
    /// Frames of which a notice has said that they were refused.
    pub(crate) told_frames: u64,
}

impl Numbers {
    pub(crate) fn new(id: u64) -> Self {
        Self {
            id,
            framing: framing(),
            sent: HashMap::new(),
            come: HashMap::new(),
            sent_frames: 0,
            come_frames: 0,
            told_frames: 0,
        }
    }

    /// The next frame for a member, with a body of at most `most` bytes.
    pub(crate) fn frame(&mut self, receiver: u64, most: usize) -> Vec<u8> {
        let number = self.sent.entry(receiver).or_default();
        let body = body(self.id, receiver, *number, most);
        let mut frame = self.framing.frame(receiver, body).expect("a frame");
        frame[SENDER_AT..][..8].copy_from_slice(&self.id.to_be_bytes());
        frame[NUMBER_AT..][..8].copy_from_slice(&number.to_be_bytes());
        *number += 1;
        self.sent_frames += 1;
        frame
    }

    /// Checks a frame that has come: it is for this member, whole, and behind those of its sender that came before. Returns
    /// its sender, and how many were left out in front of it.
    pub(crate) fn check(&mut self, frame: &[u8], most: usize) -> (u64, u64) {
        let (sender, number) = (number_at(frame, SENDER_AT), number_at(frame, NUMBER_AT));
        assert_eq!(self.framing.destination_of(frame), Some(self.id));
        let expected = body(sender, self.id, number, most);
        assert!(
            frame[HEADER_BYTES..] == *expected,
            "{sender} to {}, number {number}, {} bytes",
            self.id,
            frame.len()
        );
        let next = self.come.entry(sender).or_default();
        assert!(number >= *next, "{sender} to {}: {number} again", self.id);
        let gap = number - *next;
        *next = number + 1;
        self.come_frames += 1;
        (sender, gap)
    }
}
