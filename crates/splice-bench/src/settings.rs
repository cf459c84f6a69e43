//! Settings of the kernel that bear on the figures.

use std::fs;

use anyhow::Result;
use netlab::Namespace;

use crate::results::Sysctl;

/// Those that each network namespace has for itself.
const OF_A_NAMESPACE: [&str; 17] = [
    "net.core.somaxconn",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.tcp_autocorking",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_ecn",
    "net.ipv4.tcp_limit_output_bytes",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_no_metrics_save",
    "net.ipv4.tcp_notsent_lowat",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_sack",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_timestamps",
    "net.ipv4.tcp_tso_win_divisor",
    "net.ipv4.tcp_tw_reuse",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_wmem",
];

/// Those that there are once. Those below `net.core` are seen from the machine's own namespace only.
const OF_THE_MACHINE: [&str; 14] = [
    "fs.pipe-max-size",
    "kernel.numa_balancing",
    "kernel.sched_autogroup_enabled",
    "kernel.sched_rt_runtime_us",
    "net.core.bpf_jit_enable",
    "net.core.bpf_jit_harden",
    "net.core.busy_poll",
    "net.core.busy_read",
    "net.core.default_qdisc",
    "net.core.netdev_budget",
    "net.core.netdev_budget_usecs",
    "net.core.netdev_max_backlog",
    "net.core.rmem_max",
    "net.core.wmem_max",
];

/// Reads them in these namespaces, each with what it is called, and on the machine. To be called from
/// a thread in the machine's own namespace. What this kernel does not have is left out.
pub(crate) fn read(namespaces: &[(&str, &Namespace)]) -> Result<Vec<Sysctl>> {
    let mut all = Vec::new();
    for name in OF_A_NAMESPACE {
        let mut values = Vec::new();
        for &(role, namespace) in namespaces {
            if let Some(value) = namespace.sysctl(name)? {
                values.push((role, value));
            }
        }
        all.extend(by_value(name, values));
    }
    for name in OF_THE_MACHINE {
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        if let Ok(value) = fs::read_to_string(path) {
            all.extend(by_value(name, vec![("machine", value)]));
        }
    }
    Ok(all)
}

/// One entry for each value, naming where it is found.
fn by_value(name: &str, values: Vec<(&str, String)>) -> Vec<Sysctl> {
    let mut all: Vec<Sysctl> = Vec::new();
    for (role, value) in values {
        // Several numbers in one setting stand behind tabs.
        let value = value.split_whitespace().collect::<Vec<_>>().join(" ");
        match all.iter_mut().find(|known| known.value == value) {
            Some(known) => known.scope = format!("{}, {role}", known.scope),
            None => all.push(Sysctl {
                scope: role.into(),
                name: name.into(),
                value,
            }),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::by_value;

    #[test]
    fn namespaces_that_agree_are_told_together() {
        let values = vec![
            ("client", "4096\t131072\t6291456\n".into()),
            ("relay", "1 2 3".into()),
            ("server", "4096 131072 6291456".into()),
        ];
        let all = by_value("net.ipv4.tcp_rmem", values);
        let told: Vec<(&str, &str)> = all
            .iter()
            .map(|one| (one.scope.as_str(), one.value.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("client, server", "4096 131072 6291456"),
                ("relay", "1 2 3")
            ]
        );
    }
}
