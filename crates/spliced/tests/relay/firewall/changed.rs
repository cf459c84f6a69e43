//! Rules that change while pairs are spliced.

use std::time::{Duration, Instant};

use netlab::Lab;

use super::host::{CLIENT_PORT, Host, IPV6, PORT, Pair, SERVER_PORT, can_filter, iptables};
use crate::patience::until;

/// A chain that drops all segments with one port of the client.
struct Chain {
    family: &'static str,
    hook: &'static str,
    /// The offset of the client's port in the segment.
    end: &'static str,
    does: &'static str,
    /// How the relay names the rule.
    told: &'static str,
}

/// The longest interval at which the relay reads its host's filters.
const LOOK_EVERY: Duration = Duration::from_secs(1);

const CHAINS: [Chain; 7] = [
    Chain::dropping("inet", "prerouting priority -300", "sport"),
    Chain::dropping("inet", "input priority 0", "sport"),
    Chain::dropping("ip", "output priority 0", "dport"),
    Chain::dropping("inet", "postrouting priority 0", "dport"),
    Chain::dropping("netdev", "ingress device \"to-client\" priority 0", "sport"),
    Chain::dropping("netdev", "egress device \"to-client\" priority 0", "dport"),
    Chain {
        does: "reject with tcp reset",
        told: "rejects",
        ..Chain::dropping("ip", "input priority 0", "sport")
    },
];

impl Chain {
    const fn dropping(family: &'static str, hook: &'static str, end: &'static str) -> Self {
        Self {
            family,
            hook,
            end,
            does: "drop",
            told: "drops",
        }
    }

    fn rules(&self, table: &str, port: u16) -> String {
        let Self {
            family,
            hook,
            end,
            does,
            ..
        } = self;
        format!(
            "table {family} {table} {{
                chain c {{
                    type filter hook {hook}; policy accept;
                    tcp {end} {port} {does}
                }}
            }}"
        )
    }
}

/// Checks that access log and stderr report the rule as the reason for the end of this client.
fn expect_stopped(host: &Host, port: u16, rule: &str) {
    let entry = host.entry(port);
    assert_eq!(
        entry["outcome"],
        format!("stopped: packet filters: {rule}"),
        "{entry}"
    );
    assert_eq!(entry["engine"], "segment", "{entry}");
    let told = host.hop.relay.wait_logged(rule);
    for part in [" WARN ", "would stop 1 spliced connections"] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
}

fn pairs_are_reset(engine: &str) {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", engine]);
    // No rule applies to this pair.
    let other = host.spliced(CLIENT_PORT, &[]);
    for (port, chain) in (CLIENT_PORT + 1..).zip(&CHAINS) {
        let pair = host.spliced(port, &[&other]);
        let table = format!("t{port}");
        host.nft(&chain.rules(&table, port));
        let handle = host.handle(&format!("{} {port} ", chain.end));
        pair.far.expect_reset();
        if chain.end == "sport" {
            pair.near.expect_reset();
        }
        let Chain { family, told, .. } = chain;
        expect_stopped(
            &host,
            port,
            &format!("{family} {table} c handle {handle} {told}"),
        );
    }
    // There is no notification for these.
    let port = CLIENT_PORT + 1000;
    let pair = host.spliced(port, &[&other]);
    let rule = format!("-A INPUT -p tcp --sport {port} -j DROP");
    iptables(&host.lab, "iptables-legacy", &rule);
    pair.far.expect_reset();
    pair.near.expect_reset();
    expect_stopped(&host, port, "iptables filter INPUT rule 1 drops");
    host.splice(&[&other]);
    other.end();
    assert_eq!(host.logged(CLIENT_PORT, "outcome"), "end of stream");
}

#[test]
fn pairs_of_auto_that_new_rules_would_stop_are_reset() {
    pairs_are_reset("auto");
}

#[test]
fn pairs_of_segment_that_new_rules_would_stop_are_reset() {
    pairs_are_reset("segment");
}

#[test]
fn pairs_over_ipv6_that_new_rules_would_stop_are_reset() {
    if !can_filter() {
        return;
    }
    let host = Host::prepared(IPV6, |_| {}, &["--engine", "segment"]);
    let [nft, legacy] = [CLIENT_PORT, CLIENT_PORT + 1];
    let pair = host.spliced(nft, &[]);
    // The rules for IPv4 do not apply.
    iptables(
        &host.lab,
        "iptables-legacy",
        &format!("-A INPUT -p tcp --sport {nft} -j DROP"),
    );
    host.nft(&Chain::dropping("ip", "input priority 0", "sport").rules("v4", nft));
    host.nft(&Chain::dropping("ip6", "input priority 0", "sport").rules("v6", nft));
    pair.near.expect_reset();
    pair.far.expect_reset();
    expect_stopped(&host, nft, "ip6 v6 c handle 2 drops");

    let pair = host.spliced(legacy, &[]);
    let rule = format!("-A OUTPUT -p tcp --dport {legacy} -j REJECT");
    iptables(&host.lab, "ip6tables-legacy", &rule);
    pair.far.expect_reset();
    expect_stopped(&host, legacy, "ip6tables filter OUTPUT rule 1 rejects");
}

