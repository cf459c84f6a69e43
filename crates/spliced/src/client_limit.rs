//! How many connections each client has, and how fast it opens new ones.
//!
//! A client is a prefix of addresses. The rate is kept by the generic cell rate algorithm (ITU-T I.371):
//! one time per client says when it has used up what it may open.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use splice_route::Prefix;

use crate::plan::ClientLimits;
use crate::plural::counted;

/// A client may open in a burst what it may open within this time.
const BURST: Duration = Duration::from_secs(1);

/// Below this many entries nothing is swept: they take less than 1 MiB.
const FEW_CLIENTS: usize = 8192;

/// The clients of one listener.
#[derive(Debug, Default)]
pub(crate) struct ClientLimit {
    clients: Mutex<Clients>,
}

#[derive(Debug, Default)]
struct Clients {
    by_prefix: HashMap<Prefix, Client>,
    /// Entries that may be left over are looked for when there are more than this.
    sweep_at: usize,
}

#[derive(Debug)]
struct Client {
    open: u32,
    /// When the burst is whole again.
    rested_at: Instant,
}

/// One open connection of a client, which ends on drop.
#[derive(Debug)]
pub(crate) struct ClientPermit {
    limit: Arc<ClientLimit>,
    client: Prefix,
}

/// Why a client gets no further connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Excess {
    Connections(u32),
    NewPerSecond(u32),
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connections(most) => write!(
                f,
                "its client has {}, the limit (max_connections_per_client)",
                counted(*most, "connection")
            ),
            Self::NewPerSecond(rate) => write!(
                f,
                "its client opens more than {} per second, the limit (new_connections_per_client)",
                counted(*rate, "connection")
            ),
        }
    }
}

impl ClientLimit {
    /// Counts a connection of `address`; `None` if nothing is limited.
    ///
    /// # Errors
    /// The limit that the client has reached.
    pub(crate) fn acquire(
        self: &Arc<Self>,
        limits: &ClientLimits,
        address: IpAddr,
        now: Instant,
    ) -> Result<Option<ClientPermit>, Excess> {
        self.count(limits, address, now, limits.max_connections)
    }

    /// The same, also beyond the limit on connections: for somebody who ends another one of the client for it.
    ///
    /// # Errors
    /// If the client opens connections too fast.
    pub(crate) fn acquire_beyond_limit(
        self: &Arc<Self>,
        limits: &ClientLimits,
        address: IpAddr,
        now: Instant,
    ) -> Result<Option<ClientPermit>, Excess> {
        self.count(limits, address, now, None)
    }

    /// Whether a client has more connections than it may.
    pub(crate) fn is_exceeded(&self, limits: &ClientLimits, client: &Prefix) -> bool {
        let clients = self.lock();
        let open = clients.by_prefix.get(client).map_or(0, |it| it.open);
        limits.max_connections.is_some_and(|most| open > most)
    }

    fn count(
        self: &Arc<Self>,
        limits: &ClientLimits,
        address: IpAddr,
        now: Instant,
        most: Option<u32>,
    ) -> Result<Option<ClientPermit>, Excess> {
        if limits.max_connections.is_none() && limits.new_per_second.is_none() {
            return Ok(None);
        }
        let bits = match address.to_canonical() {
            IpAddr::V4(_) => limits.ipv4_bits,
            IpAddr::V6(_) => limits.ipv6_bits,
        };
        let prefix = Prefix::of(address, bits);
        let mut clients = self.lock();
        clients.sweep(now);
        let client = clients.by_prefix.entry(prefix).or_insert(Client {
            open: 0,
            rested_at: now,
        });
        if let Some(most) = most
            && client.open >= most
        {
            return Err(Excess::Connections(most));
        }
        if let Some(rate) = limits.new_per_second {
            let share = BURST / rate.max(1);
            let rested_at = client.rested_at.max(now) + share;
            if rested_at > now + BURST {
                return Err(Excess::NewPerSecond(rate));
            }
            client.rested_at = rested_at;
        }
        client.open += 1;
        Ok(Some(ClientPermit {
            limit: Arc::clone(self),
            client: prefix,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Clients> {
        // Every change is complete before anything can panic.
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clients {
    /// Forgets clients that have nothing open and have rested. The next sweep comes when there are twice
    /// as many entries as this one has left, so each new client pays for a bounded part of it.
    fn sweep(&mut self, now: Instant) {
        if self.by_prefix.len() < self.sweep_at.max(FEW_CLIENTS) {
            return;
        }
        self.by_prefix
            .retain(|_, client| client.open > 0 || client.rested_at > now);
        self.sweep_at = 2 * self.by_prefix.len();
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut clients = self.limit.lock();
        if let Some(client) = clients.by_prefix.get_mut(&self.client) {
            client.open -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const LIMITS: ClientLimits = ClientLimits {
        max_connections: Some(2),
        new_per_second: None,
        ipv4_bits: 24,
        ipv6_bits: 64,
    };

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn a_prefix_has_its_connections_and_gets_them_back() {
        let limit = Arc::new(ClientLimit::default());
        let now = Instant::now();
        let acquire = |text| limit.acquire(&LIMITS, address(text), now);
        let first = acquire("192.0.2.1").expect("a permit");
        let _second = acquire("::ffff:192.0.2.200").expect("a permit");
        assert_eq!(acquire("192.0.2.3").err(), Some(Excess::Connections(2)));
        let _other = acquire("192.0.3.1").expect("another prefix");
        drop(first);
        acquire("192.0.2.3").expect("one has ended");
    }

    #[test]
    fn a_client_opens_a_burst_and_then_at_its_rate() {
        let limits = ClientLimits {
            max_connections: None,
            new_per_second: Some(4),
            ..LIMITS
        };
        let limit = Arc::new(ClientLimit::default());
        let start = Instant::now();
        let opened = |after_ms: u64| {
            let now = start + Duration::from_millis(after_ms);
            limit.acquire(&limits, address("::1"), now).is_ok()
        };
        assert_eq!(
            [0, 0, 0, 0, 0].map(&opened),
            [true, true, true, true, false]
        );
        assert_eq!(
            [249, 250, 260, 500].map(&opened),
            [false, true, false, true]
        );
        // After a rest the burst is whole again.
        assert_eq!([3000; 5].map(&opened), [true, true, true, true, false]);
    }

    #[test]
    fn clients_that_are_gone_are_forgotten() {
        let limit = Arc::new(ClientLimit::default());
        let now = Instant::now();
        for number in 0..4 * FEW_CLIENTS as u32 {
            let address = Ipv4Addr::from(number << 8);
            drop(limit.acquire(&LIMITS, address.into(), now));
        }
        assert!(limit.lock().by_prefix.len() <= FEW_CLIENTS);
    }
}
