//! What a process is to do, whether it was asked on the command line or by a configuration.
//!
//! A plan is checked: names of backends exist, addresses parse, times are within their bounds. Nothing
//! has been resolved, bound or opened.

mod datagrams;
mod terms;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use splice::{Address, EngineChoice, SocketName};
use splice_route::{Conditions, DestinationRule, Prefix};

pub(crate) use self::datagrams::{DatagramListenerPlan, datagram_address};
pub(crate) use self::terms::DatagramTerms;
use crate::access_log_args::AccessLogArgs;
use crate::control_args::ControlArgs;
use crate::file_access::FileAccess;
use crate::peer_timeouts::PeerTimeouts;

/// The default time to connect to a server, for all its addresses together, and all servers tried.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The default time for connections to end, before a process or what was removed cuts them.
pub(crate) const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// The default time from accept to a route. Clients of caddy-l4 have as long.
pub(crate) const DECIDE_WITHIN: Duration = Duration::from_secs(3);

/// The default for the longest first message, in bytes: rustls takes handshakes of that size.
pub(crate) const FIRST_BYTES_LIMIT: usize = 64 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// `None`: one per CPU.
    pub(crate) threads: Option<u16>,
    /// How long connections may go on after a signal to stop.
    pub(crate) drain_timeout: Duration,
    pub(crate) control: ControlArgs,
    pub(crate) listeners: Vec<Arc<ListenerPlan>>,
    pub(crate) datagram_listeners: Vec<Arc<DatagramListenerPlan>>,
    pub(crate) backends: Vec<Arc<BackendPlan>>,
    pub(crate) bypasses: Vec<splice::bypass::Options>,
}

/// A `[[listener]]`. Its name is unique, and its address, too.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ListenerPlan {
    pub(crate) name: String,
    pub(crate) address: Address,
    /// Nothing unless it has a socket file.
    pub(crate) file_access: FileAccess,
    pub(crate) engine: EngineChoice,
    pub(crate) bypass_firewall: bool,
    /// Translate new connections from their SYN on, where that can be.
    pub(crate) from_syn: bool,
    /// From accept to a route.
    pub(crate) decide_within: Duration,
    /// The longest first message of a client.
    pub(crate) first_bytes_limit: usize,
    pub(crate) idle_timeout: Option<Duration>,
    /// How long nothing may move once one stream has ended.
    pub(crate) half_close_timeout: Option<Duration>,
    /// Of the sockets to clients and to servers.
    pub(crate) peer_timeouts: PeerTimeouts,
    /// How long a pair has lived when `auto` tries to splice it; `None`: the library's default.
    pub(crate) splice_after: Option<Duration>,
    /// To a destination that a client asks for. A backend has its own.
    pub(crate) connect_timeout: Duration,
    pub(crate) max_connections: Option<u32>,
    pub(crate) per_client: ClientLimits,
    /// How long loops and sockets poll the device before they sleep (`spliced echo --busy-poll`).
    pub(crate) busy_poll: Option<Duration>,
    /// Bytes per second, for each direction of a connection.
    pub(crate) rate: Option<u64>,
    pub(crate) access_log: AccessLogArgs,
    /// Clients send a PROXY header, of which only those in these prefixes are believed; others are reset.
    /// `None`: they send none.
    pub(crate) require_proxy_from: Option<Vec<Prefix>>,
    pub(crate) on_remove: OnRemove,
    pub(crate) routes: Vec<RoutePlan>,
}

/// Limits for the clients of one prefix. Beyond them a client is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientLimits {
    pub(crate) max_connections: Option<u32>,
    pub(crate) new_per_second: Option<u32>,
    /// How many bits of an address make one client.
    pub(crate) ipv4_bits: u8,
    pub(crate) ipv6_bits: u8,
}

impl ClientLimits {
    /// No limits. A customer of a provider has one IPv4 address or an IPv6 network of 64 bits
    /// (RFC 6177).
    pub(crate) const NONE: Self = Self {
        max_connections: None,
        new_per_second: None,
        ipv4_bits: 32,
        ipv6_bits: 64,
    };
}

/// What happens to the connections of a listener or a server that a reload has removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnRemove {
    /// They go on for at most this time, and are reset then.
    Drain(Duration),
    /// They are reset at once.
    Reset,
}

/// A `[[listener.route]]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RoutePlan {
    pub(crate) conditions: Conditions,
    pub(crate) action: Action,
}

