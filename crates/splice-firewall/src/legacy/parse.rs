//! Parses the kernel's image of a table into chains and rules.
//!
//! A table is a sequence of entries. First come the chains of the hooks, each with its rules and its
//! policy. User-defined chains follow: an entry with the target ERROR holds the name, and an unconditional
//! RETURN ends the chain. One more ERROR ends the table. A jump contains the offset of its target.

use std::collections::HashMap;
use std::ops::Range;

use crate::action::Action;
use crate::legacy::socket::{Blob, HOOKS};
use crate::rule::{Base, Chain, Rule, Step, Table, Test};
use crate::segment::{Family, Hook};
use crate::verdict::RuleId;
use crate::xt::{self, Header, Info, Match};

/// Names of the chains of hooks, by the number of the hook (`NF_INET_*`).
const BASES: [(&str, Hook); HOOKS] = [
    ("PREROUTING", Hook::Prerouting),
    ("INPUT", Hook::Input),
    ("FORWARD", Hook::Forward),
    ("OUTPUT", Hook::Output),
    ("POSTROUTING", Hook::Postrouting),
];

/// The priority of a table's hooks (`enum nf_ip_hook_priorities`).
pub(super) fn priority(table: &str) -> i32 {
    match table {
        "raw" => -300,
        "mangle" => -150,
        "security" => 50,
        _ => 0,
    }
}

/// Reads a table, or says what is wrong with it.
pub(super) fn table(family: Family, name: &str, blob: &Blob) -> Result<Table, &'static str> {
    let layout = Layout::of(family);
    let entries = layout.entries(&blob.entries)?;
    let spans = spans(&entries, blob, priority(name))?;
    let chain_at: HashMap<usize, usize> = spans
        .iter()
        .enumerate()
        .filter(|(_, span)| span.base.is_none())
        .filter_map(|(index, span)| Some((entries.get(span.rules.start)?.offset, index)))
        .collect();
    let mut chains = Vec::with_capacity(spans.len());
    for span in spans {
        let mut rules = Vec::with_capacity(span.rules.len());
        for (number, entry) in (1..).zip(&entries[span.rules]) {
            rules.push(Rule {
                id: RuleId::Number(number),
                steps: entry.steps(family, &chain_at)?,
            });
        }
        chains.push(Chain {
            name: span.name,
            base: span.base,
            rules,
        });
    }
    Ok(Table {
        family: match family {
            Family::Ipv4 => "iptables",
            Family::Ipv6 => "ip6tables",
        },
        name: name.into(),
        chains,
    })
}

/// The entries of a chain.
struct Span {
    name: String,
    /// `None` for a user-defined chain.
    base: Option<Base>,
    /// Without the policy or the RETURN at its end.
    rules: Range<usize>,
}

fn spans(entries: &[Entry<'_>], blob: &Blob, priority: i32) -> Result<Vec<Span>, &'static str> {
    let at = |offset: u32| {
        entries
            .binary_search_by_key(&(offset as usize), |entry| entry.offset)
            .map_err(|_| "a hook has no rule where it should")
    };
    let mut spans = Vec::new();
    for (offsets, (name, hook)) in blob.hooks.iter().zip(BASES) {
        let Some(offsets) = offsets else { continue };
        let (first, policy) = (at(offsets.first)?, at(offsets.policy)?);
        let chain = entries
            .get(first..policy)
            .ok_or("the policy of a hook is before its rules")?;
        if chain.iter().any(|entry| entry.error_name().is_some()) {
            return Err("the chain of a hook is cut");
        }
        let drops = match entries[policy].unconditional_verdict() {
            Some(DROP) => true,
            Some(ACCEPT) => false,
            _ => return Err("the policy of a hook is neither ACCEPT nor DROP"),
        };
        spans.push(Span {
            name: name.into(),
            base: Some(Base {
                hook,
                priority,
                devices: Vec::new(),
                drops,
            }),
            rules: first..policy,
        });
    }
    let heads: Vec<(usize, String)> = entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| Some((index, entry.error_name()?)))
        .collect();
    for two in heads.windows(2) {
        let [(head, name), (next, _)] = two else {
            continue;
        };
        let end = next - 1;
        if end == *head || entries[end].unconditional_verdict() != Some(RETURN) {
            return Err("a chain does not end with RETURN");
        }
        spans.push(Span {
            name: name.clone(),
            base: None,
            rules: head + 1..end,
        });
    }
    if heads.last().map(|(index, _)| index + 1) != Some(entries.len()) {
        return Err("it has no end");
    }
    Ok(spans)
}

/// Offsets in `struct ipt_entry` and `struct ip6t_entry`, whose counters are `__u64`.
struct Layout {
    family: Family,
    target_offset: usize,
    /// `sizeof` the structure.
    length: usize,
}

/// `struct xt_counters`.
const COUNTERS_BYTES: usize = 16;
/// `struct xt_entry_match` and `struct xt_entry_target`: `__u16` size, name, `__u8` revision.
const EXTENSION_BYTES: usize = 32;
const EXTENSION_NAME: Range<usize> = 2..31;
const EXTENSION_REVISION: usize = 31;

/// `XT_STANDARD_TARGET` and `XT_ERROR_TARGET`.
const STANDARD: &str = "";
const ERROR: &str = "ERROR";

/// Verdicts of the standard target: -(`NF_*`) - 1, and `XT_RETURN`.
const DROP: i32 = -1;
const ACCEPT: i32 = -2;
const QUEUE: i32 = -4;
const RETURN: i32 = -5;

impl Layout {
    fn of(family: Family) -> Self {
        let target_offset: usize = match family {
            Family::Ipv4 => 88,
            Family::Ipv6 => 140,
        };
        // next_offset (__u16) and comefrom (unsigned int) follow.
        let counters = (target_offset + 8).next_multiple_of(align_of::<u64>());
        Self {
            family,
            target_offset,
            length: counters + COUNTERS_BYTES,
        }
    }

    fn entries<'a>(&self, bytes: &'a [u8]) -> Result<Vec<Entry<'a>>, &'static str> {
        let mut entries = Vec::new();
        let mut offset = 0;
        while offset < bytes.len() {
            let entry = self
                .entry(offset, &bytes[offset..])
                .ok_or("a rule is cut")?;
            offset = entry.next;
            entries.push(entry);
        }
        Ok(entries)
    }

    fn entry<'a>(&self, offset: usize, bytes: &'a [u8]) -> Option<Entry<'a>> {
        let head = Info(bytes);
        let target: usize = head.u16(self.target_offset)?.into();
        let length: usize = head.u16(self.target_offset + 2)?.into();
        let (header, is_goto) = Header::decode(self.family, head)?;
        let mut matches = Vec::new();
        let mut rest = bytes.get(self.length..target)?;
        while !rest.is_empty() {
            let (one, behind) = Extension::decode(rest)?;
            matches.push(one);
            rest = behind;
        }
        let (target, _) = Extension::decode(bytes.get(target..length)?)?;
        Some(Entry {
            offset,
            next: offset + length,
            header,
            is_goto,
            matches,
            target,
        })
    }
}

