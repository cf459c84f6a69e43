//! What the relay logs about the packet filters when it starts.

use super::host::{CLIENT_PORT, Host, can_filter};

fn chain(rule: &str) -> String {
    format!(
        "table ip t {{ chain c {{
            type filter hook input priority 0; policy accept;
            {rule}
        }}\n}}"
    )
}

#[test]
fn a_rule_against_all_clients_is_logged_at_the_start() {
    if !can_filter() {
        return;
    }
    for (rule, whom) in [
        ("tcp dport 8080 drop", "clients over IPv4"),
        ("tcp sport 9090 drop", "the target"),
    ] {
        for engine in ["auto", "segment"] {
            let host = Host::under(&chain(rule), &["--engine", engine]);
            let told = host.hop.relay.wait_logged("segment is not used");
            let handle = host.handle("drop");
            for part in [
                " WARN ".into(),
                format!("for connections with {whom}, "),
                format!("ip t c handle {handle} drops"),
                "--bypass-firewall".into(),
            ] {
                assert!(told.contains(&part), "no {part:?} in {told:?}");
            }
        }
    }
}

#[test]
fn a_rule_against_some_clients_is_logged_as_info_at_the_start() {
    if !can_filter() {
        return;
    }
    let host = Host::under(&chain("ip saddr 198.18.1.3 drop"), &["--engine", "auto"]);
    let told = host
        .hop
        .relay
        .wait_logged("may be copied and not spliced, because of the packet filters");
    let handle = host.handle("drop");
    for part in [
        " INFO ".into(),
        "some connections with clients over IPv4 may".into(),
        format!("ip t c handle {handle} "),
    ] {
        assert!(told.contains(&part), "no {part:?} in {told:?}");
    }
    // The rule is about another client.
    host.spliced(CLIENT_PORT, &[]).end();
}

#[test]
fn bypassed_and_irrelevant_rules_are_not_logged() {
    if !can_filter() {
        return;
    }
    for (rules, options, lines) in [
        // One line: the filters are bypassed.
        (chain("log"), &["--bypass-firewall"][..], 1),
        (chain("udp dport 53 drop"), &[], 0),
        // Neither a port of the relay nor a source port of its connections.
        (chain("tcp dport 22 drop"), &[], 0),
    ] {
        let mut host = Host::under(&rules, options);
        host.spliced(CLIENT_PORT, &[]).end();
        host.hop.relay.terminate();
        assert_eq!(host.hop.relay.lines_logged("packet filter"), lines);
    }
}
