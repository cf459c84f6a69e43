//! The workloads.

pub(crate) mod echo;
mod held;
pub(crate) mod idle;
pub(crate) mod ping_pong;
pub(crate) mod ports;
pub(crate) mod request_response;
pub(crate) mod short_connections;
pub(crate) mod slow_reader;
pub(crate) mod stalled;
pub(crate) mod transfer;
pub(crate) mod young;

use std::time::Duration;

pub(crate) use held::Held;

/// Part of a measurement that goes first where nothing else is said, and does not count.
const WARM_UP_PART: u32 = 10;

/// How long something is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    /// Goes first and does not count.
    pub(crate) warm_up: Duration,
    pub(crate) length: Duration,
}

impl Window {
    /// With a warm-up of a tenth.
    pub(crate) fn of(length: Duration) -> Self {
        Self {
            warm_up: length / WARM_UP_PART,
            length,
        }
    }
}