/// A rule in the image.
struct Entry<'a> {
    offset: usize,
    next: usize,
    header: Header,
    is_goto: bool,
    matches: Vec<Extension<'a>>,
    target: Extension<'a>,
}

/// A match or a target.
struct Extension<'a> {
    name: String,
    revision: u8,
    info: &'a [u8],
}

impl<'a> Extension<'a> {
    /// Reads the first extension, and returns the rest.
    fn decode(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let length: usize = Info(bytes).u16(0)?.into();
        let (this, behind) = bytes.split_at_checked(length)?;
        let info = this.get(EXTENSION_BYTES..)?;
        let this = Self {
            name: text(&this[EXTENSION_NAME]),
            revision: this[EXTENSION_REVISION],
            info,
        };
        Some((this, behind))
    }
}

impl Entry<'_> {
    /// The name of the chain that starts here.
    fn error_name(&self) -> Option<String> {
        (self.target.name == ERROR).then(|| text(self.target.info))
    }

    /// `struct xt_standard_target`.
    fn verdict(&self) -> Option<i32> {
        let bytes = Info(self.target.info).bytes(0).copied();
        bytes
            .map(i32::from_ne_bytes)
            .filter(|_| self.target.name == STANDARD)
    }

    fn unconditional_verdict(&self) -> Option<i32> {
        self.verdict()
            .filter(|_| self.header.is_unconditional() && self.matches.is_empty())
    }

    fn steps(
        &self,
        family: Family,
        chain_at: &HashMap<usize, usize>,
    ) -> Result<Vec<Step>, &'static str> {
        let mut steps = vec![Step::Test(Test::Header(self.header.clone()))];
        for one in &self.matches {
            let asked = Match::decode(family, &one.name, one.revision, one.info);
            steps.extend(Step::of_match(asked));
        }
        steps.extend(self.action(chain_at)?.map(Step::Act));
        Ok(steps)
    }

    /// The action, as in `ipt_do_table`; `None` continues with the next rule.
    fn action(&self, chain_at: &HashMap<usize, usize>) -> Result<Option<Action>, &'static str> {
        if self.target.name != STANDARD {
            return Ok(Some(xt::target(&self.target.name)));
        }
        let verdict = self.verdict().ok_or("a verdict is cut")?;
        Ok(Some(match verdict {
            DROP => Action::Stop("drops".into()),
            ACCEPT => Action::Accept,
            QUEUE => Action::Stop("queues to user space".into()),
            RETURN => Action::Return,
            ..0 => Action::Opaque(format!(
                "is of a kind that is not understood (verdict {verdict})"
            )),
            0.. => {
                let target = verdict as usize;
                if target == self.next {
                    // A rule without a target.
                    return Ok(None);
                }
                let chain = *chain_at
                    .get(&target)
                    .ok_or("a jump leads to where no chain begins")?;
                if self.is_goto {
                    Action::Goto(chain)
                } else {
                    Action::Jump(chain)
                }
            }
        }))
    }
}

/// A NUL-terminated string.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}
