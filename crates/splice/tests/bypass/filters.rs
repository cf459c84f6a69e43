//! Filters and shapers on the way keep a connection on TCP.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::process::Stdio;
use std::time::Duration;

use netlab::{Lab, Namespace, Need, available, until, until_found};
use splice::bypass::{Options, Reason, State};

use crate::random::Random;
use crate::stage::{Ends, Running, Stage, connect_to};

/// Loads rules of nftables.
pub(crate) fn nft(namespace: &Namespace, rules: &str) {
    let mut command = namespace.command("nft");
    let mut nft = command
        .args(["-f", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("nft");
    let mut input = nft.stdin.take().expect("its input");
    // nft requires a newline after a closing brace.
    let lines = rules.replace("; }", ";\n}\n");
    input.write_all(lines.as_bytes()).expect("it reads");
    drop(input);
    assert!(nft.wait().expect("it ends").success(), "{rules}");
}

/// What a command in a namespace prints.
pub(crate) fn run(namespace: &Namespace, program: &str, arguments: &str) -> String {
    let path = netlab::program(program).expect("installed");
    let mut command = namespace.command(path.to_str().expect("a path"));
    let output = command
        .args(arguments.split_ascii_whitespace())
        .output()
        .expect("it runs");
    assert!(
        output.status.success(),
        "{program} {arguments}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A chain of a hook with one rule.
pub(crate) fn chain(hook: &str, rules: &str) -> String {
    format!(
        "table inet t {{ chain c {{ type filter hook {hook} priority 0; policy accept; {rules}; }} }}\n"
    )
}

/// Talks until a filter is found to be in the way. What is said of it.
pub(crate) fn until_refused(stage: &Stage, ends: &mut Ends) -> String {
    let mut random = Random::of_run(60);
    let why = until_found("a filter is in the way", || {
        ends.converse(&mut random, 5, 100);
        let of = stage.connection(ends)?;
        (of.reason == Some(Reason::Filter)).then_some(of.filter?)
    });
    // It stays so.
    ends.converse(&mut random, 50, 100);
    let of = stage.connection(ends).expect("it is there");
    assert_eq!(of.state, State::Tcp, "{of:?}");
    assert_eq!(of.client.expect("seen").redirected_messages, 0, "{of:?}");
    assert_eq!(stage.status().members, 0);
    why
}

pub(crate) fn is_ready() -> bool {
    available(Need::Root) && available(Need::Nft)
}

#[test]
fn a_rule_in_any_namespace_on_the_way_keeps_a_connection_on_tcp() {
    if !is_ready() {
        return;
    }
    type Place = for<'a> fn(&'a Lab) -> &'a Namespace;
    let rows: [(Place, &str, &str); 7] = [
        (Lab::server, "input", "limit rate over 1 mbytes/second drop"),
        (Lab::server, "output", "tcp sport 7700 log"),
        (
            Lab::client,
            "output",
            "tcp dport 7700 limit rate 1000000/second accept",
        ),
        (Lab::client, "input", "ip saddr 198.18.2.2 meta mark set 7"),
        (
            Lab::relay,
            "forward",
            "tcp dport 7700 quota over 1000 mbytes drop",
        ),
        (
            Lab::relay,
            "forward",
            "iifname to-server limit rate over 100000/second drop",
        ),
        (Lab::relay, "postrouting", "oifname to-server ip ttl set 9"),
    ];
    for (place, hook, rule) in rows {
        let stage = Stage::new();
        nft(place(&stage.lab), &chain(hook, rule));
        let running = stage.start();
        let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
        let why = until_refused(&stage, &mut ends);
        let name = place(&stage.lab).name();
        assert!(
            why.contains(name) && why.contains("inet t c handle"),
            "{why}"
        );
        running.stop();
    }
}

/// A connection to a port of an address, where a listener has a port.
pub(crate) fn connect_at(stage: &Stage, to: IpAddr, to_port: u16, port: u16) -> Ends {
    let [near, far] = &stage.groups;
    let listener = far
        .enter(|| {
            stage.lab.server().enter(|| {
                let unspecified: IpAddr = match to {
                    IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
                    IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
                };
                TcpListener::bind((unspecified, port)).expect("a listener")
            })
        })
        .expect("entered")
        .expect("entered");
    let to = SocketAddr::from((to, to_port));
    connect_to((near, stage.lab.client()), &listener, to, None)
}

#[test]
fn a_counter_behind_a_limit_goes_on_to_count() {
    if !is_ready() {
        return;
    }
    let stage = Stage::new();
    nft(
        stage.lab.relay(),
        &chain(
            "forward",
            "tcp dport 7700 limit rate over 1000 mbytes/second counter drop; tcp dport 7700 counter",
        ),
    );
    let running = stage.start();
    let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
    until_refused(&stage, &mut ends);
    let counted = || -> u64 {
        let rules = run(stage.lab.relay(), "nft", "list chain inet t c");
        let after = rules.rsplit_once("counter packets ").expect("a counter").1;
        let number = after.split(' ').next().expect("a number");
        number.parse().expect("a number")
    };
    let before = counted();
    ends.converse(&mut Random::of_run(61), 100, 100);
    assert!(counted() >= before + 100);
    running.stop();
}

#[test]
fn rules_that_accept_established_connections_are_no_obstacle() {
    if !is_ready() {
        return;
    }
    let stage = Stage::new();
    let accept = "ct state established,related accept";
    for (namespace, hook) in [
        (stage.lab.server(), "input"),
        (stage.lab.client(), "input"),
        (stage.lab.relay(), "forward"),
    ] {
        nft(
            namespace,
            &format!(
                "table inet t {{ chain c {{ type filter hook {hook} priority 0; policy drop; {accept}; \
                 tcp dport 7700 accept; log; }} }}\n"
            ),
        );
    }
    let running = stage.start();
    let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
    stage.until_redirected(&mut ends);
    running.stop();
}

#[test]
fn a_translated_connection_is_redirected() {
    if !is_ready() {
        return;
    }
    let stage = Stage::new();
    let to = Lab::SERVER_V4;
    nft(
        stage.lab.relay(),
        &format!(
            "table ip t {{ \
             chain d {{ type nat hook prerouting priority -100; tcp dport 7701 dnat to {to}:7700; }} \
             chain s {{ type nat hook postrouting priority 100; oifname to-server masquerade; }} \
             chain f {{ type filter hook forward priority 0; policy drop; ct state established accept; \
             ct status dnat accept; }} }}\n"
        ),
    );
    let running = stage.start();
    let mut ends = connect_at(&stage, Lab::RELAY_V4.into(), 7701, 7700);
    stage.until_redirected(&mut ends);
    running.stop();
}

#[test]
fn a_shaper_on_a_device_of_the_way_keeps_a_connection_on_tcp() {
    if !is_ready() {
        return;
    }
    for (discipline, words) in [
        (
            "tbf rate 1gbit burst 1mb latency 50ms",
            "discipline tbf of to-server",
        ),
        ("htb default 1", "discipline htb of to-server"),
    ] {
        let stage = Stage::new();
        let arguments = format!("qdisc add dev {} root {discipline}", Lab::TO_SERVER);
        run(stage.lab.relay(), "tc", &arguments);
        let running = stage.start();
        let mut ends = stage.connect(Lab::SERVER_V4);
        let why = until_refused(&stage, &mut ends);
        assert!(why.contains(words), "{why}");
        // It is looked at again.
        let arguments = format!("qdisc del dev {} root", Lab::TO_SERVER);
        run(stage.lab.relay(), "tc", &arguments);
        stage.until_redirected(&mut ends);
        running.stop();
    }
}

#[test]
fn a_rule_that_comes_later_takes_effect() {
    if !is_ready() {
        return;
    }
    type Place = for<'a> fn(&'a Lab) -> &'a Namespace;
    let rows: [(Place, &str); 3] = [
        (Lab::relay, "forward"),
        (Lab::client, "output"),
        (Lab::server, "input"),
    ];
    for (place, hook) in rows {
        let stage = Stage::new();
        let running = stage.start();
        let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
        stage.until_redirected(&mut ends);
        nft(place(&stage.lab), &chain(hook, "tcp dport 7700 drop"));
        let began = std::time::Instant::now();
        until("it has left the map", || stage.status().members == 0);
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        let of = stage.connection(&ends).expect("it is there");
        assert_eq!(of.reason, Some(Reason::Filter), "{of:?}");
        let why = of.filter.expect("words");
        assert!(why.contains("drops"), "{why}");

        // The rule stops what is sent now.
        ends.client.write_all(b"never").expect("TCP takes it");
        let wait = Some(Duration::from_millis(300));
        ends.server.set_read_timeout(wait).expect("set");
        let read = ends.server.read(&mut [0; 5]);
        assert_eq!(read.expect_err("nothing").kind(), ErrorKind::WouldBlock);

        // TCP repeats it when the rule is gone.
        nft(place(&stage.lab), "flush ruleset\n");
        ends.server
            .set_read_timeout(Some(netlab::PATIENCE))
            .expect("set");
        ends.server.read_exact(&mut [0; 5]).expect("received");
        ends.converse(&mut Random::of_run(62), 100, 100);
        running.stop();
    }
}

#[test]
fn a_shaper_that_comes_later_takes_effect() {
    if !is_ready() {
        return;
    }
    let stage = Stage::new();
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    let shaper = "qdisc add dev to-client root tbf rate 1gbit burst 1mb latency 50ms";
    run(stage.lab.relay(), "tc", shaper);
    until("it has left the map", || stage.status().members == 0);
    ends.converse(&mut Random::of_run(63), 100, 100);
    running.stop();
}

#[test]
fn rules_beside_the_way_are_no_obstacle() {
    if !is_ready() {
        return;
    }
    let stage = Stage::new();
    let beside = Namespace::new("beside").expect("a namespace");
    nft(&beside, &chain("input", "drop"));
    // A leaf of the router.
    let (relay, name) = (stage.lab.relay(), beside.name());
    run(
        relay,
        "ip",
        &format!("link add to-beside type veth peer name to-relay netns {name}"),
    );
    run(
        relay,
        "tc",
        "qdisc add dev to-beside root tbf rate 1mbit burst 10kb latency 50ms",
    );
    nft(
        relay,
        &chain("forward", "iifname to-beside drop; oifname to-beside log"),
    );
    let running = stage.start();
    let mut ends = stage.connect(Lab::SERVER_V4);
    stage.until_redirected(&mut ends);
    running.stop();
}

#[test]
fn filters_may_be_bypassed_knowingly() {
    if !is_ready() {
        return;
    }
    let stage = Stage::new();
    nft(stage.lab.relay(), &chain("forward", "tcp dport 7700 log"));
    let running = Running::start(&Options {
        bypass_firewall: true,
        ..stage.options()
    });
    let mut ends = connect_at(&stage, Lab::SERVER_V4.into(), 7700, 7700);
    stage.until_redirected(&mut ends);
    running.stop();
}
