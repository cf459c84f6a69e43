//! What a mesh may hold, and for how long.

use std::time::Duration;

use splice_base::error::{Error, ErrorKind, Result};
use splice_bpf::types::bound_cost;

use super::framing::Framing;

/// The bookkeeping of one skb, in bytes.
pub(super) const SKB_COST: u64 = bound_cost::SKB_COST as u64;

/// What notices may need beyond the bound of a member, in bytes: a member that is full is told, too.
pub(super) const NOTICE_RESERVE: u64 = 64 << 10;

/// The most members that a mesh can be made for. The kernel creates a map of sockets with all of its entries, and this
/// is as many as one address has ports.
const MOST_MEMBERS: u32 = 65_535;

/// What a mesh may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most members at a time, 1 to 65535.
    pub members: u32,
    /// What may be on its way to one member, in bytes of kernel memory. A frame beyond it is refused.
    pub member_bytes: u32,
    /// The time that a frame has to become complete.
    pub frame_timeout: Duration,
}

impl Bounds {
    /// Whether a mesh can keep them.
    pub(super) fn check(&self, framing: &Framing) -> Result<()> {
        let least = match framing.delimiter() {
            None => u64::from(framing.most_bytes()) + SKB_COST,
            // The parser keeps the packets of a frame whose end it does not know, and each may have one byte. (It leaves the
            // rest of a frame with a length in the receive queue, where packets are merged.)
            Some(_) => u64::from(framing.most_bytes()) * (SKB_COST + 1),
        };
        let refused = if u64::from(self.member_bytes) < least {
            format!(
                "{} bytes on the way to a member are less than one frame needs; allow {least}",
                self.member_bytes
            )
        } else if !(1..=MOST_MEMBERS).contains(&self.members) {
            format!(
                "a mesh cannot have {} members; allow 1 to {MOST_MEMBERS}",
                self.members
            )
        } else {
            return Ok(());
        };
        Err(Error::new(ErrorKind::EngineRefused, refused))
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            members: 1024,
            member_bytes: 1 << 20,
            frame_timeout: Duration::from_secs(10),
        }
    }
}
