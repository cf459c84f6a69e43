//! What the registered functions do.

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

/// What a registered function does with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// Nothing that matters to an established connection.
    Harmless,
    /// It walks a base chain of nftables.
    Chain,
    /// It walks a table of iptables-legacy.
    Table,
    Unknown,
}

/// Functions that do not decide on the segments of an established connection. Some names depend on the
/// kernel version.
const HARMLESS: &[&str] = &[
    // Replaces a hook that is being removed (`nf_remove_net_hook`).
    "accept_all",
    // Connection tracking. The rules that test its state are walked. It drops a packet by itself only if
    // it lacks memory. (nf_conntrack_proto.c)
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
    // Address translation. Its rules see the first packet of a connection only. The addresses of the
    // connection show whether it is translated. (nf_nat_proto.c)
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
    // Skips the IP hooks if br_netfilter has called them for a port of the bridge. They still come first
    // if segments are translated on the bridge. (br_netfilter_hooks.c)
    "ip_sabotage_in",
    // Flow tables contain forwarded connections only, and spare them rules.
    "nf_flow_offload_ip_hook",
    "nf_flow_offload_ipv6_hook",
    "nf_flow_offload_inet_hook",
    // AppArmor checks only packets with a SECMARK. The rules that set one are walked. Two names before
    // 5.18.
    "apparmor_ip_postroute",
    "apparmor_ipv4_postroute",
    "apparmor_ipv6_postroute",
    // Smack labels outgoing packets with a SECMARK and accepts all. Two names before 5.18.
    "smack_ip_output",
    "smack_ipv4_output",
    "smack_ipv6_output",
    // SELinux decides by the labels of socket, device and addresses, and by the SECMARK. All segments of a
    // connection have the same, and the first ones have passed. Two names each before 5.18.
    "selinux_ip_forward",
    "selinux_ip_output",
    "selinux_ip_postroute",
    "selinux_ipv4_forward",
    "selinux_ipv4_output",
    "selinux_ipv4_postroute",
    "selinux_ipv6_forward",
    "selinux_ipv6_output",
    "selinux_ipv6_postroute",
];

/// Prefixes of the functions that walk chains of nftables, of type filter and route.
const CHAIN: [&str; 2] = ["nft_do_chain", "nf_route_table_"];

impl Function {
    /// What the function of this hook does.
    pub(super) fn of(hook: &RegisteredHook) -> Self {
        let name = bare_name(&hook.function);
        match hook.kind {
            HookKind::NfTables => Self::Chain,
            HookKind::FlowTable => Self::Harmless,
            HookKind::Bpf | HookKind::Other(_) => Self::Unknown,
            // Since 5.14 the kernel reports hooks of nftables as such.
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

/// The name of the function without its module and without a suffix of the compiler (`.llvm.1`, `.cfi_jt`,
/// `.constprop.0`).
fn bare_name(function: &str) -> &str {
    let name = function.split(' ').next().unwrap_or_default();
    name.split('.').next().unwrap_or_default()
}

/// Since 5.16 most tables share one function; `mangle`, and all tables in older kernels, have their own.
fn is_legacy(name: &str) -> bool {
    ["ipt_do_table", "ip6t_do_table"].contains(&name)
        || ["iptable_", "ip6table_"].iter().any(|prefix| {
            let table = name
                .strip_prefix(prefix)
                .and_then(|rest| rest.strip_suffix("_hook"));
            table.is_some_and(|table| LEGACY_TABLES.iter().any(|(_, known)| *known == table))
        })
}
