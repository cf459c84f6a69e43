//! What the user who runs a check may do.

use std::fs;

/// Bits of capabilities (`linux/capability.h`).
pub(super) const CAP_NET_BIND_SERVICE: u32 = 10;
pub(super) const CAP_NET_ADMIN: u32 = 12;

/// Whether this thread has the capability.
pub(super) fn has_right(capability: u32) -> bool {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
    effective.is_some_and(|set| set & (1 << capability) != 0)
}
