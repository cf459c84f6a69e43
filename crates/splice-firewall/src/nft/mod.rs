//! nftables: reads its rule set over netlink.

mod decode;
mod fuse;

use std::collections::HashMap;
use std::sync::Arc;

use self::decode::{TableContext, data, decode};
use self::fuse::fused;
use crate::action::Action;
use crate::expression::{Data, DumpedElement, Element, Set};
use crate::netlink::{Attributes, DumpError, Socket, string_attribute};
use crate::rule::{Base, Chain, Rule, Step, Table};
use crate::segment::{Connection, Hook};
use crate::verdict::RuleId;

/// `NFT_MSG_*`.
mod message {
    pub(super) const GET_TABLE: u8 = 1;
    pub(super) const GET_CHAIN: u8 = 4;
    pub(super) const GET_RULE: u8 = 7;
    pub(super) const GET_SET: u8 = 10;
    pub(super) const GET_SET_ELEMENTS: u8 = 13;
    pub(super) const GET_GENERATION: u8 = 16;
}

/// How often to read a rule set that changes while it is read.
const TRIES: u32 = 20;

/// Tables by family and name.
type Key = (u8, String);

/// A chain of a dump, before its rules are known.
struct DumpedChain {
    name: String,
    base: Option<Base>,
    entered: Option<Entered>,
}

/// The packets that a chain is called for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Entered {
    /// The first packet of each connection (type `nat`).
    First,
    All,
}

/// All tables that may see IP packets of this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ruleset {
    pub(crate) tables: Vec<Table>,
    /// Rules outside of a connection's walk whose marks its packets may carry.
    pub(crate) marks_elsewhere: Vec<Elsewhere>,
    /// Some chain translates the addresses of new connections.
    pub(crate) translates: bool,
    /// Changes with every change of the rules.
    pub(crate) generation: u32,
}

/// A place where a connection's packets may have passed rules before this host's own hooks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Elsewhere {
    /// On a bridge.
    Bridge,
    /// On devices, such as the port of a bridge or the parent of a VLAN.
    Devices(Base),
}

impl Ruleset {
    /// Whether packets of a connection may carry a mark that no rule of its walk has set.
    pub(crate) fn may_mark(&self, connection: &Connection) -> bool {
        let mut all = self.marks_elsewhere.iter();
        all.any(|elsewhere| match (elsewhere, &connection.device) {
            (Elsewhere::Bridge, _) => true,
            (Elsewhere::Devices(base), Some(device)) => !base.is_on(&device.name),
            (Elsewhere::Devices(_), None) => false,
        })
    }
}

/// Reads the rule set of a socket's network namespace.
pub(crate) fn read(socket: &mut Socket) -> Result<Ruleset, DumpError> {
    for _ in 1..TRIES {
        let before = generation(socket)?;
        match ruleset(socket) {
            Ok(mut ruleset) if generation(socket)? == before => {
                ruleset.generation = before;
                return Ok(ruleset);
            }
            Ok(_) | Err(DumpError::Changed) => {}
            // An object of the dump may be gone a moment later.
            Err(_) if generation(socket)? != before => {}
            Err(error) => return Err(error),
        }
    }
    Err(DumpError::Changed)
}

/// The generation of the rule set, which changes with every change of the rules.
pub(crate) fn generation(socket: &mut Socket) -> Result<u32, DumpError> {
    let mut found = 0;
    socket.get(message::GET_GENERATION, |message| {
        found = message.attributes.u32(1).unwrap_or(0);
    })?;
    Ok(found)
}

