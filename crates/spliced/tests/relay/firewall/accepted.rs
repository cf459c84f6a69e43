//! Rules that accept established connections, as on most hosts.

use super::host::{CLIENT_PORT, Host, IPV4, IPV6, can_filter, iptables};
use crate::patience::until;

/// A host that accepts its service and replies to its own connections.
const SERVER: &str = "table inet filter {
    chain input {
        type filter hook input priority 0; policy drop;
        ct state vmap { established : accept, related : accept, invalid : drop }
        iifname lo accept
        tcp dport { 22, 8080 } ct state new accept
    }
    chain forward {
        type filter hook forward priority 0; policy drop;
    }
    chain output {
        type filter hook output priority 0; policy drop;
        ct state established,related accept
        ip daddr 198.18.2.0/24 tcp dport 9090 accept
    }
}";

/// The same without connection tracking, with bans of other clients.
const STATELESS: &str = "table ip filter {
    set banned {
        type ipv4_addr; flags interval;
        elements = { 192.0.2.0/24, 198.18.1.3 }
    }
    chain ingress {
        type filter hook prerouting priority -300; policy accept;
        ip saddr @banned drop
    }
    chain input {
        type filter hook input priority 0; policy drop;
        tcp dport 8080 counter accept
        tcp sport 9090 accept
    }
}";

/// Rules that do not apply to established connections of this host.
const ELSEWHERE: &str = "table ip nat {
    chain prerouting {
        type nat hook prerouting priority dstnat; policy accept;
        tcp dport 80 redirect to :8080
    }
    chain postrouting {
        type nat hook postrouting priority srcnat; policy accept;
        ip saddr 10.0.0.0/8 masquerade
    }
}
table inet filter {
    chain forward {
        type filter hook forward priority 0; policy drop;
        log
    }
}";

#[test]
fn pairs_that_nftables_accepts_are_spliced() {
    if !can_filter() {
        return;
    }
    for (rules, engine) in [SERVER, STATELESS, ELSEWHERE]
        .iter()
        .flat_map(|rules| ["auto", "segment"].map(|engine| (rules, engine)))
    {
        let host = Host::under(rules, &["--engine", engine]);
        let pair = host.spliced(CLIENT_PORT, &[]);
        pair.end();
        let entry = host.entry(CLIENT_PORT);
        assert_eq!(entry["engine"], "segment", "{entry}");
        assert_eq!(entry["outcome"], "end of stream", "{entry}");
    }
}

#[test]
fn pairs_that_iptables_accepts_are_spliced() {
    const RULES: [&str; 6] = [
        "-A INPUT -i lo -j ACCEPT",
        "-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A INPUT -p tcp -m multiport --dports 22,8080 -m comment --comment service -j ACCEPT",
        "-A INPUT -p tcp -j REJECT",
        "-P INPUT DROP",
        "-P FORWARD DROP",
    ];
    if !can_filter() {
        return;
    }
    for (ips, programs) in [
        (IPV4, ["iptables-nft", "iptables-legacy"]),
        (IPV6, ["ip6tables-nft", "ip6tables-legacy"]),
    ] {
        for program in programs {
            // Neighbour discovery is not TCP.
            let icmp = "-I INPUT ! -p tcp -j ACCEPT";
            let prepare = |lab: &_| {
                for rule in RULES.iter().chain([&icmp]) {
                    iptables(lab, program, rule);
                }
            };
            let host = Host::prepared(ips, prepare, &["--engine", "segment"]);
            host.spliced(CLIENT_PORT, &[]).end();
            let entry = host.entry(CLIENT_PORT);
            assert_eq!(entry["engine"], "segment", "{entry}");
            assert_eq!(entry["outcome"], "end of stream", "{entry}");
        }
    }
}

/// A ban of another client does not.
#[test]
fn a_ban_of_the_client_applies() {
    if !can_filter() {
        return;
    }
    let host = Host::under(STATELESS, &["--engine", "segment"]);
    let pair = host.spliced(CLIENT_PORT, &[]);
    host.nft("add element ip filter banned { 198.18.1.4 }");
    host.splice(&[&pair]);
    host.nft("add element ip filter banned { 198.18.1.2 }");
    until("it has gone back", || host.hop.are_spliced(0));
    let handle = host.handle("@banned");
    pair.near.write_number(1);
    host.nft("delete element ip filter banned { 198.18.1.2 }");
    assert_eq!(pair.far.read_number(), 1);
    pair.end();
    let why = host.logged(CLIENT_PORT, "why_engine");
    let rule = format!("packet filters: ip filter ingress handle {handle} drops");
    assert!(why.contains(&rule), "{why}");
}
