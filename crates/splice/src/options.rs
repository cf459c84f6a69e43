//! The options of a pair.

use std::time::Duration;

use splice_base::keep_alive::KeepAlive;
use splice_base::user_timeout::UserTimeout;

use crate::limits::Limits;
use crate::name::EngineChoice;
use crate::outcome::PeerNames;

/// How a pair is to be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The engine, or `auto`.
    pub engine: EngineChoice,
    /// The pair's limits of cost and time.
    pub limits: Limits,
    /// With [`EngineChoice::Auto`]: a direction may leave `copy` once it has moved this many bytes.
    pub promote_after_bytes: u64,
    /// With [`EngineChoice::Auto`]: a pair that has lived this long and moved fewer bytes than that
    /// goes to `sockmap`, if that can be used. `None`, the default: never, because a pair that
    /// turns to bulk there continues with `copy`, not with `pipe`.
    pub promote_after: Option<Duration>,
    /// With [`EngineChoice::Auto`]: a pair that has moved that much or lived this long goes to
    /// `segment`, if that can be used. The default is 50 ms; `None`: never. docs/segment.md has its
    /// limits.
    pub segment_after: Option<Duration>,
    /// Lets `segment` move a pair past the packet filters of this host (nftables, iptables, BPF
    /// programs of its control group) even if they might stop it, or count, log or mark its
    /// segments. By default such a pair stays in the network stack, and a pair that new rules would
    /// stop is reset.
    pub bypass_firewall: bool,
    /// TCP keep-alive of both sockets. UNIX sockets have none and ignore it. By default the sockets
    /// stay as the caller has set them.
    pub keepalive: KeepAlive,
    /// How long bytes that this process has sent may stay unacknowledged, for both sockets
    /// (`TCP_USER_TIMEOUT`). UNIX sockets ignore it. `None`, the default: as the caller has set it.
    pub user_timeout: Option<UserTimeout>,
    /// What the two peers are called in words for people.
    pub peer_names: PeerNames,
}

/// When a direction has earned the cost of a faster engine, in bytes: "Choosing an engine" in
/// ARCHITECTURE.md.
const PROMOTE_AFTER_BYTES: u64 = 64 << 10;

/// When a pair has proved to live long enough to earn the cost of a change-over: some two thousand
/// times the 25 to 28 µs of the loop's CPU time that it takes (docs/notes/segment-measurements.md).
const SEGMENT_AFTER: Duration = Duration::from_millis(50);

impl Default for Options {
    /// Engine `auto`, the default [`Limits`], promotion to `pipe` and `segment` after 64 KiB.
    fn default() -> Self {
        Self {
            engine: EngineChoice::Auto,
            limits: Limits::default(),
            promote_after_bytes: PROMOTE_AFTER_BYTES,
            promote_after: None,
            segment_after: Some(SEGMENT_AFTER),
            bypass_firewall: false,
            keepalive: KeepAlive::Unchanged,
            user_timeout: None,
            peer_names: PeerNames::default(),
        }
    }
}
