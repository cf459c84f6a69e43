//! Rules that change while pairs are spliced: these go back to their sockets, and the rules apply as they do to copied ones.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use netlab::Lab;

use super::host::{CLIENT_PORT, Host, IPV6, PORT, Pair, SERVER_PORT, can_filter, iptables, run};
use crate::patience::until;
use crate::peer::{Over, exchange_until};

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
                    tcp {end} {port} counter {does}
                }}
            }}"
        )
    }

    /// The client's segments meet it, not those to the client.
    fn is_met_by_client(&self) -> bool {
        self.end == "sport"
    }
}

/// A pair that the engine has taken.
fn taken(host: &Host, engine: &str, port: u16, beside: &[&Pair]) -> Pair {
    if engine == "copy" {
        let pair = host.connect(port);
        pair.round();
        return pair;
    }
    host.spliced(port, beside)
}

/// Waits until only so many are spliced.
fn until_spliced(host: &Host, engine: &str, pairs: usize) {
    if engine != "copy" {
        until("the others have gone back", || host.hop.are_spliced(pairs));
    }
}

/// How many packets the only rule with a counter has met.
fn counted(host: &Host) -> u64 {
    let list = || run("nft", &["list", "ruleset"], "");
    let rules = host.lab.relay().enter(list).expect("entered");
    let (_, after) = rules.split_once("counter packets ").expect("a counter");
    let number = after.split(' ').next().expect("a number");
    number.parse().expect("a number")
}

/// The same for the first rule of a chain of iptables-legacy.
fn counted_by_legacy(host: &Host, program: &str, chain: &str) -> u64 {
    let list = || run(program, &["-nvxL", chain, "1"], "");
    let rule = host.lab.relay().enter(list).expect("entered");
    let number = rule.split_ascii_whitespace().next().expect("a rule");
    number.parse().expect("a number")
}

/// The rule drops what one end sends, which arrives once the rule is gone.
fn expect_dropped(
    pair: &Pair,
    from_client: bool,
    counted: impl Fn() -> u64,
    forgive: impl FnOnce(),
) {
    let [from, to] = match from_client {
        true => [&pair.near, &pair.far],
        false => [&pair.far, &pair.near],
    };
    let before = counted();
    from.write_number(3);
    until("the rule drops it", || counted() > before);
    assert!(!to.is_readable_within(Duration::ZERO));
    forgive();
    assert_eq!(to.read_number(), 3);
    pair.round();
}

/// Checks that access log and stderr name the rule as the reason for which this client's pair has gone back, and that it
/// ended in order.
fn expect_gone_back(host: &Host, engine: &str, port: u16, rule: &str) {
    let entry = host.entry(port);
    assert_eq!(entry["outcome"], "end of stream", "{entry}");
    if engine == "copy" {
        return;
    }
    let why = entry["why_engine"].as_str().expect("text");
    let expected = format!("gave the pair back: packet filters: {rule};");
    assert!(why.contains(&expected), "{entry}");
    let told = host.hop.relay.wait_logged(rule);
    for part in [" WARN ", "to the network stack, where the filters apply"] {
        assert!(told.contains(part), "no {part:?} in {told:?}");
    }
}

fn new_rules_apply(engine: &str) {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", engine]);
    // No rule applies to this pair.
    let other = taken(&host, engine, CLIENT_PORT, &[]);
    for (port, chain) in (CLIENT_PORT + 1..).zip(&CHAINS) {
        let pair = taken(&host, engine, port, &[&other]);
        let table = format!("t{port}");
        host.nft(&chain.rules(&table, port));
        let handle = host.handle(&format!("{} {port} ", chain.end));
        until_spliced(&host, engine, 1);
        let Chain { family, told, .. } = chain;
        let forgive = || host.nft(&format!("delete table {family} {table}"));
        if chain.does != "drop" {
            // The answer to the question of a socket that has come back may be rejected already.
            let _ = pair.near.try_write_number(3);
            until("the client is reset", || pair.near.was_reset());
            forgive();
            continue;
        }
        expect_dropped(&pair, chain.is_met_by_client(), || counted(&host), forgive);
        pair.end();
        let rule = format!("{family} {table} c handle {handle} {told}");
        expect_gone_back(&host, engine, port, &rule);
    }
    // There is no notification for these.
    let port = CLIENT_PORT + 1000;
    let pair = taken(&host, engine, port, &[&other]);
    let rule = format!("INPUT -p tcp --sport {port} -j DROP");
    iptables(&host.lab, "iptables-legacy", &format!("-A {rule}"));
    until_spliced(&host, engine, 1);
    expect_dropped(
        &pair,
        true,
        || counted_by_legacy(&host, "iptables-legacy", "INPUT"),
        || iptables(&host.lab, "iptables-legacy", &format!("-D {rule}")),
    );
    pair.end();
    expect_gone_back(&host, engine, port, "iptables filter INPUT rule 1 drops");
    other.round();
    other.end();
    let expected = if engine == "copy" { "copy" } else { "segment" };
    assert_eq!(host.logged(CLIENT_PORT, "engine"), expected);
}

