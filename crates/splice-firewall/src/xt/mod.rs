//! Matches and targets of iptables, in legacy tables and within nftables (`nft_compat`).
//!
//! Both use the structures of `linux/netfilter/xt_*.h`, `linux/netfilter_ipv4/` and
//! `linux/netfilter_ipv6/`. Their meaning follows the match functions of Linux 6.18
//! (`net/netfilter/xt_*.c`).

mod addresses;
mod conntrack;
mod header;
mod info;
mod ports;
mod target;

use crate::known::Answer;
use crate::segment::{DeviceAt, Family, Segment};
use addresses::{AddressTypes, Ranges};
use conntrack::Conntrack;
pub(crate) use header::Header;
pub(crate) use info::Info;
use ports::{Multiport, Tcp};
pub(crate) use target::target;

#[cfg(test)]
mod tests;

/// `-m NAME`, decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// The same answer for every segment of an established TCP connection.
    Fixed(bool),
    Conntrack(Conntrack),
    Tcp(Tcp),
    Multiport(Multiport),
    Ranges(Ranges),
    AddressTypes(AddressTypes),
    /// The answer for a packet without a mark.
    Mark(bool),
    /// Whether the route to the source uses the device that received the segment.
    ReversePath {
        inverted: bool,
    },
    /// It may match, and has no side effect.
    Opaque(String),
    /// It has a side effect, in the words of [`Action::Effect`](crate::action::Action::Effect).
    Stateful {
        name: String,
        effect: &'static str,
    },
    /// It may have side effects.
    Foreign(String),
}

impl Match {
    /// Decodes a match (`struct xt_entry_match`) from its name, revision and data.
    pub(crate) fn decode(family: Family, name: &str, revision: u8, info: &[u8]) -> Self {
        let opaque = || Self::Opaque(name.into());
        let info = Info(info);
        match (name, revision) {
            ("conntrack", 1..=3) => Conntrack::decode(revision, info).map(Self::Conntrack),
            ("state", 0) => Conntrack::decode_state(info).map(Self::Conntrack),
            ("tcp", 0) => Tcp::decode(info).map(Self::Tcp),
            ("multiport", 1) => Multiport::decode(info).map(Self::Multiport),
            ("iprange", 1) => Ranges::decode(info).map(Self::Ranges),
            ("addrtype", 0) => AddressTypes::decode_0(info).map(Self::AddressTypes),
            ("addrtype", 1) => AddressTypes::decode_1(info).map(Self::AddressTypes),
            ("rpfilter", 0) => info.u8(0).map(|flags| Self::ReversePath {
                inverted: flags & rpfilter::INVERT != 0,
            }),
            ("mark", 1) => unmarked(info).map(Self::Mark),
            ("policy", 0) => without_ipsec(info).map(Self::Fixed),
            // Only a SYN has the option. xt_tcpmss does not match a packet without it.
            ("tcpmss", 0) => info.u8(4).map(|inverted| Self::Fixed(inverted != 0)),
            ("ipv6header", 0) => without_extension_headers(info).map(Self::Fixed),
            ("comment", _) => Some(Self::Fixed(true)),
            // Matches of other protocols.
            (
                "udp" | "udplite" | "icmp" | "icmp6" | "sctp" | "dccp" | "esp" | "ah" | "ipcomp"
                | "mh",
                _,
            ) => Some(Self::Fixed(false)),
            // They do not match without the extension header, and invert only fields of it.
            ("rt" | "frag" | "hbh" | "dst" | "srh", _) if family == Family::Ipv6 => {
                Some(Self::Fixed(false))
            }
            _ => Some(match effect(name, revision, info) {
                Some(effect) => Self::Stateful {
                    name: name.into(),
                    effect,
                },
                None if is_bpf_object(name, revision, info) => Self::Foreign(name.into()),
                None if ONLY_MATCH.contains(&name) => opaque(),
                None => Self::Foreign(name.into()),
            }),
        }
        // The data is shorter than the structure: an unknown layout of this revision.
        .unwrap_or_else(|| Self::Foreign(name.into()))
    }

    pub(crate) fn holds(&self, segment: &Segment<'_>) -> Answer {
        match self {
            Self::Fixed(holds) => (*holds).into(),
            Self::Mark(holds) if segment.is_unmarked => (*holds).into(),
            Self::Mark(_) => Answer::Maybe,
            Self::Conntrack(conntrack) => conntrack.holds(segment),
            Self::Tcp(tcp) => tcp.holds(segment),
            Self::Multiport(multiport) => multiport.holds(segment),
            Self::Ranges(ranges) => ranges.holds(segment),
            Self::AddressTypes(types) => types.holds(segment),
            // An engine takes a connection only if its route uses the device that receives its segments.
            Self::ReversePath { inverted } => match segment.in_device() {
                DeviceAt::Known(_) => Answer::Yes.invert_if(*inverted),
                DeviceAt::None | DeviceAt::Unknown => Answer::Maybe,
            },
            Self::Opaque(_) | Self::Stateful { .. } | Self::Foreign(_) => Answer::Maybe,
        }
    }
}

