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
    /// Half of what remains after pipes and buffers bounds each socket, so a larger value lets a
    /// flow over a long fat path go faster. TCP's own tuning may stay far below it.
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
