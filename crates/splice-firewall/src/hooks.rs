//! The netfilter hooks that are registered in the kernel, and whether each of them is known.
//!
//! Rule sets show what nftables and iptables-legacy do with a segment. They do not show other hooks: those
//! of BPF programs, security modules and modules out of the tree. The caller reads the kernel's own list
//! of hooks and passes it to [`classify`].

mod function;
#[cfg(test)]
mod tests;

use std::fmt;

use self::function::{Function, LEGACY_TABLES};
use crate::segment::{Family, Hook};

/// A place where the kernel calls the registered hooks in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookPlace {
    /// `prerouting` of a protocol.
    Prerouting(Family),
    /// `input`.
    Input(Family),
    /// `forward`.
    Forward(Family),
    /// `output`.
    Output(Family),
    /// `postrouting`.
    Postrouting(Family),
    /// `ingress` of the device of the [`Registry`].
    Ingress,
    /// `egress` of that device.
    Egress,
}

impl HookPlace {
    /// All places, in the order of [`HookCounts::count`].
    pub const ALL: [Self; 12] = [
        Self::Prerouting(Family::Ipv4),
        Self::Input(Family::Ipv4),
        Self::Forward(Family::Ipv4),
        Self::Output(Family::Ipv4),
        Self::Postrouting(Family::Ipv4),
        Self::Prerouting(Family::Ipv6),
        Self::Input(Family::Ipv6),
        Self::Forward(Family::Ipv6),
        Self::Output(Family::Ipv6),
        Self::Postrouting(Family::Ipv6),
        Self::Ingress,
        Self::Egress,
    ];

    /// The place of this hook for connections of this family.
    pub fn of(family: Family, hook: Hook) -> Self {
        match hook {
            Hook::Ingress => Self::Ingress,
            Hook::Prerouting => Self::Prerouting(family),
            Hook::Input => Self::Input(family),
            Hook::Forward => Self::Forward(family),
            Hook::Output => Self::Output(family),
            Hook::Postrouting => Self::Postrouting(family),
            Hook::Egress => Self::Egress,
        }
    }

    /// The index in [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        let within = match self {
            Self::Prerouting(_) => 0,
            Self::Input(_) => 1,
            Self::Forward(_) => 2,
            Self::Output(_) => 3,
            Self::Postrouting(_) => 4,
            Self::Ingress => 10,
            Self::Egress => 11,
        };
        match self.family() {
            Some(Family::Ipv6) => within + 5,
            _ => within,
        }
    }

    /// The protocol whose packets pass it; `None` for both.
    pub fn family(self) -> Option<Family> {
        match self {
            Self::Prerouting(family)
            | Self::Input(family)
            | Self::Forward(family)
            | Self::Output(family)
            | Self::Postrouting(family) => Some(family),
            Self::Ingress | Self::Egress => None,
        }
    }
}

impl fmt::Display for HookPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family() {
            Some(Family::Ipv4) => "IPv4 ",
            Some(Family::Ipv6) => "IPv6 ",
            None => "device ",
        };
        let hook = match self {
            Self::Prerouting(_) => "prerouting",
            Self::Input(_) => "input",
            Self::Forward(_) => "forward",
            Self::Output(_) => "output",
            Self::Postrouting(_) => "postrouting",
            Self::Ingress => "ingress",
            Self::Egress => "egress",
        };
        write!(f, "{family}{hook}")
    }
}

/// How many hooks are registered, and which functions they call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HookCounts {
    /// At each of [`HookPlace::ALL`].
    pub count: [u16; HookPlace::ALL.len()],
    /// A hash of the called functions. It is comparable within one boot only.
    pub functions: u64,
    /// Whether the device was found; otherwise its `ingress` and `egress` are unknown.
    pub device_known: bool,
}

/// Who has registered a hook (`enum nf_hook_ops_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// A module, which gives no details.
    Module,
    /// A base chain of nftables.
    NfTables,
    /// A BPF program.
    Bpf,
    /// A flow table of nftables.
    FlowTable,
    /// A type that Linux 6.18 does not have.
    Other(u8),
    /// The kernel does not say (before 5.14).
    Untold,
}