impl RoutePlan {
    /// A route that takes every client.
    pub(crate) fn of_all(action: Action) -> Self {
        Self {
            conditions: Conditions::default(),
            action,
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Action {
    /// To a server of this backend, or of the fallback if it has none left.
    Backend {
        name: String,
        fallback: Option<String>,
    },
    /// To the address that the client asks for by SOCKS or CONNECT, if a rule allows it.
    Requested(Vec<DestinationRule>),
    /// Back to the client (`spliced echo`).
    Echo,
    Reset,
}

/// The most servers of all backends, and of one with those that orders have added: so each has a slot in the table of
/// consistent hashing, which has 16381.
pub(crate) const MOST_SERVERS: usize = 10_000;

/// A `[backend.NAME]`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendPlan {
    pub(crate) name: String,
    pub(crate) balance: Balance,
    pub(crate) servers: Vec<ServerPlan>,
    pub(crate) health: Option<HealthPlan>,
    pub(crate) connect_timeout: Duration,
    pub(crate) send_proxy: Option<ProxyVersion>,
    pub(crate) source: Source,
    /// `SO_MARK`.
    pub(crate) mark: Option<u32>,
    /// `SO_BINDTODEVICE`.
    pub(crate) interface: Option<String>,
    /// Connections per server; further ones queue.
    pub(crate) max_connections_per_server: Option<u32>,
    pub(crate) queue: QueuePlan,
    /// A server that has come back gets its full share only after this time.
    pub(crate) slow_start: Option<Duration>,
    pub(crate) on_remove: OnRemove,
    /// The connections of a server whose checks fail are reset.
    pub(crate) resets_on_down: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerPlan {
    pub(crate) address: ServerAddress,
    /// Up to [`WEIGHT_MOST`](crate::weight::WEIGHT_MOST); with 0 it gets no new clients.
    pub(crate) weight: u16,
    /// Used only if no other server is left.
    pub(crate) backup: bool,
    /// It gets no new clients until an operator wants it to, or the configuration changes.
    pub(crate) disabled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ServerAddress {
    /// Of streams or messages.
    Address(Address),
    /// A UDP or UNIX datagram socket.
    Datagrams(SocketName),
    /// `srv:_imap._tcp.example.org`: the servers that these DNS records name.
    Srv(String),
}

/// Of a VSOCK server without a context identifier.
pub(crate) const NO_MACHINE: &str =
    "it names no machine to connect to; write its context identifier, such as 2 for the host";

/// What sockets pass on. Only two of a kind can be joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Traffic {
    Streams,
    /// Each arrives whole, on a connection (`SOCK_SEQPACKET`).
    Messages,
    Datagrams,
}

impl Traffic {
    pub(crate) fn of(address: &Address) -> Self {
        match address.keeps_messages() {
            true => Self::Messages,
            false => Self::Streams,
        }
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Streams => "streams",
            Self::Messages => "messages",
            Self::Datagrams => "datagrams",
        }
    }
}

impl ServerAddress {
    pub(crate) fn traffic(&self) -> Traffic {
        match self {
            Self::Address(address) => Traffic::of(address),
            Self::Datagrams(_) => Traffic::Datagrams,
            Self::Srv(_) => Traffic::Streams,
        }
    }

    /// Its address, unless DNS records name the servers.
    pub(crate) fn fixed(&self) -> Option<&Address> {
        match self {
            Self::Address(address) => Some(address),
            Self::Datagrams(name) => datagram_address(name),
            Self::Srv(_) => None,
        }
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Datagrams(name) => name.fmt(f),
            Self::Srv(name) => write!(f, "srv:{name}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Balance {
    RoundRobin,
    LeastConnections,
    /// The same key goes to the same server (Maglev).
    Consistent(HashKey),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HashKey {
    Client,
    /// The SNI; the client's address if there is none.
    ServerName,
}

/// Active checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HealthPlan {
    pub(crate) check: Check,
    pub(crate) every: Duration,
    /// For one check, at most `every`.
    pub(crate) timeout: Duration,
    /// So many checks in a row have to pass before a server is used again.
    pub(crate) rise: u16,
    /// So many checks in a row have to fail before a server is no longer used.
    pub(crate) fall: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Check {
    /// A connection can be made.
    Tcp,
    /// What the server says after `send` contains `expect`.
    Exchange { send: Vec<u8>, expect: Vec<u8> },
    /// The datagram that answers `send` contains `expect`; without `expect`, nothing refuses `send`.
    Datagram {
        send: Vec<u8>,
        expect: Option<Vec<u8>>,
    },
    /// The server answers a TLS hello that asks for this name.
    Tls { server_name: Option<String> },
    /// `GET path` is answered with this status, or one from 200 to 399.
    Http {
        path: String,
        host: Option<String>,
        status: Option<u16>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ProxyVersion {
    V1,
    V2,
}

/// The address that servers see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// This host's, as routing picks it.
    Host,
    /// The client's (`IP_TRANSPARENT`).
    Client,
    /// These in turn.
    Addresses(Vec<IpAddr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueuePlan {
    pub(crate) most: u32,
    pub(crate) wait: Duration,
}

impl Plan {
    /// The most connections, if each listener has a limit, and the most sessions of datagrams.
    pub(crate) fn most_clients(&self) -> (Option<u32>, u64) {
        let listeners = self.listeners.iter();
        let mut of_streams = listeners.map(|listener| listener.max_connections);
        let connections = of_streams.try_fold(0u32, |sum, most| Some(sum.saturating_add(most?)));
        let of_datagrams = self.datagram_listeners.iter();
        let of_datagrams = of_datagrams.map(|listener| listener.terms.max_sessions as u64);
        (connections, of_datagrams.sum())
    }
}

impl ListenerPlan {
    /// A listener that takes every client, with every default.
    pub(crate) fn of_one(address: Address, action: Action) -> Self {
        Self {
            name: address.to_string(),
            address,
            file_access: FileAccess::default(),
            engine: EngineChoice::Auto,
            bypass_firewall: false,
            from_syn: false,
            decide_within: DECIDE_WITHIN,
            connect_timeout: CONNECT_TIMEOUT,
            first_bytes_limit: FIRST_BYTES_LIMIT,
            idle_timeout: None,
            half_close_timeout: None,
            peer_timeouts: PeerTimeouts::default(),
            splice_after: None,
            max_connections: None,
            per_client: ClientLimits::NONE,
            busy_poll: None,
            rate: None,
            access_log: AccessLogArgs::default(),
            require_proxy_from: None,
            on_remove: OnRemove::Drain(DRAIN_TIMEOUT),
            routes: vec![RoutePlan::of_all(action)],
        }
    }
}

/// The address of a server, and its family, if none of `sources` can be the source of connections to it.
pub(crate) fn lacks_source(sources: &[IpAddr], server: &Address) -> Option<(IpAddr, &'static str)> {
    let Address::Inet { host, .. } = server else {
        return None;
    };
    let ip: IpAddr = host.parse().ok()?;
    let suits = |source: &IpAddr| source.is_ipv4() == ip.is_ipv4();
    let family = if ip.is_ipv4() { "IPv4" } else { "IPv6" };
    (!sources.iter().any(suits)).then_some((ip, family))
}

impl BackendPlan {
    /// Whether its connections have to stay in the network stack: `segment` neither sets marks nor is
    /// bound to an interface.
    pub(crate) fn excludes_segment(&self) -> bool {
        self.mark.is_some() || self.interface.is_some()
    }

    /// Nothing takes out the only server but its checks. SRV records may name several.
    pub(crate) fn has_one_server(&self) -> bool {
        matches!(&self.servers[..], [only] if only.address.fixed().is_some())
    }

    /// What its servers take, which is the same for all.
    pub(crate) fn traffic(&self) -> Traffic {
        let first = self.servers.first();
        first.map_or(Traffic::Streams, |server| server.address.traffic())
    }

    /// Whether all of its servers are reached by VSOCK.
    pub(crate) fn is_of_vsock(&self) -> bool {
        let is_vsock = |server: &ServerPlan| {
            let address = server.address.fixed();
            address.is_some_and(|address| address.vsock().is_some())
        };
        self.servers.iter().all(is_vsock)
    }

    /// Whether none of its servers is reached by IP. Without servers that is not known.
    pub(crate) fn is_without_ip(&self) -> bool {
        let is_other = |server: &ServerPlan| {
            let address = server.address.fixed();
            address.is_some_and(|address| !matches!(address, Address::Inet { .. }))
        };
        !self.servers.is_empty() && self.servers.iter().all(is_other)
    }

    /// Whether its servers take datagrams.
    pub(crate) fn is_of_datagrams(&self) -> bool {
        self.traffic() == Traffic::Datagrams
    }

    /// A backend of one server, with every default.
    pub(crate) fn of_one(name: &str, address: ServerAddress, connect_timeout: Duration) -> Self {
        Self {
            name: name.into(),
            balance: Balance::RoundRobin,
            servers: vec![ServerPlan {
                address,
                weight: 1,
                backup: false,
                disabled: false,
            }],
            health: None,
            connect_timeout,
            send_proxy: None,
            source: Source::Host,
            mark: None,
            interface: None,
            max_connections_per_server: None,
            queue: QueuePlan {
                most: 1024,
                wait: connect_timeout,
            },
            slow_start: None,
            on_remove: OnRemove::Drain(DRAIN_TIMEOUT),
            resets_on_down: false,
        }
    }
}
