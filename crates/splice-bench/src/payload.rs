//! Bytes that cannot arrive twice, late or elsewhere without being noticed.

use xxhash_rust::xxh3::Xxh3Default;

use crate::random::Random;

/// An endless pseudo-random stream, the same for the same seed.
#[derive(Debug)]
pub(crate) struct Payload {
    random: Random,
}

impl Payload {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            random: Random::new(seed),
        }
    }

    /// Overwrites `buffer` with the next bytes of the stream; its length is a multiple of 8 except
    /// at the stream's end.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(size_of::<u64>()) {
            chunk.copy_from_slice(&self.random.next().to_le_bytes()[..chunk.len()]);
        }
    }
}

/// A hash of everything that went by, and how much that was.
#[derive(Default)]
pub(crate) struct Digest {
    hash: Xxh3Default,
    bytes: u64,
}

impl Digest {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    /// The hash of all bytes (XXH3, 128 bits) and their number.
    pub(crate) fn finish(&self) -> (u128, u64) {
        (self.hash.digest128(), self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{Digest, Payload};

    #[test]
    fn the_same_seed_gives_the_same_stream_however_it_is_cut() {
        let (mut whole, mut cut) = (vec![0; 4096], vec![0; 4096]);
        Payload::new(7).fill(&mut whole);
        let mut payload = Payload::new(7);
        cut.chunks_mut(64).for_each(|chunk| payload.fill(chunk));
        assert_eq!(whole, cut);
        Payload::new(8).fill(&mut cut);
        assert_ne!(whole, cut);
    }

    #[test]
    fn a_digest_sees_order_and_length() {
        let digest = |parts: &[&[u8]]| {
            let mut digest = Digest::default();
            parts.iter().for_each(|part| digest.update(part));
            digest.finish()
        };
        assert_eq!(digest(&[b"ab", b"cd"]), digest(&[b"abcd"]));
        assert_ne!(digest(&[b"ab", b"cd"]), digest(&[b"cd", b"ab"]));
        assert_eq!(digest(&[b"abc"]).1, 3);
    }
}