fn ruleset(socket: &mut Socket) -> Result<Ruleset, DumpError> {
    let active = active_tables(socket)?;
    let mut chains: HashMap<Key, Vec<DumpedChain>> = HashMap::new();
    socket.dump(message::GET_CHAIN, 0, &[], |message| {
        let attributes = message.attributes;
        if let (Some(table), Some(name)) = (attributes.text(1), attributes.text(3)) {
            let base = base(message.family, attributes);
            let of_table = chains.entry((message.family, table)).or_default();
            let is_nat = attributes.text(7).is_some_and(|kind| kind == "nat");
            let entered = attributes.bytes(4).map(|_| match is_nat {
                true => Entered::First,
                false => Entered::All,
            });
            of_table.push(DumpedChain {
                name,
                base,
                entered,
            });
        }
    })?;
    chains.retain(|key, _| active.contains(key));
    // IP packets do not pass the family arp.
    chains.retain(|(family, _), _| family_name(*family).is_some());
    let mut rules: HashMap<Key, Vec<(String, u64, Vec<u8>)>> = HashMap::new();
    socket.dump(message::GET_RULE, 0, &[], |message| {
        let attributes = message.attributes;
        if let (Some(table), Some(chain)) = (attributes.text(1), attributes.text(2)) {
            let expressions = attributes.bytes(4).unwrap_or_default().to_vec();
            let handle = attributes.u64(3).unwrap_or(0);
            let of_table = rules.entry((message.family, table)).or_default();
            of_table.push((chain, handle, expressions));
        }
    })?;
    let mut ruleset = Ruleset {
        tables: Vec::new(),
        marks_elsewhere: Vec::new(),
        translates: false,
        generation: 0,
    };
    for (key, chains) in chains {
        let entered: Vec<_> = chains.iter().map(|chain| chain.entered).collect();
        let rules = rules.remove(&key).unwrap_or_default();
        let table = table(socket, &key, chains, rules)?;
        ruleset.translates |= entered.contains(&Some(Entered::First));
        let marks = marks_elsewhere(key.0, &table, &entered);
        ruleset.marks_elsewhere.extend(marks);
        ruleset.tables.push(table);
    }
    Ok(ruleset)
}

/// The places where a table sets marks without being walked for every connection.
fn marks_elsewhere(family: u8, table: &Table, entered: &[Option<Entered>]) -> Vec<Elsewhere> {
    let mut found = Vec::new();
    for (at, entered) in entered.iter().enumerate() {
        let where_at = match table.chains.get(at).map(|chain| &chain.base) {
            _ if *entered != Some(Entered::All) => continue,
            _ if family == BRIDGE => Elsewhere::Bridge,
            Some(Some(base)) if matches!(base.hook, Hook::Ingress | Hook::Egress) => {
                Elsewhere::Devices(base.clone())
            }
            _ => continue,
        };
        if sets_marks(table, at) {
            found.push(where_at);
        }
    }
    found
}

/// Whether a chain, or one that it leads to, sets marks.
fn sets_marks(table: &Table, chain: usize) -> bool {
    let mut ahead = vec![chain];
    let mut seen = vec![false; table.chains.len()];
    while let Some(at) = ahead.pop() {
        let Some(chain) = table.chains.get(at) else {
            continue;
        };
        if !std::mem::replace(&mut seen[at], true) {
            if chain.sets_marks() {
                return true;
            }
            ahead.extend(chain.leads_to());
        }
    }
    false
}

/// `NFT_TABLE_F_DORMANT`: the kernel calls none of the table's chains.
const DORMANT: u32 = 1;

fn active_tables(socket: &mut Socket) -> Result<Vec<Key>, DumpError> {
    let mut active = Vec::new();
    socket.dump(message::GET_TABLE, 0, &[], |message| {
        let attributes = message.attributes;
        if let Some(name) = attributes.text(1)
            && attributes.u32(2).unwrap_or(0) & DORMANT == 0
        {
            active.push((message.family, name));
        }
    })?;
    Ok(active)
}

/// `NFPROTO_*`.
const INET: u8 = 1;
const IPV4: u8 = 2;
const NETDEV: u8 = 5;
const BRIDGE: u8 = 7;
const IPV6: u8 = decode::IPV6;

fn family_name(family: u8) -> Option<&'static str> {
    match family {
        INET => Some("inet"),
        IPV4 => Some("ip"),
        NETDEV => Some("netdev"),
        // Its rules do not decide about packets that end here, but those keep the marks that they set.
        BRIDGE => Some("bridge"),
        IPV6 => Some("ip6"),
        _ => None,
    }
}

