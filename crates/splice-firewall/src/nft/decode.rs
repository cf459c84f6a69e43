//! Decodes expressions from netlink.

use std::sync::Arc;

use crate::action::{Action, SETS_A_MARK};
use crate::expression::{Comparison, Data, Expression, META_MARK, Register, Set, Source, Target};
use crate::known::MOST_BYTES;
use crate::netlink::Attributes;
use crate::rule::Step;
use crate::segment::Family;
use crate::xt::{self, Match};

/// The context of an expression: its table.
pub(crate) struct TableContext<'a> {
    /// `NFPROTO_*`.
    pub(crate) family: u8,
    pub(crate) chain_by_name: &'a dyn Fn(&str) -> Option<usize>,
    pub(crate) set_by_name: &'a dyn Fn(&str) -> Option<Arc<Set>>,
}

/// `NFPROTO_IPV6`.
pub(super) const IPV6: u8 = 10;

/// Numbers of attributes in `linux/netfilter/nf_tables.h`.
mod attribute {
    pub(super) const EXPR_NAME: u16 = 1;
    pub(super) const EXPR_DATA: u16 = 2;
    pub(super) const DATA_VALUE: u16 = 1;
    pub(super) const DATA_VERDICT: u16 = 2;
    pub(super) const VERDICT_CODE: u16 = 1;
    pub(super) const VERDICT_CHAIN: u16 = 2;
}
use attribute::{DATA_VALUE, DATA_VERDICT, EXPR_DATA, EXPR_NAME, VERDICT_CHAIN, VERDICT_CODE};

/// `NF_DROP`, `NF_ACCEPT`, `NF_QUEUE` and `NFT_*` of `enum nft_verdicts`.
mod verdict {
    pub(super) const DROP: i32 = 0;
    pub(super) const ACCEPT: i32 = 1;
    pub(super) const QUEUE: i32 = 3;
    pub(super) const CONTINUE: i32 = -1;
    pub(super) const BREAK: i32 = -2;
    pub(super) const JUMP: i32 = -3;
    pub(super) const GOTO: i32 = -4;
    pub(super) const RETURN: i32 = -5;
    /// The other bits are a queue number or an error (`NF_VERDICT_MASK`).
    pub(super) const MASK: i32 = 0xff;
}

/// `NFT_REG_VERDICT`.
const VERDICT_REGISTER: u32 = 0;

/// The steps of one expression (`NFTA_LIST_ELEM`).
pub(crate) fn decode(expression: Attributes<'_>, at: &TableContext<'_>) -> Vec<Step> {
    let name = expression.text(EXPR_NAME).unwrap_or_default();
    let empty = Attributes::of(&[]);
    let data = expression.nested(EXPR_DATA).unwrap_or(empty);
    decode_named(&name, data, at).unwrap_or_else(|| vec![opaque(&name)])
}

/// The set that an expression adds elements to or deletes them from.
pub(super) fn fed_set(expression: Attributes<'_>) -> Option<String> {
    let is_dynset = expression
        .text(EXPR_NAME)
        .is_some_and(|name| name == "dynset");
    let data = expression.nested(EXPR_DATA).filter(|_| is_dynset)?;
    data.text(1)
}

fn opaque(name: &str) -> Step {
    Step::Act(Action::Opaque(format!(
        "is of a kind that is not understood here ({name})"
    )))
}

fn effect(what: &str) -> Vec<Step> {
    vec![Step::Act(Action::Effect(what.into()))]
}

fn limit(what: &str) -> Vec<Step> {
    vec![Step::Act(Action::Limit(what.into()))]
}

fn stop(what: &str) -> Vec<Step> {
    vec![Step::Act(Action::Stop(what.into()))]
}

