//! What a direction gets from its session and its loop, to move bytes.

use std::sync::atomic::AtomicU64;

use crate::carrier::Carriers;
use crate::endpoint::Socket;
use crate::limits::Shares;

/// How often a direction reads before the others on its loop have their turn: a datagram may have no
/// bytes.
pub(crate) const TURN_READS: u32 = 256;

/// What a direction gets from its session and its loop, to move bytes.
pub(crate) struct Conduit<'a> {
    pub(crate) source: &'a dyn Socket,
    /// In an echo, the source itself.
    pub(crate) destination: &'a dyn Socket,
    pub(crate) carriers: &'a mut Carriers,
    pub(crate) shares: Shares,
    pub(crate) pipe_after_bytes: u64,
    pub(crate) byte_limit: Option<u64>,
    /// The largest datagram that the destination may be sent, in bytes.
    pub(crate) largest_datagram: usize,
    /// Where messages are counted that the destination has taken, if its socket keeps them apart.
    pub(crate) messages: Option<&'a AtomicU64>,
    /// The size at which the source's receive buffer is fixed, in bytes.
    pub(crate) receive_bytes: usize,
    /// How often the direction may read in this turn.
    pub(crate) turn_reads: u32,
    /// The other direction has ended: the close that follows sends EOF by itself.
    pub(crate) closing: bool,
}
