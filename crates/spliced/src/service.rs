//! What all connections of a relay share: where they go, how, and what is counted.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use splice::{EngineChoice, EngineName, Options};

use crate::access_log::AccessLog;
use crate::connection_limit::ConnectionLimit;
use crate::rate_limited_warning::RateLimitedWarning;
use crate::target::Target;

/// Where the bytes of a client go.
pub(crate) enum Destination {
    Target(Arc<Target>),
    /// Back to the client.
    Client,
}

/// Shared by the listeners and connections of all threads.
pub(crate) struct Service {
    pub(crate) destination: Destination,
    /// Clients come over TCP.
    pub(crate) listens_on_tcp: bool,
    pub(crate) options: Options,
    pub(crate) connect_timeout: Duration,
    pub(crate) access_log: Option<AccessLog>,
    pub(crate) connection_limit: Arc<ConnectionLimit>,
    pub(crate) next_id: AtomicU64,
    /// Connections that the end of the relay cut short.
    pub(crate) cut_short: AtomicU64,
    pub(crate) warnings: Warnings,
}

/// Warnings that every connection may cause.
#[derive(Default)]
pub(crate) struct Warnings {
    pub(crate) shortage: RateLimitedWarning,
    pub(crate) max_connections_reached: RateLimitedWarning,
    pub(crate) target_unreachable: RateLimitedWarning,
    pub(crate) engine_refused: RateLimitedWarning,
}

impl Service {
    /// Whether `auto` may promote pairs to the kernel.
    pub(crate) fn may_promote(&self) -> bool {
        self.options.segment_after.is_some()
            && self.listens_on_tcp
            && matches!(self.destination, Destination::Target(_))
    }

    /// Whether pairs may bypass the packet filters of this host.
    pub(crate) fn may_bypass_filters(&self) -> bool {
        self.may_promote() && self.options.engine == EngineChoice::Auto
            || self.translates_segments()
    }

    /// Whether the segments of the target have to fit the client. Each connection pays one or two
    /// system calls for that, so `auto` leaves it to those who name the engine.
    pub(crate) fn translates_segments(&self) -> bool {
        self.options.engine == EngineChoice::Only(EngineName::Segment)
    }
}

#[cfg(test)]
impl Service {
    /// A service that echoes.
    pub(crate) fn echo(max_connections: Option<u32>) -> Self {
        Self {
            destination: Destination::Client,
            listens_on_tcp: true,
            options: Options::default(),
            connect_timeout: Duration::ZERO,
            access_log: None,
            connection_limit: ConnectionLimit::new(max_connections),
            next_id: AtomicU64::new(0),
            cut_short: AtomicU64::new(0),
            warnings: Warnings::default(),
        }
    }
}