fn decode_named(name: &str, data: Attributes<'_>, at: &TableContext<'_>) -> Option<Vec<Step>> {
    Some(match name {
        "immediate" => immediate(data, at)?,
        "cmp" => compare(data)?,
        "range" => range(data)?,
        "bitwise" => bitwise(data)?,
        "byteorder" => byteorder(data)?,
        "lookup" => lookup(data, at)?,
        "payload" => payload(data)?,
        "meta" => meta(data)?,
        "ct" => ct(data)?,
        "fib" => load(
            data.u32(1)?,
            Source::Fib {
                result: data.u32(2)?,
                flags: data.u32(3).unwrap_or(0),
            },
        )?,
        "rt" => match data.u32(2)? {
            RT_XFRM => load(data.u32(1)?, Source::Zero { length: 1 })?,
            _ => load(data.u32(1)?, Source::Other)?,
        },
        "exthdr" => extension_header(data)?,
        "socket" => load(data.u32(2)?, Source::Other)?,
        "numgen" | "hash" | "osf" => vec![Step::Act(Action::Opaque(format!(
            "chooses by what is not known here ({name})"
        )))],
        // They only count packets.
        "counter" | "last" => Vec::new(),
        "objref" => limit("counts in, or is limited by, a named object"),
        "limit" => limit("limits a rate"),
        "connlimit" => limit("limits a number of connections"),
        "quota" => limit("counts against a quota"),
        "log" => effect("logs"),
        "dynset" => limit("changes a set"),
        "notrack" => effect("keeps connection tracking out"),
        "dup" => effect("sends a copy elsewhere"),
        "reject" => stop("rejects"),
        "queue" => stop("queues to user space"),
        "fwd" => stop("forwards to another device"),
        "tproxy" => stop("diverts to another socket"),
        "synproxy" => stop("answers in place of the server"),
        "match" | "target" => compatible(name, data, at)?,
        _ => return None,
    })
}

fn register(number: u32) -> Option<Register> {
    match number {
        // NFT_REG_1 to NFT_REG_4 have 16 bytes, NFT_REG32_00 and on 4.
        1..=4 => Some((number as u8 - 1) * 16),
        8..=23 => Some((number as u8 - 8) * 4),
        _ => None,
    }
}

fn load(to: u32, what: Source) -> Option<Vec<Step>> {
    Some(vec![Step::Nft(Expression::Load {
        to: register(to)?,
        what,
    })])
}

/// The value or verdict within an attribute (`NFTA_DATA_*`).
pub(super) fn data(nested: Attributes<'_>, at: &TableContext<'_>) -> Option<Data> {
    if let Some(value) = nested.bytes(DATA_VALUE) {
        return Some(Data::Value(value.into()));
    }
    let verdict = nested.nested(DATA_VERDICT)?;
    let code = verdict.u32(VERDICT_CODE)? as i32;
    let chain = || {
        let name = verdict.text(VERDICT_CHAIN)?;
        (at.chain_by_name)(&name)
    };
    Some(Data::Verdict(match code {
        verdict::JUMP => Action::Jump(chain()?),
        verdict::GOTO => Action::Goto(chain()?),
        verdict::RETURN => Action::Return,
        verdict::CONTINUE => Action::Continue,
        verdict::BREAK => Action::Next,
        code => match code & verdict::MASK {
            verdict::DROP => Action::Stop("drops".into()),
            verdict::ACCEPT => Action::Accept,
            verdict::QUEUE => Action::Stop("queues to user space".into()),
            _ => Action::Opaque(format!(
                "has a verdict that is not understood here ({code})"
            )),
        },
    }))
}

fn value(attributes: Attributes<'_>, kind: u16) -> Option<Box<[u8]>> {
    Some(attributes.nested(kind)?.bytes(DATA_VALUE)?.into())
}

fn immediate(attributes: Attributes<'_>, at: &TableContext<'_>) -> Option<Vec<Step>> {
    let to = attributes.u32(1)?;
    Some(vec![match data(attributes.nested(2)?, at)? {
        Data::Verdict(action) => Step::Act(action),
        Data::Value(value) => Step::Nft(Expression::Immediate {
            to: register(to)?,
            value: value.into(),
        }),
    }])
}

fn compare(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let how = match attributes.u32(2)? {
        0 => Comparison::Equal,
        1 => Comparison::NotEqual,
        2 => Comparison::Less,
        3 => Comparison::LessOrEqual,
        4 => Comparison::Greater,
        5 => Comparison::GreaterOrEqual,
        _ => return None,
    };
    Some(vec![Step::Nft(Expression::Compare {
        from: register(attributes.u32(1)?)?,
        how,
        value: value(attributes, 3)?,
    })])
}

fn range(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    Some(vec![Step::Nft(Expression::Range {
        from: register(attributes.u32(1)?)?,
        inverted: attributes.u32(2)? != 0,
        low: value(attributes, 3)?,
        high: value(attributes, 4)?,
    })])
}

fn bitwise(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let to = attributes.u32(2)?;
    let (from, length) = (register(attributes.u32(1)?)?, attributes.u32(3)? as usize);
    if attributes.u32(6).unwrap_or(0) != 0 || length > MOST_BYTES {
        // A shift, or an operation on two registers: rules that compute marks.
        return load(to, Source::Other);
    }
    Some(vec![Step::Nft(Expression::MaskXor {
        from,
        to: register(to)?,
        and: value(attributes, 4)?,
        xor: value(attributes, 5)?,
    })])
}

