//! What a forward wants, and which way its new connections take.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ended::{ForwardTimes, Forwarded};
use super::network::Path;
use crate::firewall::{Doubt, Pass, PassState};

/// How connections are forwarded.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ForwardOptions {
    /// The addresses that the caller listens on, all of one port.
    pub listen: Vec<SocketAddr>,
    /// Where connections go.
    pub server: SocketAddr,
    /// How long the server may take to answer. Then the client is reset.
    pub connect_timeout: Duration,
    /// How long nothing may move. Then both sides are reset. `None`: for ever.
    pub idle_timeout: Option<Duration>,
    /// How long nothing may move once one stream has ended. Then both sides are reset. `None`: for ever.
    pub half_close_timeout: Option<Duration>,
    /// After so long without a byte, both ends are asked for a sign of life. [`Duration::MAX`]: never.
    pub keep_alive: Duration,
    /// The time between two of these questions. `None`: a 96th of [`keep_alive`](Self::keep_alive).
    pub keep_alive_interval: Option<Duration>,
    /// An end that leaves so many questions in a row unanswered is taken for gone, and both sides are reset.
    pub keep_alive_probes: u32,
    /// An end that acknowledges nothing for so long is taken for gone, and both sides are reset. `None`: as sockets do it
    /// (`tcp_retries2`).
    pub user_timeout: Option<Duration>,
    /// How many connections may wait for an answer. Clients beyond that get to the listening socket, whose SYN cookies
    /// tell them from a flood.
    pub half_open: u32,
    /// Forward connections past the packet filters of this host, whatever those say.
    pub bypass_firewall: bool,
    /// New connections begin with sockets. Those that are forwarded go on.
    pub is_paused: bool,
}

impl ForwardOptions {
    /// To `server` from where the caller listens, with every default.
    pub fn new(listen: Vec<SocketAddr>, server: SocketAddr) -> Self {
        Self {
            listen,
            server,
            connect_timeout: Duration::from_secs(5),
            idle_timeout: None,
            half_close_timeout: None,
            keep_alive: KEEP_ALIVE,
            keep_alive_interval: None,
            keep_alive_probes: KEEP_ALIVE_PROBES,
            user_timeout: None,
            half_open: 256,
            bypass_firewall: false,
            is_paused: false,
        }
    }
}

/// When a socket with SO_KEEPALIVE asks (`TCP_KEEPALIVE_TIME` in net/tcp.h).
const KEEP_ALIVE: Duration = Duration::from_secs(7200);

/// How often it asks (`TCP_KEEPALIVE_PROBES` there).
const KEEP_ALIVE_PROBES: u32 = 9;

/// What happens to forwarded connections.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ForwardEvent {
    /// One has ended.
    Ended(Forwarded),
    /// What has changed since the last event of this kind, which comes every 50 ms for each server while it has
    /// connections.
    Counted {
        /// The server.
        server: SocketAddr,
        /// So many are open or opening now.
        open: usize,
        /// So many have begun since.
        begun: u64,
        /// So many bytes of clients, and of the server, were acknowledged since on connections that are open. What comes
        /// to them until the end of a connection is in [`Forwarded::untold_bytes`].
        moved_bytes: [u64; 2],
        /// How long the server took on some of these connections. Others are in [`Forwarded::untold_times`].
        times: Vec<ForwardTimes>,
    },
}

/// What a caller is told by.
pub(super) type OnEvent = Arc<dyn Fn(ForwardEvent) + Send + Sync>;

/// One [`Forward`](super::Forward).
pub(super) struct Owner {
    pub(super) options: Mutex<Arc<ForwardOptions>>,
    /// Until it is dropped.
    pub(super) on_event: Mutex<Option<OnEvent>>,
    /// How many connections are open or opening, for each server that has some.
    pub(super) live: Mutex<BTreeMap<SocketAddr, usize>>,
    /// Servers whose connections are over.
    pub(super) cut: Mutex<BTreeSet<SocketAddr>>,
    pub(super) is_closed: AtomicBool,
    pub(super) is_dropped: AtomicBool,
    pub(super) way: Mutex<Way>,
}

/// Which way new connections take.
#[derive(Default)]
pub(super) struct Way {
    /// From the SYN on.
    pub(super) open: Option<Open>,
    /// Why not.
    pub(super) obstacle: Option<String>,
    /// The packet filters are doubted.
    pub(super) doubted: Option<Doubt>,
}

pub(super) struct Open {
    pub(super) server: SocketAddr,
    /// The index of its origin.
    pub(super) origin: u32,
    pub(super) path: Path,
    /// One for each device and listening address; none where the filters are bypassed.
    pub(super) passes: Vec<Pass>,
}

impl Owner {
    pub(super) fn way(&self) -> MutexGuard<'_, Way> {
        // Every change of it is complete before anything can panic.
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn options(&self) -> Arc<ForwardOptions> {
        // It is set whole.
        Arc::clone(&self.options.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Tells the caller, unless the forward was dropped.
    pub(super) fn tell(&self, event: ForwardEvent) {
        let on_event = self.on_event().clone();
        if let Some(on_event) = on_event {
            on_event(event);
        }
    }

    pub(super) fn live(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, usize>> {
        // Each change leaves counts of some time.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn on_event(&self) -> MutexGuard<'_, Option<OnEvent>> {
        // It is set whole.
        self.on_event.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Servers whose connections are reset at the next look.
    pub(super) fn cut(&self) -> MutexGuard<'_, BTreeSet<SocketAddr>> {
        // Each change is a single step.
        self.cut.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether its connections to a server are over.
    pub(super) fn is_cut(&self, server: SocketAddr) -> bool {
        self.is_dropped() || self.cut().contains(&server)
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.is_dropped.load(Relaxed)
    }

    /// The filters have changed since it was let past them.
    pub(super) fn is_in_doubt(&self) -> bool {
        let way = self.way();
        let mut passes = way.open.iter().flat_map(|open| &open.passes);
        way.doubted.is_some() || passes.any(|pass| pass.state() != PassState::Admitted)
    }
}