/// A rule for the connection to the target counts like a rule for the client.
#[test]
fn a_rule_against_the_target_resets_all_pairs() {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", "segment"]);
    let one = host.spliced(CLIENT_PORT, &[]);
    let two = host.spliced(CLIENT_PORT + 1, &[&one]);
    host.nft(&format!(
        "table ip t {{ chain c {{
            type filter hook input priority 0; policy accept;
            ip saddr {} tcp sport {SERVER_PORT} drop
        }}\n}}",
        Lab::SERVER_V4
    ));
    let handle = host.handle("drop");
    one.near.expect_reset();
    two.near.expect_reset();
    let rule = format!("ip t c handle {handle} drops");
    for port in [CLIENT_PORT, CLIENT_PORT + 1] {
        let outcome = host.logged(port, "outcome");
        assert_eq!(outcome, format!("stopped: packet filters: {rule}"));
    }
    let told = host.hop.relay.wait_logged(&rule);
    assert!(told.contains("would stop 2 spliced connections"), "{told}");
}

#[test]
fn pairs_that_bypass_the_filters_continue() {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", "segment", "--bypass-firewall"]);
    let pair = host.spliced(CLIENT_PORT, &[]);
    host.nft(&CHAINS[1].rules("t", CLIENT_PORT));
    // The stack would drop all bytes.
    let start = Instant::now();
    while start.elapsed() < LOOK_EVERY * 3 / 2 {
        pair.round();
    }
    assert!(host.hop.are_spliced(1));
    assert_eq!(
        host.hop
            .relay
            .lines_logged("the packet filters have changed"),
        0
    );
}

/// Two pairs continue when a new rule logs their segments. A third one, which connects afterwards, stays in
/// the stack.
#[test]
fn pairs_continue_while_the_verdict_is_unknown() {
    const LOG: &str = "table inet t { chain c {
        type filter hook input priority 0; policy accept;
        tcp sport 2000-2002 log
    }\n}";
    const LOGGED: [u16; 3] = [CLIENT_PORT, CLIENT_PORT + 1, CLIENT_PORT + 2];
    if !can_filter() {
        return;
    }
    for engine in ["auto", "segment"] {
        let host = Host::with(&["--engine", engine]);
        let one = host.spliced(LOGGED[0], &[]);
        let two = host.spliced(LOGGED[1], &[&one]);
        host.nft(LOG);
        let rule = format!("inet t c handle {} logs", host.handle("log"));
        let told = host.hop.relay.wait_logged(&rule);
        for part in [" WARN ", ": 2 spliced connections go on past them"] {
            assert!(told.contains(part), "no {part:?} in {told:?}");
        }
        host.splice(&[&one, &two]);

        let third = host.connect(LOGGED[2]);
        // No rule applies to this pair, and it is promoted later.
        let other = host.connect(LOGGED[2] + 1);
        until("the other is spliced", || {
            if engine == "auto" {
                third.round();
            }
            [&one, &two, &other].into_iter().for_each(Pair::round);
            host.hop.are_spliced(3)
        });
        if engine == "auto" {
            third.end();
            assert_eq!(host.logged(LOGGED[2], "engine"), "copy");
        } else {
            third.near.expect_reset();
        }
        let why = host.logged(LOGGED[2], "why_engine");
        assert!(why.contains(&rule), "{why}");

        host.nft("flush chain inet t c");
        let again = "accept all spliced connections again";
        assert!(host.hop.relay.wait_logged(again).contains(" INFO "));
        let last = host.spliced(LOGGED[2] + 2, &[&one, &two, &other]);
        [one, two, other, last].into_iter().for_each(Pair::end);
        for port in [0, 1, 3, 4].map(|after| CLIENT_PORT + after) {
            assert_eq!(host.logged(port, "outcome"), "end of stream");
            assert_eq!(host.logged(port, "engine"), "segment");
        }
    }
}

/// An unknown verdict can still become a refusal.
#[test]
fn a_doubtful_pair_is_reset_by_rules_that_would_stop_it() {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", "segment"]);
    let pair = host.spliced(CLIENT_PORT, &[]);
    host.nft(
        "table inet t { chain c {
            type filter hook input priority 0; policy accept;
            log
        }\n}",
    );
    host.hop.relay.wait_logged("go on past them");
    host.nft("add rule inet t c tcp dport 8080 drop");
    pair.far.expect_reset();
    let handle = host.handle("drop");
    expect_stopped(
        &host,
        CLIENT_PORT,
        &format!("inet t c handle {handle} drops"),
    );
}

/// Connection tracking starts with the first rule that needs it.
#[test]
fn untracked_pairs_continue() {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", "segment"]);
    let old = host.spliced(CLIENT_PORT, &[]);
    host.nft(&format!(
        "table inet t {{
            chain in {{
                type filter hook input priority 0; policy drop;
                ct state established,related accept
                tcp dport {PORT} ct state new accept
            }}
        }}"
    ));
    let told = host.hop.relay.wait_logged("go on past them");
    for part in [" WARN ", ": 1 spliced connections", "inet t in "] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
    host.splice(&[&old]);
    let new = host.spliced(CLIENT_PORT + 1, &[&old]);
    old.end();
    new.end();
    for port in [CLIENT_PORT, CLIENT_PORT + 1] {
        assert_eq!(host.logged(port, "outcome"), "end of stream");
        assert_eq!(host.logged(port, "engine"), "segment");
    }
    assert_eq!(host.hop.relay.lines_logged("go on past them"), 1);
}
