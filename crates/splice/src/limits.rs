//! The limits of a pair: what it may cost and how long it may last.

use std::time::Duration;

/// The limits of one pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The pair ends when no byte has moved in either direction for this long. `None`: never.
    pub idle_timeout: Option<Duration>,
    /// Once one stream of the pair has ended, the pair ends when no byte has moved in the other
    /// direction for this long since then, or since its last byte. Both peers see a reset. `None`:
    /// never. An echo has one stream, so this does not apply to it.
    pub half_close_timeout: Option<Duration>,
    /// The pair ends when one direction has moved this many bytes. It reads not one byte more from
    /// that direction's source. `None`: no limit.
    pub byte_limit: Option<u64>,
    /// The most memory that one pair may hold in the relay while a receiver does not read, in
    /// bytes: its two sockets' buffers (as `SO_MEMINFO` counts them), its pipes, and the process's
    /// memory.
    ///
    /// Each of the four socket buffers gets a fifth of it, so a larger value makes a flow over a
    /// long fat path faster. A receive buffer gets its fifth once bulk arrives. TCP tunes a send
    /// buffer, which may stay far smaller. Values below 256 KiB count as 256 KiB.
    pub memory_bytes: usize,
}

/// The default, in bytes: point 4 of the contract in ARCHITECTURE.md.
const MEMORY_DEFAULT_BYTES: usize = 16 << 20;

impl Default for Limits {
    /// No timeout, no byte limit, 16 MiB.
    fn default() -> Self {
        Self {
            idle_timeout: None,
            half_close_timeout: None,
            byte_limit: None,
            memory_bytes: MEMORY_DEFAULT_BYTES,
        }
    }
}

/// With less, the shares are smaller than a few full-sized segments, and flows stall.
const MEMORY_LEAST_BYTES: usize = 256 << 10;

/// How a pair's memory is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    /// The most that a direction may have in flight, in bytes.
    pub(crate) carrier_bytes: usize,
    /// The most that each of the four socket buffers may grow to, in bytes.
    pub(crate) buffer_bytes: usize,
}

impl Limits {
    /// Two carriers of a sixteenth and four buffers of a fifth. The rest, some 7 %, is for the
    /// packet by which the kernel lets each buffer exceed its limit (`tcp_try_rmem_schedule`,
    /// `sk_stream_memory_free`: both check before they add).
    pub(crate) fn shares(&self) -> Shares {
        let memory = self.memory_bytes.max(MEMORY_LEAST_BYTES);
        Shares {
            carrier_bytes: memory / 16,
            buffer_bytes: memory / 5,
        }
    }
}
