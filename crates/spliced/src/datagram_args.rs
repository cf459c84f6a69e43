//! The options of a relay of datagrams.

use clap::Args;

use crate::ip_header::{DontFragment, TimeToLive};

/// Options that only a relay of datagrams has. Each is `None` if it was not given.
#[derive(Args, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DatagramArgs {
    /// Maximum number of sessions of a relay of datagrams; a new client displaces one of those that are
    /// cheapest to lose, the one that has been idle longest [default: 16384].
    ///
    /// Sessions whose client has sent again after an answer are displaced last. So datagrams with forged
    /// source addresses displace one another.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_sessions: Option<u32>,

    /// Maximum number of sessions of one client, which is an IPv4 address or an IPv6 network of 64 bits; a new
    /// session displaces the one of the same client that has been idle longest [default: no limit].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) max_sessions_per_client: Option<u32>,

    /// Number of datagrams that the target answers to each datagram of a client, such as 1 for DNS and 0 for
    /// syslog: a session that has them ends after two seconds without a further datagram [default: unknown].
    #[arg(long, value_name = "N")]
    pub(crate) replies: Option<u32>,

    /// Time to live of datagrams that are sent on, as the hop limit over IPv6: a number; host, which is what this
    /// host gives its own datagrams; or keep, which is what the datagram came with less one [default: host].
    #[arg(long, value_name = "N|host|keep")]
    pub(crate) ttl: Option<TimeToLive>,

    /// Whether datagrams are sent on with the don't-fragment bit: auto (with it while they fit the path that this host
    /// knows, else in fragments), yes (what does not fit is dropped) or no (routers may split them, over IPv4)
    /// [default: auto].
    ///
    /// A client whose datagram was too big for the path to the target is told by ICMP how long its packets may be,
    /// which needs CAP_NET_RAW.
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) dont_fragment: Option<DontFragment>,
}

impl DatagramArgs {
    /// The first of these options that only UDP has and that was given.
    pub(crate) fn of_udp(&self) -> Option<&'static str> {
        match (self.ttl, self.dont_fragment) {
            (Some(_), _) => Some("--ttl is for UDP, and both sockets are UNIX; leave it out"),
            (_, Some(_)) => {
                Some("--dont-fragment is for UDP, and both sockets are UNIX; leave it out")
            }
            (None, None) => None,
        }
    }

    /// The first of these options that was given, and what a relay of streams has in its place.
    pub(crate) fn given(&self) -> Option<&'static str> {
        let all = [
            (
                self.max_sessions.is_some(),
                "--max-sessions is for datagrams; limit connections with --max-connections",
            ),
            (
                self.max_sessions_per_client.is_some(),
                "--max-sessions-per-client is for datagrams; leave it out",
            ),
            (
                self.replies.is_some(),
                "--replies is for datagrams; leave it out",
            ),
            (self.ttl.is_some(), "--ttl is for datagrams; leave it out"),
            (
                self.dont_fragment.is_some(),
                "--dont-fragment is for datagrams; leave it out",
            ),
        ];
        all.iter()
            .find_map(|(is_given, sentence)| is_given.then_some(*sentence))
    }
}