fn byteorder(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let (length, size) = (attributes.u32(4)? as u8, attributes.u32(5)? as u8);
    if !matches!(size, 2 | 4 | 8) || usize::from(length) > MOST_BYTES {
        return None;
    }
    Some(vec![Step::Nft(Expression::Swap {
        from: register(attributes.u32(1)?)?,
        to: register(attributes.u32(2)?)?,
        length,
        size,
    })])
}

/// `NFT_LOOKUP_F_INV`.
const INVERTED: u32 = 1;

fn lookup(attributes: Attributes<'_>, at: &TableContext<'_>) -> Option<Vec<Step>> {
    let set = (at.set_by_name)(&attributes.text(1)?)?;
    let to = match attributes.u32(3) {
        None => None,
        Some(VERDICT_REGISTER) => Some(Target::Verdict),
        Some(number) => Some(Target::Register(register(number)?)),
    };
    Some(vec![Step::Nft(Expression::Lookup {
        from: register(attributes.u32(2)?)?,
        to,
        set,
        inverted: attributes.u32(5).unwrap_or(0) & INVERTED != 0,
    })])
}

/// `enum nft_payload_bases`.
const NETWORK_HEADER: u32 = 1;
const TRANSPORT_HEADER: u32 = 2;

fn payload(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let Some(to) = attributes.u32(1) else {
        return Some(effect("changes the packet"));
    };
    // The kernel accepts no larger ones (`nft_payload_init`: u8).
    let [offset, length] = [3, 4].map(|kind| attributes.u32(kind).and_then(|n| n.try_into().ok()));
    let (offset, length) = (offset?, length?);
    let what = match attributes.u32(2)? {
        NETWORK_HEADER => Source::NetworkHeader { offset, length },
        TRANSPORT_HEADER => Source::TransportHeader { offset, length },
        _ => Source::Other,
    };
    load(to, what)
}

fn meta(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let key = attributes.u32(2)?;
    match attributes.u32(1) {
        Some(to) => load(to, Source::Meta(key)),
        None => Some(effect(match key {
            META_MARK => SETS_A_MARK,
            META_NFTRACE => "traces",
            META_PRIORITY => "sets a priority",
            _ => "changes what is kept of the packet",
        })),
    }
}

/// `NFT_META_*`.
const META_PRIORITY: u32 = 2;
const META_NFTRACE: u32 = 12;
/// `NFT_RT_XFRM`.
const RT_XFRM: u32 = 4;

fn ct(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let key = attributes.u32(2)?;
    let has_direction = attributes.bytes(3).is_some();
    match attributes.u32(1) {
        Some(to) => load(to, Source::Ct { key, has_direction }),
        None => Some(effect("sets what connection tracking keeps")),
    }
}

/// `NFT_EXTHDR_F_PRESENT`; `NFT_EXTHDR_OP_IPV6`, `_TCPOPT`, `_IPV4`.
const PRESENT: u32 = 1;
const OF_IPV6: u32 = 0;
const OF_TCP: u32 = 1;
const OF_IPV4: u32 = 2;

fn extension_header(attributes: Attributes<'_>) -> Option<Vec<Step>> {
    let Some(to) = attributes.u32(1) else {
        // `tcp option maxseg size set` is for SYNs, which the rule tests before.
        return Some(effect("changes the packet"));
    };
    let asks_presence = attributes.u32(5).unwrap_or(0) & PRESENT != 0;
    match attributes.u32(6).unwrap_or(OF_IPV6) {
        OF_IPV6 | OF_IPV4 if asks_presence => load(to, Source::Zero { length: 1 }),
        OF_IPV6 | OF_IPV4 => Some(vec![Step::Nft(Expression::Absent)]),
        OF_TCP => load(to, Source::Other),
        _ => Some(vec![Step::Nft(Expression::Absent)]),
    }
}

/// A match or target of iptables (`nft_compat`).
fn compatible(kind: &str, attributes: Attributes<'_>, at: &TableContext<'_>) -> Option<Vec<Step>> {
    let (name, revision) = (attributes.text(1)?, attributes.u32(2).unwrap_or(0) as u8);
    let info = attributes.bytes(3)?;
    let family = if at.family == IPV6 {
        Family::Ipv6
    } else {
        Family::Ipv4
    };
    Some(if kind == "match" {
        Step::of_match(Match::decode(family, &name, revision, info))
    } else {
        vec![Step::Act(xt::target(&name))]
    })
}
