//! What the functions do that are registered as hooks.

use super::{HookKind, RegisteredHook};

/// Tables of iptables-legacy and the priority of their hooks (`enum nf_ip_hook_priorities`), which is
/// the same for IPv6.
pub(super) const LEGACY_TABLES: [(i32, &str); 5] = [
    // With raw_before_defrag=1.
    (-450, "raw"),
    (-300, "raw"),
    (-150, "mangle"),
    (0, "filter"),
    (50, "security"),
];

/// What a function that modules of the kernel register does with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
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

impl Function {
    /// What the function of this hook does.
    pub(super) fn of(hook: &RegisteredHook) -> Self {
        let name = bare_name(&hook.function);
        match hook.kind {
            HookKind::NfTables => Self::Chain,
            HookKind::FlowTable => Self::Harmless,
            HookKind::Bpf | HookKind::Other(_) => Self::Unknown,
            // nftables says who it is since 5.14.
            HookKind::Untold if CHAIN.iter().any(|prefix| name.starts_with(prefix)) => Self::Chain,
            HookKind::Module | HookKind::Untold => {
                if HARMLESS.contains(&name) {
                    Self::Harmless
                } else if is_legacy(name) {
                    Self::Table
                } else {
                    Self::Unknown
                }
            }
        }
    }
}

/// The name of the function, without its module and without what a compiler has added
/// (`.llvm.1`, `.cfi_jt`, `.constprop.0`).
fn bare_name(function: &str) -> &str {
    let name = function.split(' ').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default()
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
