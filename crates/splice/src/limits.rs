//! What a pair may cost and how long it may last.

use std::time::Duration;

/// The limits of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The pair ends when no byte has moved either way for this long. `None`: never.
    pub idle_timeout: Option<Duration>,
    /// The pair ends when one direction has moved this many bytes; not one more is read from
    /// that direction's source by then. `None`: no limit.
    pub byte_limit: Option<u64>,
    /// The most that one pair may hold in the relay while a receiver does not read, in bytes:
    /// its two sockets' buffers (as `SO_MEMINFO` counts them), pipes and the process's memory.
    ///
    /// Each of the four socket buffers gets a fifth of it, so a larger value lets a flow over a
    /// long fat path go faster. A receive buffer has its fifth as soon as bulk comes; a send
    /// buffer grows by TCP's own tuning, which may stay far below. Less than 256 KiB counts as
    /// that much.
    pub memory_bytes: usize,
}

/// What one pair may hold by default, in bytes: point 4 of the contract in ARCHITECTURE.md.
const MEMORY_DEFAULT_BYTES: usize = 16 << 20;

impl Default for Limits {
    /// No idle timeout, no byte limit, 16 MiB.
    fn default() -> Self {
        Self {
            idle_timeout: None,
            byte_limit: None,
            memory_bytes: MEMORY_DEFAULT_BYTES,
        }
    }
}

/// Below this the parts would be smaller than a few full-sized segments, and flows would stall.
const MEMORY_LEAST_BYTES: usize = 256 << 10;

/// How a pair's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The most that a direction may have in hand, in bytes.
    pub(crate) carrier_bytes: usize,
    /// The most that each of the four socket buffers may grow to, in bytes.
    pub(crate) buffer_bytes: usize,
}

impl Limits {
    /// Two carriers of a sixteenth, four buffers of a fifth, and the rest, some seven in a
    /// hundred, for the packet by which the kernel lets each buffer exceed its limit
    /// (`tcp_try_rmem_schedule`, `sk_stream_memory_free`: both look before they add).
    pub(crate) fn shares(&self) -> Shares {
        let memory = self.memory_bytes.max(MEMORY_LEAST_BYTES);
        Shares {
            carrier_bytes: memory / 16,
            buffer_bytes: memory / 5,
        }
    }
}
