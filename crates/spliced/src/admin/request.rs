//! What a client asks of the process.

use crate::backend::Order;
use crate::log_level::Level;
use crate::sessions::About;

/// What a client asks of the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Listeners and backends. What is known of the process comes with the answer.
    Status,
    Listeners,
    Backends,
    Sessions(About),
    /// About a server of a backend.
    Order(Order),
    /// A listener of this name takes no new clients.
    Drain(String),
    /// It takes clients again.
    Undrain(String),
    /// What is logged, from now on this.
    Log(Option<Level>),
    Reload,
}

impl Request {
    /// Whether the answer waits for the main thread, which a reload may keep busy with names.
    pub(crate) fn needs_main_thread(&self) -> bool {
        match self {
            Self::Backends | Self::Order(_) | Self::Log(_) => false,
            Self::Status
            | Self::Listeners
            | Self::Sessions(_)
            | Self::Drain(_)
            | Self::Undrain(_)
            | Self::Reload => true,
        }
    }
}
