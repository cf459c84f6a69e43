//! Networks that change the traffic class, lose packets, or bring them twice or late: both streams of a connection arrive,
//! and the relay has nothing left of it.

use std::process::Command;
use std::thread;

use netlab::{Namespace, Need, available};
use socket2::SockRef;

use super::connection::{Connection, Side};
use super::stage::{Family, IN_ORDER, Stage};
use crate::bad_path::{BadPath, Disorder};
use crate::peer::exchange;
use crate::random::{Random, run_seed};

const CONNECTIONS: usize = 4;
const BYTES: u64 = 1 << 20;
/// DSCP EF (RFC 3246), in its place.
const EXPEDITED: u32 = 0xb8;
/// Of bytes that go through a path with losses, each loss at the end of a burst costs 200 ms at least (`TCP_RTO_MIN`).
const MOST_BYTES_WITH_LOSS: usize = 100_000;

/// Both streams of all connections, at the same time.
fn converse(connections: &[Connection], bytes: impl Fn() -> [u64; 2]) {
    thread::scope(|scope| {
        for (number, connection) in (0..).zip(connections) {
            let [there, back] = bytes();
            let Connection { client, server } = connection;
            scope.spawn(move || exchange(client, server, number, there, back));
        }
    });
}

/// On what a router passes on, in both directions, these statements of nft. Returns how often they have been carried out.
pub(super) fn change_at<'a>(
    router: &'a Namespace,
    name: &'static str,
    statements: [&str; 2],
) -> impl Fn() -> u64 + use<'a> {
    let [v4, v6] = statements;
    let table = format!(
        "table inet {name} {{
            counter changed {{}}
            chain forward {{
                type filter hook forward priority 0;
                meta nfproto ipv4 meta l4proto tcp {v4} counter name changed
                meta nfproto ipv6 meta l4proto tcp {v6} counter name changed
            }}
        }}"
    );
    nft(router.command("nft").arg(&table));
    move || {
        let listed = nft(router
            .command("nft")
            .args(["list", "counters", "table", "inet", name]));
        let (_, after) = listed.split_once("packets ").expect("a counter");
        let count = after.split(' ').next().expect("a count");
        count.parse().expect("a number")
    }
}

pub(super) fn nft(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// `client`, the relay and the server ask for ECN, or take it.
pub(super) fn use_ecn(stage: &Stage, [client, server]: [bool; 2]) {
    for (namespace, asks) in [
        (stage.client(), client),
        (stage.lab().relay(), true),
        (stage.server(), server),
    ] {
        let value = if asks { "1" } else { "0" };
        namespace
            .set_sysctl("net.ipv4.tcp_ecn", value)
            .expect("set");
    }
}

/// The pairs stay spliced, although both routers do this.
fn goes_on_past(stage: &Stage, statements: [&str; 2]) {
    if !available(Need::Nft) {
        return;
    }
    let routers = [stage.lab().client(), stage.lab().server()];
    let changed = routers.map(|router| change_at(router, "path", statements));
    let connections = stage.connect(CONNECTIONS);
    converse(&connections, || [BYTES; 2]);
    drop(connections);
    stage.expect_ended(CONNECTIONS, IN_ORDER);
    assert!(changed.iter().any(|changed| changed() > 0));
    expect_spliced(stage);
}

fn expect_spliced(stage: &Stage) {
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        assert_eq!(entry["engine"], "segment", "{entry}");
    }
}

/// A peer's traffic class does not go past the relay, whose sockets have none.
fn a_traffic_class_ends_at_the_relay(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    let from_relay = [
        "iifname to-relay ip dscp != cs0",
        "iifname to-relay ip6 dscp != cs0",
    ];
    let from_peer = [
        "oifname to-relay ip dscp ef",
        "oifname to-relay ip6 dscp ef",
    ];
    let routers = [stage.lab().client(), stage.lab().server()];
    let leaked = routers.map(|router| change_at(router, "relay", from_relay));
    let sent = routers.map(|router| change_at(router, "peer", from_peer));
    let connections = stage.connect(CONNECTIONS);
    for connection in &connections {
        for side in Side::BOTH {
            let socket = SockRef::from(connection.end(side));
            let done = match stage.family() {
                Family::V4 => socket.set_tos_v4(EXPEDITED),
                Family::V6 => socket.set_tclass_v6(EXPEDITED),
            };
            done.expect("its traffic class");
        }
    }
    converse(&connections, || [BYTES; 2]);
    drop(connections);
    stage.expect_ended(CONNECTIONS, IN_ORDER);
    assert!(sent.iter().all(|sent| sent() > 0));
    assert_eq!(leaked.map(|leaked| leaked()), [0; 2]);
    expect_spliced(stage);
}

