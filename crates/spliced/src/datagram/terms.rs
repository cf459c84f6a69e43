//! What the sessions of a listener of datagrams may have.

use std::time::Duration;

use crate::datagram_args::DatagramArgs;
use crate::ip_header::{DontFragment, TimeToLive};
use crate::plan::ClientLimits;

/// The default time after which a session is idle. It is the kernel's for a translation that has seen no
/// answer (`nf_conntrack_udp_timeout`).
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);

/// The default for the most sessions: each has a socket, whose receive buffer holds at most some 200 KiB
/// (`net.core.rmem_default`).
const MAX_SESSIONS: usize = 16_384;

/// The settings of a listener's sessions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DatagramTerms {
    /// A session without a datagram for this time has ended.
    pub(crate) idle_timeout: Duration,
    /// How many datagrams answer one datagram of a client, if that is known: a session that has them all ends
    /// soon.
    pub(crate) replies: Option<u32>,
    /// How many sessions the listener has at most, in all threads.
    pub(crate) max_sessions: usize,
    /// A client's sessions are counted as connections.
    pub(crate) per_client: ClientLimits,
    pub(crate) ttl: TimeToLive,
    pub(crate) dont_fragment: DontFragment,
}

impl Default for DatagramTerms {
    fn default() -> Self {
        Self {
            idle_timeout: IDLE_TIMEOUT,
            replies: None,
            max_sessions: MAX_SESSIONS,
            per_client: ClientLimits::NONE,
            ttl: TimeToLive::Host,
            dont_fragment: DontFragment::Auto,
        }
    }
}

impl DatagramTerms {
    /// What was given on the command line, and the defaults for the rest.
    pub(crate) fn of(args: &DatagramArgs, idle_timeout: Option<Duration>) -> Self {
        let default = Self::default();
        let max_sessions = args.max_sessions.map(|most| most as usize);
        Self {
            idle_timeout: idle_timeout.unwrap_or(default.idle_timeout),
            replies: args.replies,
            max_sessions: max_sessions.unwrap_or(default.max_sessions),
            per_client: ClientLimits {
                max_connections: args.max_sessions_per_client,
                ..default.per_client
            },
            ttl: args.ttl.unwrap_or_default(),
            dont_fragment: args.dont_fragment.unwrap_or_default(),
        }
    }
}