mod rpfilter {
    /// `XT_RPFILTER_INVERT`.
    pub(super) const INVERT: u8 = 1 << 3;
}

/// Matches of the kernel (Linux 6.18) without side effects, whose answer is unknown.
const ONLY_MATCH: [&str; 40] = [
    "addrtype",
    "bpf",
    "cgroup",
    "cluster",
    "connbytes",
    "connlabel",
    "connmark",
    "conntrack",
    "cpu",
    "devgroup",
    "dscp",
    "ecn",
    "eui64",
    "helper",
    "hl",
    "iprange",
    "ipv6header",
    "ipvs",
    "l2tp",
    "length",
    "mac",
    "mark",
    "multiport",
    "owner",
    "physdev",
    "pkttype",
    "policy",
    "rateest",
    "realm",
    "recent",
    "rpfilter",
    "set",
    "socket",
    "state",
    "string",
    "tcp",
    "time",
    "tos",
    "ttl",
    "u32",
];

/// The side effect of a match.
fn effect(name: &str, revision: u8, info: Info<'_>) -> Option<&'static str> {
    match name {
        "limit" | "hashlimit" => Some("counts against a limit"),
        "quota" => Some("counts against a quota"),
        "connlimit" => Some("counts connections"),
        "nfacct" | "statistic" => Some("counts packets"),
        // `check_set` of struct xt_recent_mtinfo; XT_RECENT_CHECK alone only reads.
        "recent" if info.u8(8) != Some(1 << 0) => Some("changes a list of recent addresses"),
        // `options` of struct xt_connlabel_mtinfo: XT_CONNLABEL_OP_SET.
        "connlabel" if info.u16(2).is_none_or(|options| options & (1 << 1) != 0) => {
            Some("sets a label")
        }
        // `flags` of struct xt_socket_mtinfo3: XT_SOCKET_RESTORESKMARK.
        "socket" if info.u8(0).is_some_and(|flags| flags & (1 << 2) != 0) => Some("sets a mark"),
        "set" if asks_counters(revision, info) => Some("counts against a limit"),
        _ => None,
    }
}

/// Whether a match of an ipset depends on the counters of its elements (`struct
/// xt_set_info_match_v3` and `_v4`: `packets.op` and `bytes.op` are not `IPSET_COUNTER_NONE`). Counting
/// alone is no side effect, like a rule's own counters.
fn asks_counters(revision: u8, info: Info<'_>) -> bool {
    let operations = match revision {
        0..=2 => return false,
        3 => [8, 24],
        _ => [16, 32],
    };
    operations.iter().any(|at| info.u8(*at) != Some(0))
}

/// Whether a BPF match is an eBPF program, which may have side effects (`mode` of `struct xt_bpf_info_v1` is
/// not `XT_BPF_MODE_BYTECODE`); classic BPF has none.
fn is_bpf_object(name: &str, revision: u8, info: Info<'_>) -> bool {
    name == "bpf" && revision > 0 && info.u16(0) != Some(0)
}

/// The answer of `struct xt_mark_mtinfo1` for a packet whose mark is 0. Spliced packets have no mark: a
/// connection with a marked socket, or with a rule that sets marks, is refused.
fn unmarked(info: Info<'_>) -> Option<bool> {
    let (mark, inverted) = (info.u32(0)?, info.u8(8)? != 0);
    Some((mark == 0) != inverted)
}

/// The answer of `struct xt_policy_info` for a packet without IPsec. The engine refuses connections with
/// IPsec.
fn without_ipsec(info: Info<'_>) -> Option<bool> {
    /// `XT_POLICY_MATCH_NONE`.
    const NONE: u16 = 0x4;
    Some(info.u16(304)? & NONE != 0)
}

/// The answer of `struct ip6t_ipv6header_info` for a packet with the header of TCP only (`MASK_PROTO`).
fn without_extension_headers(info: Info<'_>) -> Option<bool> {
    const THERE: u8 = 1;
    let (wanted, inverted, soft) = (info.u8(0)?, info.u8(1)?, info.u8(2)? != 0);
    Some(if soft {
        (THERE ^ wanted ^ inverted) & wanted == 0
    } else {
        (THERE == wanted) != (inverted != 0)
    })
}
