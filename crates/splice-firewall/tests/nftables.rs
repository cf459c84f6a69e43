//! Verdicts of single nftables rules on an established connection.
//!
//! A row is a rule set, `=>`, and the expected verdict: `accepts`, or `stops` or `unknown` with a part of
//! the reason. Each rule set is loaded into a namespace and judged there.

use std::io::Write;
use std::process::{Command, Stdio};

use netlab::{Namespace, Need, available};
use splice_firewall::{Connection, Device, End, Family, Filters, Verdict};

fn connection(family: Family) -> Connection {
    let [client, local] = match family {
        Family::Ipv4 => ["198.18.1.2", "198.18.1.1"],
        Family::Ipv6 => ["fd00:1::2", "fd00:1::1"],
    };
    let end = |address: &str, port| End {
        address: Some(address.parse().expect("an address")),
        port: Some(port),
    };
    Connection {
        family,
        local: end(local, 8080),
        peer: end(client, 50_000),
        device: Some(Device {
            index: 1,
            name: "lo".into(),
            // Not the index of lo, since the peer is remote.
            hardware_type: 1,
        }),
        accepted: true,
        tracked: true,
        opening: false,
    }
}

fn load(rules: &str) {
    // nft requires a newline after a closing brace.
    let lines = rules
        .replace("; }", ";\n}\n")
        .replace("} chain", "}\nchain");
    let mut nft = Command::new("nft")
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft");
    let mut input = nft.stdin.take().expect("its input");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    assert!(nft.wait().expect("it ends").success(), "{rules}");
}

