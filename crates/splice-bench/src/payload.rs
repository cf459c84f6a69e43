//! Bytes that cannot arrive twice, late or elsewhere without being noticed.

use xxhash_rust::xxh3::Xxh3Default;

/// An endless pseudo-random stream, the same for the same seed: xoshiro256++ by Blackman and Vigna
/// (<https://prng.di.unimi.it/>), seeded through SplitMix64 as they advise.
#[derive(Debug)]
pub(crate) struct Payload {
    state: [u64; 4],
}

impl Payload {
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = seed;
        Self {
            state: std::array::from_fn(|_| split_mix(&mut mixed)),
        }
    }

    /// Overwrites `buffer` with the next bytes of the stream; its length is a multiple of 8 except
    /// at the stream's end.
    pub(crate) fn fill(&mut self, buffer: &mut [u8]) {
        for chunk in buffer.chunks_mut(size_of::<u64>()) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    fn next(&mut self) -> u64 {
        let [s0, s1, s2, s3] = &mut self.state;
        let result = s0.wrapping_add(*s3).rotate_left(23).wrapping_add(*s0);
        let shifted = *s1 << 17;
        *s2 ^= *s0;
        *s3 ^= *s1;
        *s1 ^= *s2;
        *s0 ^= *s3;
        *s2 ^= shifted;
        *s3 = s3.rotate_left(45);
        result
    }
}

fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
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
