//! Datagrams that are sent at a rate, and what became of them.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;

use crate::site::Site;

/// After the last datagram, nothing more comes once nothing came for this time.
pub(super) const QUIET: Duration = Duration::from_millis(30);

/// Datagrams of many clients, sent at a rate and received behind the relay.
pub(super) trait Load: Send {
    /// From now on the clients send to `relay`.
    fn direct(&mut self, site: &Site, relay: SocketAddr) -> Result<()>;

    /// Sends a datagram of each client until one of each has arrived.
    fn open_sessions(&mut self, site: &Site) -> Result<()>;

    /// Sends at `rate` for `window`, and counts what arrives.
    fn offer(&mut self, site: &Site, rate: f64, window: Duration) -> Result<Step>;
}

/// What became of the datagrams of one rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) sent: u64,
    pub(super) received: u64,
    pub(super) took: Duration,
    /// `None`: it was not measured.
    pub(super) delays: Option<Delays>,
}

/// How long datagrams took from the relay's device to the server's, in µs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Delays {
    pub(super) median: f64,
    pub(super) p99: f64,
}

impl Step {
    /// Datagrams a second.
    pub(super) fn offered(&self) -> f64 {
        self.sent as f64 / self.took.as_secs_f64()
    }

    /// How many datagrams arrived, at least 1.
    pub(super) fn arrived(&self) -> u64 {
        self.received.max(1)
    }

    /// The part that was lost.
    pub(super) fn loss(&self) -> f64 {
        1.0 - self.received as f64 / self.sent.max(1) as f64
    }
}
