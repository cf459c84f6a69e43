//! Paths that flip a bit in one of a hundred segments, in both directions and on both sides of the relay.

use std::collections::HashSet;
use std::process::Command;
use std::thread;

use netlab::{Lab, Namespace, Need, available, present};

use super::connection::Connection;
use super::hops::Hops;
use super::stage::{IN_ORDER, Stage};
use crate::peer::exchange;
use crate::random::Random;

const CONVERSATIONS: usize = 40;
const MOST_BYTES: usize = 300_000;

/// The bits that are flipped, one in each damaged segment: those of the payload, a sequence and an acknowledgement
/// number, FIN, RST, PSH, the window, the checksum and a timestamp. An entry is the place and the length of a field in
/// bits, and what is flipped in it. The first may be beyond the end of a segment.
///
/// A segment that is translated crosses both routers, with one checksum. The same bit of another word, flipped the other
/// way, would make up for the damage of the first router there (RFC 1071), so each entry has another bit of a word.
const FLIPS: [(u32, u32, u32); 10] = [
    (264, 8, 1 << 5),
    (32, 32, 1 << 12),
    (64, 32, 1 << 13),
    (96, 16, 1),
    (96, 16, 1 << 2),
    (96, 16, 1 << 3),
    (112, 16, 1 << 15),
    (128, 16, 1 << 1),
    (192, 32, 1 << 30),
    (192, 32, 1 << 4),
];

/// Of two different powers of two below 2^16, neither the sum nor the difference is a multiple of 2^16 - 1.
#[test]
fn no_two_flips_make_up_for_one_another() {
    let bits = FLIPS.map(|(at, length, flip)| {
        assert!(flip.is_power_of_two());
        (flip.trailing_zeros() + 16 - (at + length) % 16) % 16
    });
    let distinct = HashSet::from(bits);
    assert_eq!(distinct.len(), bits.len(), "{bits:?}");
}

/// Damages what comes in on both devices of a router.
pub(super) fn damage_at(router: &Namespace) {
    // Each rule takes an equal share of the segments.
    let rules: String = (0..)
        .zip(FLIPS)
        .map(|(index, (at, bits, flip))| {
            let left = FLIPS.len() - index;
            format!(
                "numgen random mod {left} == 0 @th,{at},{bits} set @th,{at},{bits} ^ {flip} accept\n"
            )
        })
        .collect();
    let (inward, outward) = (Lab::TO_RELAY, Hops::OUTWARD);
    let table = format!(
        "table netdev path {{
            chain flip {{
                {rules}
            }}
            chain in {{
                type filter hook ingress devices = {{ {inward}, {outward} }} priority 0;
                meta l4proto tcp numgen random mod 100 == 0 counter jump flip
            }}
        }}"
    );
    run(router.command("nft").arg(&table));
}

/// How many segments a router has damaged.
pub(super) fn damaged_at(router: &Namespace) -> u64 {
    let listed = run(router.command("nft").args(["list", "ruleset"]));
    let (_, after) = listed.split_once("counter packets ").expect("a counter");
    let count = after.split(' ').next().expect("a count");
    count.parse().expect("a number")
}

/// The same on all devices that the routers get segments from. Whether there are the means.
pub(super) fn fill_in_all_checksums(stage: &Stage) -> bool {
    let missing = netlab::program("ethtool").is_none();
    let missing = missing.then(|| "no ethtool (apt install ethtool)".into());
    if !present("ethtool", missing) {
        return false;
    }
    let lab = stage.lab();
    for (namespace, device) in [
        (stage.client(), Hops::INWARD),
        (lab.relay(), Lab::TO_CLIENT),
        (lab.relay(), Lab::TO_SERVER),
        (stage.server(), Hops::INWARD),
    ] {
        fill_in_checksums(namespace, device);
    }
    true
}

/// Makes the kernel compute checksums before a segment leaves the namespace. A checksum that is left to the
/// device would be computed of the damaged segment.
fn fill_in_checksums(namespace: &Namespace, device: &str) {
    run(namespace
        .command("ethtool")
        .args(["-K", device, "tx", "off"]));
}

fn run(command: &mut Command) -> String {
    let output = command.output().expect("it runs");
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// `MOST_BYTES` at most each way, and both ends of stream.
fn converse(connection: &Connection, number: u64) {
    let mut random = Random::of_run(50 + number);
    let [there, back] = [(); 2].map(|()| random.size(MOST_BYTES) as u64);
    exchange(&connection.client, &connection.server, number, there, back);
}

fn conversations_leave_nothing_in_the_relay(stage: &Stage) {
    if !available(Need::Nft) || !fill_in_all_checksums(stage) {
        return;
    }
    let lab = stage.lab();
    let routers = [lab.client(), lab.server()];
    routers.into_iter().for_each(damage_at);
    let connections = stage.connect(CONVERSATIONS);
    thread::scope(|scope| {
        for (number, connection) in (0..).zip(&connections) {
            scope.spawn(move || converse(connection, number));
        }
    });
    drop(connections);
    stage.expect_ended(CONVERSATIONS, IN_ORDER);
    for router in routers {
        assert!(damaged_at(router) > 0);
    }
}

with_each_engine!(conversations_leave_nothing_in_the_relay, routed);
