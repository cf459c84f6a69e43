//! What is sent: bytes that look random and come again with the same number.

use std::sync::OnceLock;

/// The stream repeats after this many bytes: a prime, so that a piece of any buffer's size that
/// is lost or doubled shifts all that follows.
const PERIOD_BYTES: usize = 1_048_583;

/// SplitMix64 (Steele, Lea, Flood 2014): takes any seed.
#[derive(Debug)]
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// An endless stream of bytes. Different numbers give streams that differ from the first byte on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    number: u64,
    start: usize,
}

fn block() -> &'static [u8] {
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    BLOCK.get_or_init(|| {
        let mut random = Random(0x5eed);
        let mut bytes: Vec<_> = std::iter::repeat_with(|| random.next())
            .take(PERIOD_BYTES / size_of::<u64>() + 1)
            .flat_map(u64::to_ne_bytes)
            .collect();
        bytes.truncate(PERIOD_BYTES);
        bytes
    })
}

impl Payload {
    pub(crate) fn new(number: u64) -> Self {
        Self {
            number,
            start: Random(number).below(PERIOD_BYTES as u64) as usize,
        }
    }

    /// Bytes from `position` on: `at_most`, or fewer where the block ends.
    pub(crate) fn piece(&self, position: u64, at_most: usize) -> &'static [u8] {
        let from = ((self.start as u64 + position) % PERIOD_BYTES as u64) as usize;
        &block()[from..(from + at_most).min(PERIOD_BYTES)]
    }

    /// The first `count` bytes.
    pub(crate) fn bytes(&self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count);
        while bytes.len() < count {
            bytes.extend_from_slice(self.piece(bytes.len() as u64, count - bytes.len()));
        }
        bytes
    }

    /// Fails unless `bytes` are those from `position` on.
    pub(crate) fn check(&self, position: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let right = self.piece(position + done as u64, bytes.len() - done);
            let here = &bytes[done..done + right.len()];
            if here != right {
                let first = here.iter().zip(right).take_while(|(a, b)| a == b).count();
                panic!(
                    "payload {}: the byte at {} is not the one that was sent",
                    self.number,
                    position + (done + first) as u64
                );
            }
            done += right.len();
        }
    }
}
