//! Pseudo-random numbers, reproducible by their seed.

use std::env;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood 2014) passes BigCrush and accepts any seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn seeded(seed: u64) -> Self {
        Self(seed)
    }

    /// Seeded by the run, so that each run tries something else; `salt` separates the uses.
    pub(crate) fn of_run(salt: u64) -> Self {
        let mut mixed = Self::seeded(run_seed() ^ salt.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Self::seeded(mixed.next())
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// From 1 to `most`, each power of two equally likely: boundaries are at small sizes, and the
    /// bytes are in large ones.
    pub(crate) fn size(&mut self, most: usize) -> usize {
        let bits = u64::from(most.ilog2()) + 1;
        let power = 1 << self.below(bits);
        (power + self.below(power) as usize as u64).min(most as u64) as usize
    }
}

/// The seed of this run: `SPLICED_SEED`, or the clock.
pub(crate) fn run_seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    *SEED.get_or_init(|| match env::var("SPLICED_SEED") {
        Ok(text) => text.parse().expect("SPLICED_SEED is a number"),
        Err(_) => SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_nanos() as u64),
    })
}
