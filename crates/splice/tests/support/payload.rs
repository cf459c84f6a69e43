//! Payloads: endless streams of bytes of which no part looks like another.

use std::sync::OnceLock;

use super::random::{Random, run_seed};

/// One write is never cut by the end of the block, in bytes.
const LARGEST_PIECE_BYTES: usize = 256 << 10;

/// The stream repeats after this many bytes: a prime, so that a piece of any buffer's size that is
/// lost or duplicated shifts what follows.
const PERIOD_BYTES: usize = 4_194_319;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Payload {
    start: usize,
}

fn block() -> &'static [u8] {
    static BLOCK: OnceLock<Vec<u8>> = OnceLock::new();
    BLOCK.get_or_init(|| {
        let mut random = Random::of_run(0);
        let mut bytes = Vec::with_capacity(PERIOD_BYTES + LARGEST_PIECE_BYTES);
        while bytes.len() < PERIOD_BYTES {
            bytes.extend_from_slice(&random.next().to_ne_bytes());
        }
        bytes.truncate(PERIOD_BYTES);
        bytes.extend_from_within(..LARGEST_PIECE_BYTES);
        bytes
    })
}

impl Payload {
    /// Payloads of different salts differ from the first byte on.
    pub(crate) fn new(salt: u64) -> Self {
        Self {
            start: Random::of_run(salt.wrapping_add(1)).below(PERIOD_BYTES as u64) as usize,
        }
    }

    /// Bytes from `position` on: `at_most` of them, or possibly fewer if that exceeds
    /// `LARGEST_PIECE_BYTES`.
    pub(crate) fn piece(&self, position: u64, at_most: usize) -> &'static [u8] {
        let from = ((self.start as u64 + position) % PERIOD_BYTES as u64) as usize;
        let to = (from + at_most).min(PERIOD_BYTES + LARGEST_PIECE_BYTES);
        &block()[from..to]
    }

    /// The first `count` bytes.
    #[allow(dead_code, reason = "not every program that shares it writes files")]
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
                self.tell_difference(position + done as u64, here, right);
            }
            done += right.len();
        }
    }

    fn tell_difference(&self, position: u64, here: &[u8], right: &[u8]) -> ! {
        const RECOGNISED_BYTES: usize = 16;
        let first = here.iter().zip(right).take_while(|(a, b)| a == b).count();
        let strange = &here[first..(first + RECOGNISED_BYTES).min(here.len())];
        let found = block()
            .windows(strange.len())
            .position(|window| window == strange)
            .map(|index| (index + PERIOD_BYTES - self.start) % PERIOD_BYTES);
        panic!(
            "the byte at {} is wrong; the received bytes belong at {found:?} (modulo {PERIOD_BYTES}); \
             run again with SPLICED_SEED={}",
            position + first as u64,
            run_seed()
        );
    }
}
