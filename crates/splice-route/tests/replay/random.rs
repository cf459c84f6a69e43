//! Random choices that a seed repeats.

use std::hash::{BuildHasher, RandomState};

/// Marsaglia's xorshift64*.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A seed that differs from run to run.
    pub(crate) fn any_seed() -> u64 {
        RandomState::new().hash_one(0)
    }

    /// A number below `end`, or 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        usize::try_from(number).expect("32 bits") % end.max(1)
    }

    fn byte(&mut self) -> u8 {
        u8::try_from(self.below(256)).expect("8 bits")
    }

    /// Changes `bytes` in a few places: bytes, lengths, parts that get lost, repeated or mixed with `other`.
    pub(crate) fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        const EDGES: [u8; 10] = [0, 1, 2, 3, 4, 22, 0x7f, 0x80, 0xff, b'\n'];
        for _ in 0..=self.below(4) {
            let at = self.below(bytes.len());
            let end = at + self.below(bytes.len() - at + 1).min(1 + self.below(40));
            match self.below(9) {
                _ if bytes.is_empty() => bytes.push(self.byte()),
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.byte(),
                2 => bytes[at] = EDGES[self.below(EDGES.len())],
                // Lengths that are a little wrong.
                3 => bytes[at] = bytes[at].wrapping_add(1),
                4 => bytes[at] = bytes[at].wrapping_sub(1),
                5 => drop(bytes.drain(at..end)),
                6 => {
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    bytes.splice(to..to, part);
                }
                7 => {
                    let from = self.below(other.len());
                    let length = self.below(other.len() - from + 1).min(40);
                    bytes.splice(at..end, other[from..from + length].iter().copied());
                }
                _ => bytes.truncate(at),
            }
        }
    }
}
