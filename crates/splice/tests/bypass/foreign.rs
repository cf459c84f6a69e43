//! Filters that are no rules of nftables for IPv4 keep a connection on TCP, too.

use std::os::fd::AsFd as _;

use netlab::{Lab, Namespace, Need, available, present, program, until};
use splice_bpf::{AttachMode, Traffic, load, objects};

use crate::filters::{chain, connect_at, is_ready, nft, run, until_refused};
use crate::stage::Stage;

#[test]
fn a_rule_of_iptables_legacy_keeps_a_connection_on_tcp() {
    let missing = program("iptables-legacy").is_none();
    let missing = missing.then(|| "no iptables-legacy (apt install iptables)".into());
    if !available(Need::Root) || !present("iptables-legacy", missing) {
        return;
    }
    type Place = for<'a> fn(&'a Lab) -> &'a Namespace;
    let rows: [(Place, &str); 4] = [
        (Lab::server, "-A INPUT -p tcp --dport 7700 -j DROP"),
        (Lab::client, "-A OUTPUT -p tcp --dport 7700 -j DROP"),
        (Lab::relay, "-A FORWARD -p tcp --dport 7700 -j DROP"),
        (
            Lab::relay,
            "-t mangle -A FORWARD -p tcp --sport 7700 -j TTL --ttl-set 9",
        ),
    ];
    for (place, rule) in rows {
        let stage = Stage::new();
        let running = stage.start();
        let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
        stage.until_redirected(&mut ends);
        // Nobody is told of it.
        run(place(&stage.lab), "iptables-legacy", rule);
        until("it has left the map", || stage.status().members == 0);
        let of = stage.connection(&ends).expect("it is there");
        let why = of.filter.expect("words");
        assert!(why.contains(place(&stage.lab).name()), "{why}");
        running.stop();
    }
}

#[test]
fn rules_of_iptables_legacy_that_let_it_pass_are_no_obstacle() {
    let missing = program("iptables-legacy").is_none();
    let missing = missing.then(|| "no iptables-legacy (apt install iptables)".into());
    if !available(Need::Root) || !present("iptables-legacy", missing) {
        return;
    }
    let stage = Stage::new();
    for rule in [
        "-P FORWARD DROP",
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD -p tcp --dport 7700 -j ACCEPT",
    ] {
        run(stage.lab.relay(), "iptables-legacy", rule);
    }
    let running = stage.start();
    let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
    stage.until_redirected(&mut ends);
    running.stop();
}

#[test]
fn a_program_of_a_control_group_keeps_a_connection_on_tcp() {
    if !available(Need::Root) {
        return;
    }
    let object = load("cgroup_filter", objects::CGROUP_FILTER, |_| Ok(())).expect("loaded");
    for (group, program) in [(0, "filter_egress"), (1, "filter_ingress")] {
        let stage = Stage::new();
        let attach = || object.attach_to_cgroup(program, stage.groups[group].as_fd());
        let link = attach();
        let running = stage.start();
        let mut ends = stage.connect(Lab::SERVER_V4);
        let why = until_refused(&stage, &mut ends);
        assert!(
            why.contains(program) && why.contains("control group"),
            "{why}"
        );
        // It is looked at again.
        drop(link);
        stage.until_redirected(&mut ends);
        let link = attach();
        until("it has left the map", || stage.status().members == 0);
        drop(link);
        running.stop();
    }
}

#[test]
fn a_program_on_a_device_of_the_way_keeps_a_connection_on_tcp() {
    if !available(Need::Root) {
        return;
    }
    for mode in [AttachMode::Tcx, AttachMode::Clsact] {
        let stage = Stage::new();
        let object = load("foreign_tc", objects::FOREIGN_TC, |_| Ok(())).expect("loaded");
        let program = object.program("foreign_tc").expect("a program");
        let index = run(stage.lab.relay(), "ip", "-o link show to-server");
        let index = index.split(':').next().expect("an index");
        let index = index.parse().expect("a number");
        let attach = || {
            let relay = stage.lab.relay();
            let link = relay.enter(|| program.attach(index, Traffic::Out, mode));
            link.expect("entered").expect("attached")
        };
        let link = attach();
        let running = stage.start();
        let mut ends = stage.connect(Lab::SERVER_V4);
        let why = until_refused(&stage, &mut ends);
        assert!(why.contains("to-server"), "{why}");
        stage.lab.relay().enter(|| drop(link)).expect("entered");
        stage.until_redirected(&mut ends);
        let link = attach();
        until("it has left the map", || stage.status().members == 0);
        stage.lab.relay().enter(|| drop(link)).expect("entered");
        running.stop();
    }
}

#[test]
fn a_rule_for_ipv6_keeps_a_connection_over_ipv6_on_tcp() {
    if !is_ready() {
        return;
    }
    type Place = for<'a> fn(&'a Lab) -> &'a Namespace;
    let rows: [(Place, &str, &str); 3] = [
        (Lab::relay, "forward", "ip6 daddr 2001:2:0:2::2 drop"),
        (Lab::server, "input", "ip6 saddr 2001:2:0:1::2 drop"),
        (
            Lab::client,
            "output",
            "meta nfproto ipv6 tcp dport 7700 drop",
        ),
    ];
    for (place, hook, rule) in rows {
        let stage = Stage::new();
        if !stage.lab.has_ipv6() {
            return;
        }
        let running = stage.start();
        let mut ends = connect_at(&stage, Lab::SERVER_V6.into(), 7700, 7700);
        stage.until_redirected(&mut ends);
        // A rule for the other family is none for this one.
        let mut other = connect_at(&stage, Lab::SERVER_V4.into(), 7701, 7701);
        stage.until_redirected(&mut other);
        nft(place(&stage.lab), &chain(hook, rule));
        until("it has left the map", || stage.status().members == 2);
        let of = stage.connection(&ends).expect("it is there");
        let why = of.filter.expect("words");
        assert!(why.contains("drops"), "{why}");
        stage.until_redirected(&mut other);
        running.stop();
    }
}