/// The hook of a base chain. `None` for other chains, and for chains of type nat, which see a connection's first packet only.
fn base(family: u8, attributes: Attributes<'_>) -> Option<Base> {
    let hook = attributes.nested(4)?;
    if attributes.text(7).is_some_and(|kind| kind == "nat") {
        return None;
    }
    let (number, priority) = (hook.u32(1)?, hook.u32(2)? as i32);
    let hook_at = match (family, number) {
        (NETDEV, 0) | (INET, 5) => Hook::Ingress,
        (NETDEV, 1) => Hook::Egress,
        (INET | IPV4 | IPV6 | BRIDGE, 0) => Hook::Prerouting,
        (INET | IPV4 | IPV6 | BRIDGE, 1) => Hook::Input,
        (INET | IPV4 | IPV6 | BRIDGE, 2) => Hook::Forward,
        (INET | IPV4 | IPV6 | BRIDGE, 3) => Hook::Output,
        (INET | IPV4 | IPV6 | BRIDGE, 4) => Hook::Postrouting,
        _ => return None,
    };
    let mut devices = Vec::from_iter(hook.text(3));
    if let Some(list) = hook.nested(4) {
        // A prefix (6.16) matches every device whose name starts with it.
        devices.extend(list.each().map(|(kind, name)| {
            let name = crate::netlink::text(name);
            if kind == DEVICE_PREFIX {
                format!("{name}*")
            } else {
                name
            }
        }));
    }
    devices.sort();
    devices.dedup();
    Some(Base {
        hook: hook_at,
        priority,
        devices,
        // NF_DROP
        drops: attributes.u32(5) == Some(0),
    })
}

/// `NFTA_DEVICE_PREFIX`.
const DEVICE_PREFIX: u16 = 2;

fn table(
    socket: &mut Socket,
    key: &Key,
    dumped: Vec<DumpedChain>,
    rules: Vec<(String, u64, Vec<u8>)>,
) -> Result<Table, DumpError> {
    let (family, name) = key;
    let by_name: HashMap<String, usize> = dumped
        .iter()
        .enumerate()
        .map(|(index, chain)| (chain.name.clone(), index))
        .collect();
    let chain_by_name = |name: &str| by_name.get(name).copied();
    let fed = fed_sets(&rules);
    let sets = sets(socket, key, &fed, &chain_by_name)?;
    let at = TableContext {
        family: *family,
        chain_by_name: &chain_by_name,
        set_by_name: &|name| sets.get(name).cloned(),
    };
    let mut chains: Vec<Chain> = dumped
        .into_iter()
        .map(|DumpedChain { name, base, .. }| Chain {
            name,
            base,
            rules: Vec::new(),
        })
        .collect();
    for (chain, handle, expressions) in rules {
        let Some(chain) = chain_by_name(&chain).and_then(|index| chains.get_mut(index)) else {
            // The rule is newer than the dump of the chains: the generation has changed.
            return Err(DumpError::Changed);
        };
        let expressions = Attributes::of(&expressions).each();
        let steps: Vec<Step> = expressions
            .flat_map(|(_, expression)| decode(Attributes::of(expression), &at))
            .collect();
        chain.rules.push(Rule {
            id: RuleId::Handle(handle),
            steps: fused(steps),
        });
    }
    Ok(Table {
        family: family_name(*family).unwrap_or("?"),
        name: name.clone(),
        chains,
    })
}

/// The sets to which rules add elements, or from which they delete them. nft flags only sets that it creates
/// together with such a rule.
fn fed_sets(rules: &[(String, u64, Vec<u8>)]) -> Vec<String> {
    let of_rule = |(_, _, expressions): &(String, u64, Vec<u8>)| {
        let each = Attributes::of(expressions).each();
        each.filter_map(|(_, expression)| decode::fed_set(Attributes::of(expression)))
            .collect::<Vec<_>>()
    };
    rules.iter().flat_map(of_rule).collect()
}