#[test]
fn new_rules_apply_to_copied_pairs() {
    new_rules_apply("copy");
}

#[test]
fn new_rules_apply_to_pairs_of_auto() {
    new_rules_apply("auto");
}

#[test]
fn new_rules_apply_to_pairs_of_segment() {
    new_rules_apply("segment");
}

fn new_rules_apply_over_ipv6(engine: &str) {
    if !can_filter() {
        return;
    }
    let host = Host::prepared(IPV6, |_| {}, &["--engine", engine]);
    let [nft, legacy] = [CLIENT_PORT, CLIENT_PORT + 1];
    let pair = taken(&host, engine, nft, &[]);
    // The rules for IPv4 do not apply.
    iptables(
        &host.lab,
        "iptables-legacy",
        &format!("-A INPUT -p tcp --sport {nft} -j DROP"),
    );
    host.nft(&Chain::dropping("ip", "input priority 0", "sport").rules("v4", nft));
    host.nft("delete table ip v4");
    host.nft(&Chain::dropping("ip6", "input priority 0", "sport").rules("v6", nft));
    until_spliced(&host, engine, 0);
    let forgive = || host.nft("delete table ip6 v6");
    expect_dropped(&pair, true, || counted(&host), forgive);
    pair.end();
    expect_gone_back(&host, engine, nft, "ip6 v6 c handle 2 drops");

    let pair = taken(&host, engine, legacy, &[]);
    let rule = format!("OUTPUT -p tcp --dport {legacy} -j DROP");
    iptables(&host.lab, "ip6tables-legacy", &format!("-A {rule}"));
    until_spliced(&host, engine, 0);
    expect_dropped(
        &pair,
        false,
        || counted_by_legacy(&host, "ip6tables-legacy", "OUTPUT"),
        || iptables(&host.lab, "ip6tables-legacy", &format!("-D {rule}")),
    );
    pair.end();
    expect_gone_back(
        &host,
        engine,
        legacy,
        "ip6tables filter OUTPUT rule 1 drops",
    );
}

#[test]
fn new_rules_apply_to_copied_pairs_over_ipv6() {
    new_rules_apply_over_ipv6("copy");
}

#[test]
fn new_rules_apply_to_pairs_of_auto_over_ipv6() {
    new_rules_apply_over_ipv6("auto");
}

/// A rule for the connection to the target counts like a rule for the client.
#[test]
fn a_rule_against_the_target_sends_all_pairs_back() {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", "segment"]);
    let one = host.spliced(CLIENT_PORT, &[]);
    let two = host.spliced(CLIENT_PORT + 1, &[&one]);
    host.nft(&format!(
        "table ip t {{ chain c {{
            type filter hook input priority 0; policy accept;
            ip saddr {} tcp sport {SERVER_PORT} counter drop
        }}\n}}",
        Lab::SERVER_V4
    ));
    let rule = format!("ip t c handle {} drops", host.handle("drop"));
    until_spliced(&host, "segment", 0);
    let told = host.hop.relay.wait_logged(&rule);
    assert!(told.contains(": 2 spliced connections go back"), "{told}");
    let before = counted(&host);
    two.far.write_number(5);
    until("the rule drops it", || counted(&host) > before);
    assert!(!two.near.is_readable_within(Duration::ZERO));
    host.nft("delete table ip t");
    assert_eq!(two.near.read_number(), 5);
    for (port, pair) in (CLIENT_PORT..).zip([one, two]) {
        pair.round();
        pair.end();
        expect_gone_back(&host, "segment", port, &rule);
    }
}

