//! Super-packets of more than 64 KiB (BIG TCP). Over IPv6 they have an option for their length, and their segments none.

use std::thread;

use netlab::{Lab, Need, available};

use super::bad_network::nft;
use super::hops::ip;
use super::path_mtu::{CONNECTIONS, move_some};
use super::routes::expect_spliced;
use super::stage::{Family, IN_ORDER, Stage};

const BYTES: u64 = 64 << 20;
/// Of a super-packet.
const MOST_BYTES: u32 = 180_000;

const COUNT: &str = "table inet big {
    counter big {}
    chain output {
        type filter hook output priority 0;
        meta l4proto tcp meta length > 65600 counter name big
    }
}";

/// Each of their segments is as long as the path takes.
fn super_packets_are_big(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    let lab = stage.lab();
    for (namespace, device) in [
        (lab.client(), Lab::TO_RELAY),
        (lab.server(), Lab::TO_RELAY),
        (lab.relay(), Lab::TO_CLIENT),
        (lab.relay(), Lab::TO_SERVER),
    ] {
        let command = format!("link set {device} gso_max_size {MOST_BYTES}");
        ip(namespace, &command);
    }
    nft(lab.client().command("nft").arg(COUNT));
    let connections = stage.connect(CONNECTIONS);
    thread::scope(|scope| {
        for connection in &connections {
            scope.spawn(|| move_some(connection, BYTES));
        }
    });
    drop(connections);
    stage.expect_ended(CONNECTIONS, IN_ORDER);
    let list = ["list", "counter", "inet", "big", "big"];
    let counted = nft(lab.client().command("nft").args(list));
    assert!(!counted.contains("packets 0 "), "{counted}");
    expect_spliced(stage);
}

#[test]
fn super_packets_are_big_copy() {
    Stage::with("copy", Family::V6, super_packets_are_big);
}

#[test]
fn super_packets_are_big_auto() {
    Stage::with("auto", Family::V6, super_packets_are_big);
}

#[test]
fn super_packets_are_big_segment() {
    Stage::with("segment", Family::V6, super_packets_are_big);
}
