//! The netfilter hooks that the kernel really calls, and whether all of them are accounted for.
//!
//! Rule sets tell what nftables and iptables-legacy do with a segment. They do not tell who else has
//! registered a hook: a BPF program, a security module, a module from out of the tree. So whoever can
//! read the kernel's own list of hooks gives it to [`classify`].

use std::fmt;

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

/// Tables of iptables-legacy and the priority of their hooks (`enum nf_ip_hook_priorities`), which is
/// the same for IPv6.
const LEGACY_TABLES: [(i32, &str); 5] = [
    // With raw_before_defrag=1.
    (-450, "raw"),
    (-300, "raw"),
    (-150, "mangle"),
    (0, "filter"),
    (50, "security"),
];

/// What a function that modules of the kernel register does with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Function {
    /// Nothing that an established connection would miss.
    Harmless,
    /// It walks a base chain of nftables.
    Chain,
    /// It walks a table of iptables-legacy.
    Table,
    Unknown,
}

/// Functions that do not decide on the segments of an established connection, by kernel version where
/// the name has changed.
const HARMLESS: &[&str] = &[
    // Left in the place of one that is being removed (`nf_remove_net_hook`).
    "accept_all",
    // Connection tracking. What it says of a segment is asked by rules, which are walked; it drops
    // none by itself but those that it has no memory for. (nf_conntrack_proto.c)
    "ipv4_conntrack_in",
    "ipv4_conntrack_local",
    "ipv4_confirm",
    "ipv4_helper",
    "ipv6_conntrack_in",
    "ipv6_conntrack_local",
    "ipv6_confirm",
    "ipv6_helper",
    // Since 6.3 for both protocols.
    "nf_confirm",
    // Reassembles fragments, which TCP does not send.
    "ipv4_conntrack_defrag",
    "ipv6_defrag",
    // Address translation. Its rules are asked for the first packet of a connection only; whether a
    // connection is translated shows in its addresses. (nf_nat_proto.c)
    "nf_nat_ipv4_in",
    "nf_nat_ipv4_pre_routing",
    "nf_nat_ipv4_fn",
    "nf_nat_ipv4_local_in",
    "nf_nat_ipv4_local_fn",
    "nf_nat_ipv4_out",
    "nf_nat_ipv6_in",
    "nf_nat_ipv6_fn",
    "nf_nat_ipv6_local_in",
    "nf_nat_ipv6_local_fn",
    "nf_nat_ipv6_out",
    // Has IP's hooks not called again where br_netfilter has called them for a port of the bridge: those
    // still come first when segments are translated on the bridge. (br_netfilter_hooks.c)
    "ip_sabotage_in",
    // Flow tables carry connections that are forwarded; one of this host never gets into them.
    "nf_flow_offload_ip_hook",
    "nf_flow_offload_ipv6_hook",
    "nf_flow_offload_inet_hook",
    // AppArmor looks at packets with a mark of SECMARK only. Rules that set one are walked. Two
    // names before 5.18.
    "apparmor_ip_postroute",
    "apparmor_ipv4_postroute",
    "apparmor_ipv6_postroute",
    // Smack labels what goes out with that mark, and lets everything pass. Two names before 5.18.
    "smack_ip_output",
    "smack_ipv4_output",
    "smack_ipv6_output",
    // SELinux decides by the labels of socket, device and addresses, and by that mark: by nothing in
    // which two segments of a connection differ. The first have passed. Two names each before 5.18.
    "selinux_ip_output",
    "selinux_ip_postroute",
    "selinux_ipv4_output",
    "selinux_ipv4_postroute",
    "selinux_ipv6_output",
    "selinux_ipv6_postroute",
];

/// How the functions begin that walk chains of nftables, of type filter and route.
const CHAIN: [&str; 2] = ["nft_do_chain", "nf_route_table_"];

impl RegisteredHook {
    /// The name of the function, without its module and without what a compiler has added
    /// (`.llvm.1`, `.cfi_jt`, `.constprop.0`).
    fn name(&self) -> &str {
        let name = self.function.split(' ').next().unwrap_or_default();
        name.split('.').next().unwrap_or_default()
    }

    fn does(&self) -> Function {
        let name = self.name();
        match self.kind {
            HookKind::NfTables => Function::Chain,
            HookKind::FlowTable => Function::Harmless,
            HookKind::Bpf | HookKind::Other(_) => Function::Unknown,
            // nftables says who it is since 5.14.
            HookKind::Untold if CHAIN.iter().any(|prefix| name.starts_with(prefix)) => {
                Function::Chain
            }
            HookKind::Module | HookKind::Untold => {
                if HARMLESS.contains(&name) {
                    Function::Harmless
                } else if is_legacy(name) {
                    Function::Table
                } else {
                    Function::Unknown
                }
            }
        }
    }
}