/// `NFT_SET_*`.
const SET_INTERVAL: u32 = 0x4;
const SET_EVAL: u32 = 0x20;

struct DumpedSet {
    name: String,
    flags: u32,
    key_bytes: usize,
    fields: Vec<usize>,
}

fn sets(
    socket: &mut Socket,
    (family, table): &Key,
    fed: &[String],
    chain_by_name: &dyn Fn(&str) -> Option<usize>,
) -> Result<HashMap<String, Arc<Set>>, DumpError> {
    let mut dumped = Vec::new();
    let of_table = string_attribute(1, table);
    socket.dump(message::GET_SET, *family, &of_table, |message| {
        let attributes = message.attributes;
        if attributes.text(1).as_ref() != Some(table) {
            return;
        }
        let Some(name) = attributes.text(2) else {
            return;
        };
        let key_bytes = attributes.u32(5).unwrap_or(0) as usize;
        let concatenated = attributes.nested(9).and_then(|about| about.nested(2));
        let fields: Vec<_> = concatenated
            .into_iter()
            .flat_map(Attributes::each)
            .filter_map(|(_, field)| Attributes::of(field).u32(1))
            .map(|bytes| bytes as usize)
            .collect();
        dumped.push(DumpedSet {
            name,
            flags: attributes.u32(3).unwrap_or(0),
            key_bytes,
            fields,
        });
    })?;
    let mut sets = HashMap::new();
    for set in dumped {
        let mut of_set = of_table.clone();
        of_set.extend(string_attribute(2, &set.name));
        let at = TableContext {
            family: *family,
            chain_by_name,
            set_by_name: &|_| None,
        };
        let mut elements = Vec::new();
        socket.dump(message::GET_SET_ELEMENTS, *family, &of_set, |message| {
            let list = message.attributes.nested(3);
            let dumped = list.into_iter().flat_map(Attributes::each);
            elements.extend(dumped.filter_map(|(_, one)| element(Attributes::of(one), &at)));
        })?;
        let is_dynamic = set.flags & SET_EVAL != 0 || fed.contains(&set.name);
        let set = Set::new(
            set.name,
            set.key_bytes,
            set.fields,
            set.flags & SET_INTERVAL != 0,
            is_dynamic,
            elements,
        );
        sets.insert(set.name.clone(), Arc::new(set));
    }
    Ok(sets)
}

/// `NFT_SET_ELEM_*`.
const INTERVAL_END: u32 = 1;
const CATCH_ALL: u32 = 2;

fn element(attributes: Attributes<'_>, at: &TableContext<'_>) -> Option<DumpedElement> {
    let flags = attributes.u32(3).unwrap_or(0);
    let is_catch_all = flags & CATCH_ALL != 0;
    let key_of = |kind| -> Option<Vec<u8>> {
        match data(attributes.nested(kind)?, at)? {
            Data::Value(key) => Some(key),
            Data::Verdict(_) => None,
        }
    };
    let key = match key_of(1) {
        Some(key) => key,
        None if is_catch_all => Vec::new(),
        None => return None,
    };
    let single = attributes.nested(7).into_iter();
    let several = attributes.nested(11).into_iter();
    let expressions = single.chain(
        several
            .flat_map(Attributes::each)
            .map(|(_, one)| Attributes::of(one)),
    );
    let effect = expressions
        .flat_map(|expression| decode(expression, at))
        .find_map(|step| match step {
            Step::Act(Action::Effect(what) | Action::Limit(what) | Action::Opaque(what)) => {
                Some(what)
            }
            _ => None,
        });
    Some(DumpedElement {
        key,
        key_end: key_of(10),
        is_end: flags & INTERVAL_END != 0,
        is_catch_all,
        element: Element {
            from: Vec::new(),
            to: Vec::new(),
            data: attributes.nested(2).and_then(|nested| data(nested, at)),
            expires: attributes.bytes(5).is_some(),
            effect,
        },
    })
}
