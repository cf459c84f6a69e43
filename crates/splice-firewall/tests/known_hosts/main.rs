//! The rule sets of known hosts: the detector's verdict, and what the kernel does.

mod fixture;
mod host;
mod thousand;
mod truth;
mod verdict;

use netlab::{Need, available};

/// Whether this machine has what every test of this file needs.
fn can_run() -> bool {
    [Need::Netns, Need::Nft, Need::Iptables, Need::Ipset]
        .into_iter()
        .all(available)
}

/// Two tests for each fixture.
macro_rules! known_hosts {
    ($($name:ident)*) => {
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        $(mod $name {
            #[test]
            fn verdict() {
                if crate::can_run() {
                    crate::verdict::is_as_expected(stringify!($name));
                }
            }

            #[test]
            fn truth() {
                if crate::can_run() {
                    crate::truth::holds(stringify!($name));
                }
            }
        })*
    };
}

known_hosts! {
    bridge_and_arp
    docker
    docker_nftables
    dormant
    effect_dscp
    effect_dscp_iptables
    effect_limit
    effect_limit_iptables
    effect_log
    effect_log_iptables
    effect_mark
    effect_mark_iptables
    effect_notrack
    effect_notrack_iptables
    effect_queue_iptables
    effect_quota
    effect_synproxy
    effect_tproxy
    effect_tproxy_iptables
    fail2ban_ipset
    fail2ban_multiport
    fail2ban_nftables
    firewalld
    firewalld_mark
    inet_ingress
    kube_proxy
    kube_proxy_nftables
    kubelet_marked_drop
    libvirt
    mark_from_ingress
    netdev_egress
    netdev_ingress
    netdev_ingress_effects
    networkmanager_shared
    not_understood_iptables
    other_family
    plain_chains
    plain_empty
    plain_established_only_for_some
    plain_forward_only
    plain_invalid
    plain_prerouting_and_postrouting
    plain_reroute
    plain_server
    plain_server_sets_first
    plain_stateless
    plain_stateless_iptables
    two_chains
    ufw
    ufw_log_full
    ufw_log_medium
}

#[test]
fn every_fixture_is_tried() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures");
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .expect("the fixtures")
        .filter_map(|entry| {
            let name = entry.expect("a fixture").file_name().into_string().ok()?;
            Some(name.strip_suffix(".rules")?.to_string())
        })
        .collect();
    files.sort();
    assert_eq!(files, NAMES);
}