/// One registered hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredHook {
    /// Where it is called.
    pub place: HookPlace,
    /// The function that is called, as `/proc/kallsyms` names it: `NAME` or `NAME [MODULE]`.
    pub function: String,
    /// Who has registered it.
    pub kind: HookKind,
    /// The order at that place: the lowest comes first.
    pub priority: i32,
}

/// All registered hooks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    /// How many.
    pub counts: HookCounts,
    /// The hooks; fewer than in `counts` if there are more than can be listed.
    pub hooks: Vec<RegisteredHook>,
}

/// Why not every hook is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownHook {
    /// The effect of this hook is unknown.
    Hook(RegisteredHook),
    /// The number of nftables' base chains at a place differs from the rule set.
    Chains {
        /// Where.
        place: HookPlace,
        /// How many the kernel calls.
        called: usize,
        /// How many the rule set has.
        listed: usize,
    },
    /// The kernel calls a table of iptables-legacy that was not listed.
    Table {
        /// Where.
        place: HookPlace,
        /// The table, or why its name is not known.
        table: &'static str,
    },
    /// There are more hooks than can be listed.
    TooMany {
        /// How many are called.
        called: usize,
        /// How many were listed.
        listed: usize,
    },
    /// The device was not found.
    NoDevice,
}

/// Checks that every hook of `passed` is known for a connection over `family`. A hook is known
/// if it is a base chain of nftables (`chains` returns their number at a place), a table of
/// iptables-legacy (`has_table` says whether it was listed), or harmless.
///
/// Do not count base chains of type nat or of dormant tables, for which the kernel registers no hook. Count
/// a chain of family `inet` for both protocols, or on the device.
///
/// # Errors
/// The first hook that is not known.
pub fn classify(
    registry: &Registry,
    family: Family,
    passed: &[Hook],
    chains: impl Fn(HookPlace) -> usize,
    has_table: impl Fn(&str) -> bool,
) -> Result<(), UnknownHook> {
    if !registry.counts.device_known {
        return Err(UnknownHook::NoDevice);
    }
    let called = registry
        .counts
        .count
        .iter()
        .map(|count| usize::from(*count))
        .sum();
    if called != registry.hooks.len() {
        return Err(UnknownHook::TooMany {
            called,
            listed: registry.hooks.len(),
        });
    }
    for place in passed.iter().map(|hook| HookPlace::of(family, *hook)) {
        let mut called = 0;
        for hook in registry.hooks.iter().filter(|hook| hook.place == place) {
            match Function::of(hook) {
                Function::Harmless => {}
                Function::Chain => called += 1,
                Function::Table => table_is_listed(hook, &has_table)?,
                Function::Unknown => return Err(UnknownHook::Hook(hook.clone())),
            }
        }
        let listed = chains(place);
        if called != listed {
            return Err(UnknownHook::Chains {
                place,
                called,
                listed,
            });
        }
    }
    Ok(())
}

fn table_is_listed(
    hook: &RegisteredHook,
    has_table: impl Fn(&str) -> bool,
) -> Result<(), UnknownHook> {
    let table = LEGACY_TABLES
        .iter()
        .find(|(priority, _)| *priority == hook.priority)
        .map(|(_, table)| *table);
    match table {
        Some(table) if has_table(table) => Ok(()),
        _ => Err(UnknownHook::Table {
            place: hook.place,
            table: table.unwrap_or("of unknown name"),
        }),
    }
}

impl fmt::Display for UnknownHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hook(hook) => {
                let RegisteredHook {
                    place,
                    function,
                    kind,
                    priority,
                } = hook;
                match kind {
                    HookKind::Bpf => write!(
                        f,
                        "a BPF program is attached to netfilter's {place} hook (priority {priority})"
                    ),
                    _ => write!(
                        f,
                        "the kernel function {function} is registered at netfilter's {place} hook \
                         (priority {priority}), and what it does is not known"
                    ),
                }
            }
            Self::Chains {
                place,
                called,
                listed,
            } => write!(
                f,
                "nftables has {called} base chains at netfilter's {place} hook, and {listed} were listed"
            ),
            Self::Table { place, table } => write!(
                f,
                "iptables-legacy has a table at netfilter's {place} hook that was not listed: {table}"
            ),
            Self::TooMany { called, listed } => write!(
                f,
                "netfilter has {called} hooks registered, and {listed} could be listed"
            ),
            Self::NoDevice => f.write_str("the device of the connection was not found"),
        }
    }
}