fn judge_each(connection: &Connection, rows: impl IntoIterator<Item = (String, &'static str)>) {
    if !available(Need::Netns) || !available(Need::Nft) {
        return;
    }
    let rows: Vec<_> = rows.into_iter().collect();
    assert!(!rows.is_empty());
    let namespace = Namespace::new("nftables").expect("a namespace");
    let judge = || {
        for (rules, expected) in rows {
            load(&format!("flush ruleset\n{rules}"));
            let verdict = Filters::read().expect("the rules").judge(connection);
            let reason = verdict
                .reason()
                .map(ToString::to_string)
                .unwrap_or_default();
            let kind = match verdict {
                Verdict::Accepts => "accepts",
                Verdict::Stops(_) => "stops",
                Verdict::Unknown(_) => "unknown",
            };
            let (wanted, part) = expected.split_once(' ').unwrap_or((expected, ""));
            assert!(
                kind == wanted && reason.contains(part),
                "{rules}\nexpected: {expected}\nfound: {kind} {reason}"
            );
        }
    };
    namespace.enter(judge).expect("in the namespace");
}

/// Rows whose left side `whole` turns into a rule set.
fn rows(
    text: &'static str,
    whole: impl Fn(&str) -> String,
) -> impl Iterator<Item = (String, &'static str)> {
    text.lines().filter_map(move |line| {
        let (rules, expected) = line.rsplit_once("=>")?;
        Some((whole(rules.trim()), expected.trim()))
    })
}

/// An input chain with one rule and the policy accept.
fn in_input(rule: &str) -> String {
    format!(
        "table inet t {{ chain c {{ type filter hook input priority 0; policy accept; {rule}; }} }}"
    )
}

/// A table of family ip.
fn in_table(content: &str) -> String {
    format!("table ip t {{ {content} }}")
}

#[test]
fn a_rule_for_ipv4_has_its_verdict() {
    const ROWS: &str = r#"
        drop                                        => stops inet t c handle 2 drops
        reject                                      => stops rejects
        counter                                     => accepts
        log                                         => unknown logs
        log drop                                    => stops drops
        limit rate 5/second accept                  => unknown limits a rate
        limit rate over 5/second drop               => unknown limits a rate
        quota 10 mbytes drop                        => unknown quota
        ct count over 5 drop                        => unknown limits a number of connections
        ip saddr 198.18.1.2 drop                    => stops drops
        ip saddr 198.18.1.3 drop                    => accepts
        ip saddr != 198.18.1.3 drop                 => stops drops
        ip saddr 198.18.0.0/16 drop                 => stops drops
        ip saddr 198.19.0.0/16 drop                 => accepts
        ip saddr { 198.18.1.2, 10.0.0.1 } drop      => stops drops
        ip saddr { 198.18.1.3, 10.0.0.1 } drop      => accepts
        ip saddr { 198.18.1.0/30, 10.0.0.0/8 } drop => stops drops
        ip saddr { 198.18.1.0/31, 198.18.1.3-198.18.1.9 } drop => accepts
        ip saddr != { 198.18.1.0/30, 10.0.0.0/8 } drop => accepts
        ip6 saddr ::/0 drop                         => accepts
        meta nfproto ipv6 drop                      => accepts
        tcp dport 8080 drop                         => stops drops
        tcp dport 8081 drop                         => accepts
        tcp dport 8000-9000 drop                    => stops drops
        tcp dport != 8000-9000 drop                 => accepts
        tcp dport < 8080 drop                       => accepts
        tcp dport <= 8080 drop                      => stops drops
        tcp dport > 8079 drop                       => stops drops
        tcp dport >= 8081 drop                      => accepts
        tcp dport { 22, 80-90, 8080 } drop          => stops drops
        tcp dport { 22, 80-90, 8081-9000 } drop     => accepts
        udp dport 8080 drop                         => accepts
        meta l4proto { tcp, udp } th dport 8080 drop => stops drops
        ip protocol icmp drop                       => accepts
        tcp flags syn drop                          => accepts
        tcp flags & (fin|syn|rst|ack) == syn drop   => accepts
        tcp flags & (fin|syn|rst|psh|ack|urg) == 0x0 drop => accepts
        tcp flags & (fin|psh) == fin|psh drop       => unknown may apply: it drops
        tcp flags syn tcp option maxseg size set 1400 => accepts
        tcp option maxseg size 1-500 drop           => unknown may apply
        ct state established accept; drop           => accepts
        ct state { established, related } accept; drop => accepts
        ct state vmap { established : accept, invalid : drop }; drop => accepts
        ct state invalid drop                       => accepts
        ct state new drop                           => accepts
        ct state untracked drop                     => accepts
        ct status dnat drop                         => unknown may apply
        ct direction reply drop                     => accepts
        ct direction original drop                  => stops drops
        ct mark 1 drop                              => unknown may apply
        ct mark set 1                               => unknown connection tracking
        meta mark 1 drop                            => accepts
        meta mark set 1                             => unknown sets a mark
        meta nftrace set 1                          => unknown traces
        ip dscp set cs1                             => unknown changes the packet
        ip dscp cs1 drop                            => unknown may apply
        ip ttl 1 drop                               => unknown may apply
        ip frag-off & 0x1fff != 0 drop              => accepts
        iif lo drop                                 => stops drops
        iifname "lo" drop                           => stops drops
        iifname "l*" drop                           => stops drops
        iifname "eth*" drop                         => accepts
        iifname { "eth0", "lo" } drop               => stops drops
        oifname "lo" drop                           => accepts
        iifname . tcp dport { "lo" . 8080 } drop    => stops drops
        iifname . tcp dport { "lo" . 8081 } drop    => accepts
        ip saddr . tcp dport { 198.18.0.0/16 . 8000-8100 } drop => stops drops
        ip saddr . tcp dport { 198.18.0.0/16 . 8081-8100 } drop => accepts
        tcp dport vmap { 22 : accept, 8080 : drop } => stops drops
        tcp dport vmap { 22 : drop, * : accept }; drop => accepts
        meta skuid 0 drop                           => unknown may apply
        meta cpu 1 drop                             => unknown may apply
        numgen random mod 2 0 drop                  => unknown numgen
        jhash ip saddr mod 2 0 drop                 => unknown hash
        fib daddr type local drop                   => stops drops
        fib daddr type broadcast drop               => accepts
        fib saddr . iif oif missing drop            => accepts
        meta pkttype broadcast drop                 => accepts
        ip length > 100 drop                        => unknown may apply
        meta length > 100 drop                      => unknown may apply
        socket transparent 1 drop                   => unknown may apply
        rt ipsec exists drop                        => accepts
        ip option lsrr exists drop                  => accepts
        return; drop                                => accepts
        accept; drop                                => accepts
        tcp dport 8080 continue drop                => stops drops
        tcp dport vmap { 8080 : continue } drop     => stops drops
        tcp dport vmap { 8080 : continue, 80 : drop } counter => accepts
    "#;
    judge_each(&connection(Family::Ipv4), rows(ROWS, in_input));
}

#[test]
fn a_rule_for_ipv6_has_its_verdict() {
    const ROWS: &str = r"
        ip6 saddr fd00:1::2 drop                    => stops drops
        ip6 saddr fd00:1::/64 drop                  => stops drops
        ip6 saddr fd00:2::/64 drop                  => accepts
        ip6 saddr { fd00:1::/64, fd00:3::1 } drop   => stops drops
        ip saddr 0.0.0.0/0 drop                     => accepts
        ip6 nexthdr tcp drop                        => stops drops
        meta nfproto ipv6 drop                      => stops drops
        icmpv6 type nd-router-advert drop           => accepts
        exthdr rt exists drop                       => accepts
        rt type 0 drop                              => accepts
        meta nfproto ipv6 fib saddr . mark . iif oif missing drop => accepts
    ";
    judge_each(&connection(Family::Ipv6), rows(ROWS, in_input));
}

#[test]
fn a_chain_counts_only_at_hooks_that_the_connection_passes() {
    const ROWS: &str = r"
        table ip t { chain c { type filter hook input priority 0; policy drop; } } => stops ip t c policy drops
        table ip t { chain c { type filter hook output priority 0; tcp sport 8080 drop; } } => stops drops
        table ip t { chain c { type route hook output priority 0; tcp sport 8080 drop; } } => stops drops
        table ip t { chain c { type filter hook postrouting priority 0; ip daddr 198.18.1.2 drop; } } => stops drops
        table ip t { chain c { type filter hook prerouting priority 0; ip saddr 198.18.1.2 drop; } } => stops drops
        table ip t { chain c { type filter hook forward priority 0; policy drop; } } => accepts
        table ip t { chain c { type nat hook prerouting priority -100; tcp dport 8080 redirect to :80; } } => accepts
        table ip6 t { chain c { type filter hook input priority 0; policy drop; } } => accepts
        table arp t { chain c { type filter hook input priority 0; policy drop; } } => accepts
        table bridge t { chain c { type filter hook input priority 0; policy drop; } } => accepts
        table netdev t { chain c { type filter hook ingress device lo priority 0; ip saddr 198.18.1.2 drop; } } => stops netdev t c
        table netdev t { chain c { type filter hook egress device lo priority 0; ip daddr 198.18.1.2 drop; } } => stops netdev t c
        table inet t { chain c { type filter hook ingress device lo priority 0; tcp dport 8080 drop; } } => stops inet t c
        table ip t { flags dormant; chain c { type filter hook input priority 0; policy drop; } } => accepts
        table ip t { chain c { type filter hook prerouting priority -300; ct state established accept; drop; } } => unknown may apply
        table ip t { chain c { type filter hook prerouting priority -300; tcp dport 8080 notrack; } } => unknown connection tracking
        table ip t { chain c { type filter hook prerouting priority -150; tcp dport 8080 tproxy to :1; } } => stops diverts
        table ip t { chain a { type filter hook input priority 0; accept; } chain b { type filter hook input priority 1; drop; } } => stops ip t b
    ";
    judge_each(&connection(Family::Ipv4), rows(ROWS, str::to_string));
}

/// Rules that the connection does not pass, but its packets may have passed, may set marks.
#[test]
fn a_mark_that_another_rule_may_set_is_unknown() {
    const ROWS: &str = r"
        table inet t { chain c { type filter hook input priority 0; meta mark 7 drop; } } => accepts
        table bridge b { chain c { type filter hook prerouting priority 0; meta mark set 7; } } table inet t { chain c { type filter hook input priority 0; meta mark 7 drop; } } => unknown may apply
        table netdev n { chain c { type filter hook ingress device nothere priority 0; meta mark set 7; } } table inet t { chain c { type filter hook input priority 0; meta mark 7 drop; } } => unknown may apply
        table ip n { chain d { meta mark set 7; } chain c { type nat hook prerouting priority -100; jump d; } } table inet t { chain c { type filter hook input priority 0; meta mark 7 drop; } } => accepts
    ";
    let ifb = |rules: &str| {
        rules
            .replace("} table", "}\ntable")
            .replace("nothere", "lo")
    };
    let elsewhere = || {
        let mut connection = connection(Family::Ipv4);
        if let Some(device) = &mut connection.device {
            (device.index, device.name) = (2, "eth0".into());
        }
        connection
    };
    judge_each(&elsewhere(), rows(ROWS, ifb));
    // The peer is a socket of this host, and may have SO_MARK.
    let mut on_loopback = connection(Family::Ipv4);
    if let Some(device) = &mut on_loopback.device {
        device.hardware_type = 772;
    }
    let rule = "meta mark 7 drop => unknown may apply";
    judge_each(&on_loopback, rows(rule, in_input));
}

/// A connection that is older than the first conntrack rule would be translated like a new one.
#[test]
fn an_untracked_connection_may_be_translated() {
    const ROWS: &str = "
        chain c { type nat hook prerouting priority -100; tcp dport 80 redirect to :81; } => unknown address translation
        chain c { type filter hook prerouting priority 0; } => accepts
    ";
    let mut untracked = connection(Family::Ipv4);
    untracked.tracked = false;
    judge_each(&untracked, rows(ROWS, in_table));
}

#[test]
fn jumps_gotos_and_returns_are_followed() {
    const ROWS: &str = r"
        chain d { drop; } chain c { type filter hook input priority 0; tcp dport 8080 jump d; } => stops ip t d handle
        chain d { tcp dport 80 drop; } chain c { type filter hook input priority 0; jump d; accept; } => accepts
        chain d { return; drop; } chain c { type filter hook input priority 0; policy drop; jump d; accept; } => accepts
        chain d { counter; } chain c { type filter hook input priority 0; policy drop; goto d; accept; } => stops ip t c policy drops
        chain d { drop; } chain c { type filter hook input priority 0; ip ttl 3 jump d; accept; } => unknown ip t d
        chain d { drop; } chain c { type filter hook input priority 0; tcp dport vmap { 1-100 : drop, 8080-8090 : goto d }; accept; } => stops ip t d
        chain c { type filter hook input priority 0; policy drop; ip ttl 3 accept; ip ttl != 3 accept; } => unknown ip t c policy
        chain c { type filter hook input priority 0; tcp dport 8080 jump { ip saddr 198.18.1.2 drop; }; } => stops drops
    ";
    judge_each(&connection(Family::Ipv4), rows(ROWS, in_table));
}

#[test]
fn named_sets_are_looked_up_and_named_objects_are_effects() {
    const ROWS: &str = r"
        set s { type ipv4_addr; elements = { 198.18.1.2 }; } chain c { type filter hook input priority 0; ip saddr @s drop; } => stops drops
        set s { type ipv4_addr; } chain c { type filter hook input priority 0; ip saddr @s drop; } => accepts
        set s { type ipv4_addr; flags timeout; elements = { 198.18.1.2 timeout 1h }; } chain c { type filter hook input priority 0; ip saddr @s drop; } => unknown may apply: it drops
        set s { type ipv4_addr; flags timeout; elements = { 198.18.1.3 timeout 1h }; } chain c { type filter hook input priority 0; ip saddr @s drop; } => accepts
        set s { type ipv4_addr; size 99; flags dynamic; } chain c { type filter hook input priority 0; ip saddr @s drop; } => unknown may apply: it drops
        set s { type ipv4_addr; size 99; flags dynamic,timeout; timeout 1m; } chain c { type filter hook input priority 0; add @s { ip saddr }; } => unknown changes a set
        set s { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/8, 198.18.1.0-198.18.1.9 }; } chain c { type filter hook input priority 0; ip saddr @s drop; } => stops drops
        set s { type ipv4_addr; counter; elements = { 198.18.1.2 counter packets 0 bytes 0 }; } chain c { type filter hook input priority 0; ip saddr @s accept; drop; } => accepts
        map m { type inet_service : verdict; elements = { 8080 : drop }; } chain c { type filter hook input priority 0; tcp dport vmap @m; } => stops drops
        map m { type inet_service : mark; elements = { 8080 : 7 }; } chain c { type filter hook input priority 0; meta mark set tcp dport map @m; } => unknown sets a mark
        set s { type ipv4_addr; } chain c { type filter hook input priority 0; tcp dport 9001 add @s { ip saddr }; ip saddr @s drop; } => unknown may apply: it drops
        set s { type ipv4_addr; elements = { 198.18.1.2 }; } chain c { type filter hook input priority 0; tcp dport 9001 delete @s { ip saddr }; ip saddr @s accept; drop; } => unknown may apply: it drops
        counter n { } chain c { type filter hook input priority 0; counter name n; } => unknown named object
        quota n { 5 mbytes } chain c { type filter hook input priority 0; quota name n drop; } => unknown named object
    ";
    judge_each(&connection(Family::Ipv4), rows(ROWS, in_table));
}

/// With an unknown client address a rule for some clients is unknown, a rule for all or none is not.
#[test]
fn a_connection_with_an_unknown_peer_is_judged_by_its_local_end() {
    const ROWS: &str = r"
        ip saddr 198.18.1.2 drop                           => unknown may apply
        ip saddr { 198.18.1.2, 198.18.1.3 } drop           => unknown may apply
        ip saddr . tcp dport { 198.18.1.2 . 22 } drop      => accepts
        ip saddr . tcp dport { 198.18.1.2 . 8080 } drop    => unknown may apply
        tcp dport 8080 drop                                => stops drops
        tcp dport 8081 ip saddr 198.18.1.2 drop            => accepts
        ip saddr 0.0.0.0/0 drop                            => stops drops
    ";
    let mut anyone = connection(Family::Ipv4);
    anyone.peer = End::default();
    judge_each(&anyone, rows(ROWS, in_input));
}