/// With full streams: no byte is lost, and none comes twice.
fn full_streams_survive_a_rule(engine: &str) {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", engine]);
    let pairs = [CLIENT_PORT, CLIENT_PORT + 1].map(|port| host.connect(port));
    if engine != "copy" {
        host.splice(&pairs.each_ref());
    }
    let has_dropped = AtomicBool::new(false);
    thread::scope(|scope| {
        let over = Over(&has_dropped);
        for (number, pair) in (0..).zip(&pairs) {
            let is_over = &has_dropped;
            scope.spawn(move || exchange_until(is_over, &pair.near, &pair.far, number));
        }
        host.nft(
            "table inet t { chain c {
                type filter hook input priority 0; policy accept;
                meta l4proto tcp counter drop
            }\n}",
        );
        until_spliced(&host, engine, 0);
        until("the rule drops segments", || counted(&host) > 0);
        host.nft("delete table inet t");
        drop(over);
    });
    drop(pairs);
    for port in [CLIENT_PORT, CLIENT_PORT + 1] {
        expect_gone_back(&host, engine, port, "inet t c handle 2 drops");
    }
}

#[test]
fn full_streams_of_copied_pairs_survive_a_rule() {
    full_streams_survive_a_rule("copy");
}

#[test]
fn full_streams_of_auto_survive_a_rule() {
    full_streams_survive_a_rule("auto");
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

/// Two pairs go back when a new rule logs their segments, and go on. A third one, which connects afterwards, stays in
/// the stack.
#[test]
fn pairs_go_back_when_a_rule_has_a_side_effect() {
    const LOG: &str = "table inet t { chain c {
        type filter hook input priority 0; policy accept;
        tcp sport 2000-2002 counter log
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
        until_spliced(&host, engine, 0);
        let told = host.hop.relay.wait_logged(&rule);
        for part in [" WARN ", ": 2 spliced connections go back"] {
            assert!(told.contains(part), "no {part:?} in {told:?}");
        }
        for pair in [&one, &two] {
            let before = counted(&host);
            pair.round();
            assert!(counted(&host) > before);
        }
        let third = host.connect(LOGGED[2]);
        // No rule applies to this pair, and it is promoted later.
        let other = host.connect(LOGGED[2] + 1);
        until("the other is spliced", || {
            if engine == "auto" {
                third.round();
            }
            [&one, &two, &other].into_iter().for_each(Pair::round);
            host.hop.are_spliced(1)
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
        let last = host.spliced(LOGGED[2] + 2, &[&other]);
        [one, two, other, last].into_iter().for_each(Pair::end);
        for port in [0, 1] {
            expect_gone_back(&host, engine, LOGGED[port], &rule);
        }
        for port in [3, 4].map(|after| CLIENT_PORT + after) {
            assert_eq!(host.logged(port, "outcome"), "end of stream");
            assert_eq!(host.logged(port, "engine"), "segment");
        }
    }
}

/// Connection tracking starts with the first rule that needs it, and takes up the connections that are there.
fn untracked_pairs_go_on(engine: &str) {
    if !can_filter() {
        return;
    }
    let host = Host::with(&["--engine", engine]);
    let old = taken(&host, engine, CLIENT_PORT, &[]);
    host.nft(&format!(
        "table inet t {{
            chain in {{
                type filter hook input priority 0; policy drop;
                ct state established,related accept
                tcp dport {PORT} ct state new accept
            }}
        }}"
    ));
    until_spliced(&host, engine, 0);
    if engine != "copy" {
        host.hop
            .relay
            .wait_logged(": 1 spliced connection goes back");
    }
    old.round();
    let new = taken(&host, engine, CLIENT_PORT + 1, &[]);
    for (port, pair) in (CLIENT_PORT..).zip([old, new]) {
        pair.end();
        assert_eq!(host.logged(port, "outcome"), "end of stream");
    }
    if engine != "copy" {
        assert_eq!(host.logged(CLIENT_PORT + 1, "engine"), "segment");
    }
}

#[test]
fn untracked_copied_pairs_go_on() {
    untracked_pairs_go_on("copy");
}

#[test]
fn untracked_pairs_of_segment_go_on() {
    untracked_pairs_go_on("segment");
}
