//! A rule set for measurements.

use std::fmt::Write;
use std::time::Instant;

use splice_firewall::{Filters, Verdict};

/// A thousand rules for `nft -f` that accept a connection between 198.18.1.2 and port 8080 of 198.18.1.1. Most
/// of them have to be evaluated: they test ports, addresses, devices and sets, also in chains that are jumped
/// to. No rule accepts established connections before them.
pub(crate) fn thousand_rules() -> String {
    let mut rules = String::from("table inet thousand {\n");
    let mut chains = String::new();
    let mut input = String::new();
    // Writing to a string cannot fail.
    for n in 0..50 {
        let _ = writeln!(
            rules,
            "set s{n} {{ type ipv4_addr; flags interval; elements = {{ {} }}; }}",
            (0..20)
                .map(|m| format!("198.19.{n}.{}-198.19.{n}.{}", 10 * m, 10 * m + 4))
                .collect::<Vec<_>>()
                .join(", ")
        );
        // 20 rules for each n: 6 in a chain, and 14 in the base chain.
        let _ = writeln!(chains, "chain c{n} {{");
        for m in 0..3 {
            let _ = writeln!(chains, "ip saddr 198.19.{n}.{m} tcp dport 8080 drop");
        }
        let _ = writeln!(chains, "ip6 saddr fd00:{n:x}::/32 drop");
        let _ = writeln!(chains, "tcp dport {{ {}, {} }} drop", 20000 + n, 30000 + n);
        let _ = writeln!(chains, "tcp sport {} return\n}}", 1000 + n);
        let _ = writeln!(input, "ip saddr @s{n} counter drop");
        let _ = writeln!(input, "iifname \"wan{n}\" drop");
        let _ = writeln!(input, "ip protocol tcp jump c{n}");
        for m in 0..7 {
            let _ = writeln!(input, "tcp dport {} drop", 9000 + 10 * n + m);
        }
        for m in 0..4 {
            let _ = writeln!(input, "ip saddr 198.19.{}.0/24 reject", 4 * n + m);
        }
    }
    let base = "type filter hook input priority filter; policy accept;";
    let _ = writeln!(rules, "{chains}chain input {{ {base}\n{input}}}\n}}");
    rules
}

#[test]
fn the_rule_set_has_a_thousand_rules_and_loads() {
    if !crate::can_run() {
        return;
    }
    let rules = thousand_rules();
    let text = format!(
        "expect accepted 198.18.1.2:50000 -> 198.18.1.1:8080 on eth0: accepts\n\
         expect accepted 198.18.1.2:50001 -> 198.18.1.1:9496 on eth0: \
         stops at inet thousand input: drops\n\
         [nft]\n{rules}"
    );
    let fixture = crate::fixture::Fixture::parse(&text);
    crate::truth::holds_for("thousand rules", &fixture);
    let host = crate::host::Host::new(&fixture);
    host.load_all(&fixture, crate::fixture::Backend::Nft);
    let listed = host.output("nft", &["-a", "list", "ruleset"]);
    let is_rule = |line: &&str| {
        let other = ["table ", "chain ", "set "];
        line.contains("# handle ") && !other.iter().any(|word| line.trim().starts_with(word))
    };
    assert_eq!(listed.lines().filter(is_rule).count(), 1000);
    crate::verdict::is_as_expected_for("thousand rules", &fixture);
}

/// `cargo test --release -p splice-firewall --test known_hosts -- --ignored --nocapture cost`
#[test]
#[ignore = "a figure: what a pair pays for being judged by a thousand rules"]
fn the_cost_of_a_judgement() {
    const JUDGEMENTS: u32 = 1000;
    const ROUNDS: u32 = 20;
    let text = format!(
        "expect accepted 198.18.1.2:50000 -> 198.18.1.1:8080 on eth0: accepts\n[nft]\n{}",
        thousand_rules()
    );
    let fixture = crate::fixture::Fixture::parse(&text);
    let host = crate::host::Host::new(&fixture);
    host.load_all(&fixture, crate::fixture::Backend::Nft);
    let measure = || {
        let before = Instant::now();
        let filters = Filters::read().expect("the rules");
        println!("to read them takes {:?}", before.elapsed());
        let connection = fixture.expectations[0].connection(1);
        let of_round = |_| {
            let before = Instant::now();
            for _ in 0..JUDGEMENTS {
                assert_eq!(filters.judge(&connection), Verdict::Accepts);
            }
            before.elapsed() / JUDGEMENTS
        };
        let mut rounds: Vec<_> = (0..ROUNDS).map(of_round).collect();
        rounds.sort();
        println!(
            "to judge one connection takes {:?} (median), {:?} at best",
            rounds[rounds.len() / 2],
            rounds[0]
        );
    };
    host.namespace.enter(measure).expect("entered");
}
