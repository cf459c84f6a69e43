//! The netfilter hooks that the kernel really calls, and whether all of them are accounted for.
//!
//! Rule sets tell what nftables and iptables-legacy do with a segment. They do not tell who else has
//! registered a hook: a BPF program, a security module, a module from out of the tree. So whoever can
//! read the kernel's own list of hooks gives it to [`classify`].

mod function;
#[cfg(test)]
mod tests;

use std::fmt;

use self::function::{Function, LEGACY_TABLES};
use crate::segment::{Family, Hook};

/// A place at which the kernel calls the registered hooks in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HookPlace {
    /// `prerouting` of a protocol.
    Prerouting(Family),
    /// `input`.
    Input(Family),
    /// `forward`. No segment of a connection of this host passes it.
    Forward(Family),
    /// `output`.
    Output(Family),
    /// `postrouting`.
    Postrouting(Family),
    /// `ingress` of the device that was asked for.
    Ingress,
    /// `egress` of that device.
    Egress,
}

impl HookPlace {
    /// All, in the order of [`HookCounts::count`].
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

    /// Where the segments of a connection meet this hook.
    pub fn of(family: Family, hook: Hook) -> Self {
        match hook {
            Hook::Ingress => Self::Ingress,
            Hook::Prerouting => Self::Prerouting(family),
            Hook::Input => Self::Input(family),
            Hook::Output => Self::Output(family),
            Hook::Postrouting => Self::Postrouting(family),
            Hook::Egress => Self::Egress,
        }
    }

    /// Its place in [`ALL`](Self::ALL).
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

    /// The protocol whose packets pass it; `None`: those of both.
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
    /// Differs when the same numbers of hooks call other functions. Means nothing across boots.
    pub functions: u64,
    /// The device was found; otherwise nothing is known of its `ingress` and `egress`.
    pub device_known: bool,
}

/// Who has registered a hook (`enum nf_hook_ops_type`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookKind {
    /// A module, without a word about itself.
    Module,
    /// A base chain of nftables.
    NfTables,
    /// A BPF program.
    Bpf,
    /// A flow table of nftables.
    FlowTable,
    /// One that was unknown in Linux 6.18.
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
    /// Where it stands among the others at that place: the lowest comes first.
    pub priority: i32,
}

/// All hooks that are registered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Registry {
    /// How many.
    pub counts: HookCounts,
    /// The hooks; fewer than `counts` says where there are more than can be listed.
    pub hooks: Vec<RegisteredHook>,
}

/// Why the hooks are not all accounted for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnknownHook {
    /// This one is called, and nobody knows what it does.
    Hook(RegisteredHook),
    /// nftables has another number of base chains there than were listed.
    Chains {
        /// Where.
        place: HookPlace,
        /// That the kernel calls.
        called: usize,
        /// That were listed.
        listed: usize,
    },
    /// A table of iptables-legacy is called there that was not listed.
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

/// Whether every hook that a connection of this host over `family` may meet is accounted for: by
/// `chains`, which gives the number of nftables' base chains at a place, by `has_table`, which says
/// whether a table of iptables-legacy was listed, or as harmless.
///
/// Base chains of type nat and those of dormant tables do not count; the kernel registers no hook for
/// them. One of family `inet` counts for both protocols, or on the device.
///
/// # Errors
/// The first that is not.
pub fn classify(
    registry: &Registry,
    family: Family,
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
    for place in Hook::ALL.map(|hook| HookPlace::of(family, hook)) {
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