/// Since 5.16 most tables have one function in common; `mangle` and older kernels have one for each.
fn is_legacy(name: &str) -> bool {
    ["ipt_do_table", "ip6t_do_table"].contains(&name)
        || ["iptable_", "ip6table_"].iter().any(|prefix| {
            let table = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_suffix("_hook"));
            table.is_some_and(|table| LEGACY_TABLES.iter().any(|(_, known)| *known == table))
        })
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
            match hook.does() {
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

#[cfg(test)]
mod tests {
    use super::*;

    const INPUT: HookPlace = HookPlace::Input(Family::Ipv4);

    fn hook(place: HookPlace, function: &str, kind: HookKind, priority: i32) -> RegisteredHook {
        RegisteredHook {
            place,
            function: function.into(),
            kind,
            priority,
        }
    }

    fn registry(hooks: Vec<RegisteredHook>) -> Registry {
        let mut counts = HookCounts {
            device_known: true,
            ..HookCounts::default()
        };
        for hook in &hooks {
            counts.count[hook.place.index()] += 1;
        }
        Registry { counts, hooks }
    }

    /// With one chain of nftables for IPv4 input, and the table filter.
    fn said(hooks: Vec<RegisteredHook>) -> Result<(), String> {
        let registry = registry(hooks);
        let chains = |place| usize::from(place == INPUT);
        classify(&registry, Family::Ipv4, chains, |table| table == "filter")
            .map_err(|unknown| unknown.to_string())
    }

    fn chain() -> RegisteredHook {
        hook(INPUT, "nft_do_chain_ipv4", HookKind::NfTables, 0)
    }

    fn with_chain(other: RegisteredHook) -> Result<(), String> {
        said(vec![chain(), other])
    }

    #[test]
    fn places_have_the_index_of_their_count() {
        for (index, place) in HookPlace::ALL.into_iter().enumerate() {
            assert_eq!(place.index(), index, "{place}");
        }
    }

    #[test]
    fn chains_must_be_as_many_as_were_listed() {
        assert_eq!(said(vec![chain()]), Ok(()));
        for (chains, called) in [(vec![], 0), (vec![chain(), chain()], 2)] {
            let words = format!(
                "nftables has {called} base chains at netfilter's IPv4 input hook, and 1 were listed"
            );
            assert_eq!(said(chains), Err(words));
        }
        let untold = hook(INPUT, "nft_do_chain_ipv4", HookKind::Untold, 0);
        assert_eq!(said(vec![untold]), Ok(()));
    }

    /// Debian and Fedora have them from the start.
    #[test]
    fn security_modules_are_known() {
        for function in ["apparmor_ip_postroute", "selinux_ip_postroute"] {
            let place = HookPlace::Postrouting(Family::Ipv4);
            let hook = hook(place, function, HookKind::Module, -225);
            assert_eq!(with_chain(hook), Ok(()));
        }
    }

    #[test]
    fn modules_and_what_compilers_add_do_not_hide_a_name() {
        for (function, known) in [
            ("nf_confirm [nf_conntrack]", true),
            ("nf_confirm.llvm.1234 [nf_conntrack]", true),
            ("ipv4_conntrack_in.cfi_jt", true),
            ("iptable_filter_hook [iptable_filter]", true),
            ("iptable_other_hook [iptable_other]", false),
            ("nf_confirmed", false),
            ("", false),
        ] {
            let hook = hook(INPUT, function, HookKind::Module, 0);
            assert_eq!(with_chain(hook).is_ok(), known, "{function}");
        }
    }

    /// A name proves nothing of a program.
    #[test]
    fn what_is_not_known_is_named() {
        for (kind, words) in [
            (
                HookKind::Bpf,
                "a BPF program is attached to netfilter's IPv4 input hook (priority 3)",
            ),
            (
                HookKind::Module,
                "the kernel function f [m] is registered at netfilter's IPv4 input hook (priority 3), \
                 and what it does is not known",
            ),
        ] {
            let hook = hook(INPUT, "f [m]", kind, 3);
            assert_eq!(with_chain(hook), Err(words.into()));
        }
        for kind in [HookKind::Bpf, HookKind::Other(9)] {
            let hook = hook(INPUT, "nf_confirm", kind, 3);
            assert!(with_chain(hook).is_err(), "{kind:?}");
        }
    }

    #[test]
    fn only_what_the_connection_meets_counts() {
        for place in HookPlace::ALL {
            let met = match place {
                HookPlace::Forward(_) => false,
                _ => place.family() != Some(Family::Ipv6),
            };
            let hook = hook(place, "foreign", HookKind::Module, 0);
            assert_eq!(with_chain(hook).is_err(), met, "{place}");
        }
    }

    #[test]
    fn a_table_that_was_not_listed_is_told() {
        for (priority, words) in [
            (0, None),
            (-150, Some("mangle")),
            (7, Some("of unknown name")),
        ] {
            let hook = hook(INPUT, "ipt_do_table", HookKind::Module, priority);
            let expected = words.map(|table| {
                format!(
                    "iptables-legacy has a table at netfilter's IPv4 input hook that was not listed: \
                     {table}"
                )
            });
            assert_eq!(with_chain(hook).err(), expected);
        }
    }

    #[test]
    fn a_list_that_is_cut_is_told() {
        let mut cut = registry(vec![chain()]);
        cut.counts.count[HookPlace::Egress.index()] = 100;
        let unknown = UnknownHook::TooMany {
            called: 101,
            listed: 1,
        };
        let said = classify(&cut, Family::Ipv4, |_| 0, |_| true);
        assert_eq!(said, Err(unknown));
    }
}
