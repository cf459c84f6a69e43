//! Two namespaces at a bridge, as containers are.

use std::net::{IpAddr, Ipv4Addr};

use netlab::{Namespace, until};

use crate::filters::{is_ready, nft, run};
use crate::random::Random;
use crate::stage::{Ends, Stage, connect};

const NEAR: Ipv4Addr = Ipv4Addr::new(198, 18, 3, 2);
const FAR: Ipv4Addr = Ipv4Addr::new(198, 18, 3, 3);

/// A host with a bridge, and two containers.
struct Bridged {
    host: Namespace,
    containers: [Namespace; 2],
    stage: Stage,
}

impl Bridged {
    fn new() -> Self {
        let host = Namespace::new("host").expect("a namespace");
        run(&host, "ip", "link add bridge type bridge");
        run(&host, "ip", "link set bridge up");
        let containers = [("near", NEAR), ("far", FAR)].map(|(name, address)| {
            let container = Namespace::new(name).expect("a namespace");
            let at = container.name();
            let cable = format!("link add to-{name} type veth peer name eth0 netns {at}");
            run(&host, "ip", &cable);
            run(&host, "ip", &format!("link set to-{name} master bridge up"));
            run(&container, "ip", &format!("addr add {address}/24 dev eth0"));
            run(&container, "ip", "link set eth0 up");
            container
        });
        Self {
            host,
            containers,
            stage: Stage::new(),
        }
    }

    fn connect(&self) -> Ends {
        let [near, far] = &self.stage.groups;
        let [client, server] = &self.containers;
        connect((near, client), (far, server), IpAddr::from(FAR))
    }
}

#[test]
fn containers_at_a_bridge_are_redirected_while_its_rules_let_them_pass() {
    if !is_ready() {
        return;
    }
    let bridged = Bridged::new();
    let Bridged { host, stage, .. } = &bridged;
    let running = stage.start();
    let mut ends = bridged.connect();
    stage.until_redirected(&mut ends);
    ends.converse(&mut Random::of_run(14), 200, 1000);

    let rules = |family: &str, rule: &str| {
        let chain = format!("chain c {{ type filter hook forward priority 0; {rule}; }}");
        nft(host, &format!("table {family} t {{ {chain} }}\n"));
    };
    rules("bridge", "tcp dport 1 drop");
    ends.converse(&mut Random::of_run(15), 200, 1000);
    stage.until_redirected(&mut ends);
    assert_eq!(stage.status().members, 2);
    for (family, rule) in [
        ("bridge", "ip saddr 198.18.3.2 drop"),
        (
            "bridge",
            "ether type ip limit rate over 1 mbytes/second drop",
        ),
        ("bridge", "iifname to-near log"),
        // With br_netfilter it sees frames, too.
        ("ip", "ip saddr 198.18.3.2 drop"),
    ] {
        rules(family, rule);
        until("it has left the map", || stage.status().members == 0);
        let of = stage.connection(&ends).expect("it is there");
        let why = of.filter.expect("words");
        assert!(why.contains(&format!("{family} t c")), "{why}");
        nft(host, &format!("delete table {family} t\n"));
        ends = bridged.connect();
        stage.until_redirected(&mut ends);
    }
    running.stop();
}

#[test]
fn a_shaper_on_a_port_of_the_bridge_keeps_containers_on_tcp() {
    if !is_ready() {
        return;
    }
    let bridged = Bridged::new();
    let stage = &bridged.stage;
    let shaper = "qdisc add dev to-far root tbf rate 1gbit burst 1mb latency 50ms";
    run(&bridged.host, "tc", shaper);
    let running = stage.start();
    let mut ends = bridged.connect();
    let why = crate::filters::until_refused(stage, &mut ends);
    assert!(why.contains("discipline tbf of to-far"), "{why}");
    running.stop();
}