/// The next packet keeps its own.
pub(super) const CHANGE_CLASS: [&str; 2] = [
    "numgen inc mod 2 == 0 ip dscp set cs1",
    "numgen inc mod 2 == 0 ip6 dscp set cs1",
];

fn the_traffic_class_changes(stage: &Stage) {
    goes_on_past(stage, CHANGE_CLASS);
}

pub(super) const MARK_CONGESTION: [&str; 2] = [
    "ip ecn { 1, 2 } numgen random mod 10 == 0 ip ecn set ce",
    "ip6 ecn { 1, 2 } numgen random mod 10 == 0 ip6 ecn set ce",
];

fn congestion_is_marked(stage: &Stage) {
    use_ecn(stage, [true; 2]);
    goes_on_past(stage, MARK_CONGESTION);
}

/// The relay answers for the other connection.
fn congestion_is_marked_towards_a_client_without_ecn(stage: &Stage) {
    use_ecn(stage, [false, true]);
    goes_on_past(stage, MARK_CONGESTION);
}

fn congestion_is_marked_towards_a_server_without_ecn(stage: &Stage) {
    use_ecn(stage, [true, false]);
    goes_on_past(stage, MARK_CONGESTION);
}

/// The bits that both ends have agreed on.
pub(super) const CLEAR_ECN: [&str; 2] = [
    "ip ecn != 0 ip ecn set not-ect",
    "ip6 ecn != 0 ip6 ecn set not-ect",
];

/// A router does.
fn ecn_is_cleared(stage: &Stage) {
    use_ecn(stage, [true; 2]);
    goes_on_past(stage, CLEAR_ECN);
}

fn goes_through(stage: &Stage, disorder: Disorder, most_bytes: usize) {
    let connections = stage.connect(CONNECTIONS);
    let routers = [stage.lab().client(), stage.lab().server()];
    let path = BadPath::through(&routers, disorder, run_seed());
    let mut random = Random::of_run(60);
    let sizes: Vec<_> = (0..CONNECTIONS)
        .map(|_| [(); 2].map(|()| random.size(most_bytes) as u64))
        .collect();
    let sizes = std::cell::RefCell::new(sizes.into_iter());
    converse(&connections, || sizes.borrow_mut().next().expect("one"));
    drop(connections);
    stage.expect_ended(CONNECTIONS, IN_ORDER);
    expect_spliced(stage);
    assert!(disorder.lost == 0 || path.losses() > 0);
}

/// At each of the devices that a packet comes in on: some arrive four times.
fn packets_come_twice(stage: &Stage) {
    let disorder = Disorder {
        doubled: 2500,
        ..Disorder::default()
    };
    goes_through(stage, disorder, BYTES as usize);
}

fn packets_come_late(stage: &Stage) {
    let disorder = Disorder {
        late: 500,
        ..Disorder::default()
    };
    goes_through(stage, disorder, BYTES as usize);
}

fn a_tenth_is_lost(stage: &Stage) {
    let disorder = Disorder {
        lost: 1000,
        ..Disorder::default()
    };
    goes_through(stage, disorder, MOST_BYTES_WITH_LOSS);
}

with_each_engine!(a_traffic_class_ends_at_the_relay, routed);
with_each_engine!(the_traffic_class_changes, routed);
with_each_engine!(congestion_is_marked, routed);
with_each_engine!(congestion_is_marked_towards_a_client_without_ecn, routed);
with_each_engine!(congestion_is_marked_towards_a_server_without_ecn, routed);
with_each_engine!(ecn_is_cleared, routed);
with_each_engine!(packets_come_twice, routed);
with_each_engine!(packets_come_late, routed);
with_each_engine!(a_tenth_is_lost, routed);
