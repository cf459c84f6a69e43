//! The relay's process stands still for longer than anybody waits for anybody, by a signal or since its control group is
//! frozen, while connections of every engine are open. Those that are spliced go on meanwhile.

use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, available};

use super::connection::{Connection, Side};
use super::hops::ip;
use super::path_mtu::{CONNECTIONS, move_some};
use super::relay_group::RelayGroup;
use super::routes::{REST, expect_open};
use super::stage::{Family, IN_ORDER, Stage, hasten};
use super::stamps::{WITHIN, passes_for};
use crate::patience::until;
use crate::peer::{Over, Peer, exchange_until};

/// Longer than the relay's host waits for a peer (`vanish::SETTINGS`), and than the program waits for user space in the
/// middle of a change-over (10 s).
const LONG: Duration = Duration::from_secs(12);

/// After the relay has gone on, a peer that is gone is given up as soon as if it had vanished only then: 3 s by
/// `vanish::SETTINGS`, and what a relay adds.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(6);

const BYTES: u64 = 2 << 20;

/// One connection is idle, some are full of bytes, and some are young: they change over when the relay stops.
fn everything_goes_on(stage: &Stage, stop: &dyn Fn(), go_on: &dyn Fn()) {
    let connections = stage.connect(CONNECTIONS);
    let (idle, full) = connections.split_first().expect("several");
    let is_over = AtomicBool::new(false);
    let young: Vec<_> = (0..CONNECTIONS)
        .map(|_| {
            let connect = || Peer::connect(stage.hop().address());
            Connection {
                client: stage.client().enter(connect).expect("entered"),
                server: stage.target().accept(),
            }
        })
        .collect();
    thread::scope(|scope| {
        let over = Over(&is_over);
        for Connection { client, server } in full.iter().chain(&young) {
            scope.spawn(|| exchange_until(&is_over, client, server, 5));
        }
        stop();
        for from in Side::BOTH {
            idle.end(from).write_number(1);
        }
        if stage.splices() {
            expect_open(idle);
        } else {
            assert!(!idle.server.is_readable_within(REST));
        }
        thread::sleep(LONG);
        go_on();
        if !stage.splices() {
            expect_open(idle);
        }
        drop(over);
        move_some(idle, BYTES);
    });
    stage.expect_ended(connections.len() + young.len(), IN_ORDER);
}

/// The connected sockets on the relay's host, as ss(8) shows them with their timers.
fn sockets(stage: &Stage) -> String {
    let listed = stage.lab().relay().command("ss").arg("-Hnto").output();
    let listed = listed.expect("ss runs");
    assert!(listed.status.success(), "{listed:?}");
    String::from_utf8(listed.stdout).expect("text")
}

fn it_is_stopped(stage: &Stage) {
    let relay = &stage.hop().relay;
    everything_goes_on(stage, &|| relay.hold_still(), &|| relay.go_on());
}

/// A pair has just changed over: its sockets may still say something, but none of their timers runs any more, which would
/// give up peers that they do not hear.
fn it_is_stopped_at_once(stage: &Stage) {
    let connection = stage.connect(1).remove(0);
    if stage.splices() {
        until("no timer runs", || !sockets(stage).contains("timer:"));
    }
    stage.hop().relay.hold_still();
    thread::sleep(LONG);
    stage.hop().relay.go_on();
    connection.moves_data();
    connection.ends_in_order();
    stage.expect_ended(1, IN_ORDER);
}

/// The stopped relay does not see that the server is gone, for which somebody waits.
fn a_peer_vanishes_meanwhile(stage: &Stage) {
    let connection = stage.connect(1).remove(0);
    connection.moves_data();
    let relay = &stage.hop().relay;
    relay.hold_still();
    ip(
        stage.lab().server(),
        &format!("link set {} down", Lab::TO_RELAY),
    );
    connection.client.write_number(1);
    thread::sleep(LONG);
    let since = Instant::now();
    relay.go_on();
    until("it has ended", || stage.hop().connections() == 1);
    let took = since.elapsed();
    eprintln!("given up after {took:?}");
    assert!(took < GIVEN_UP_WITHIN, "{took:?}");
    until("the client is reset", || connection.client.was_reset());
}

/// A rule that comes while the relay is stopped: with `copy` nothing passes anyway, and what is spliced passes until the
/// relay goes on. Then the rule is obeyed.
fn a_rule_comes_meanwhile(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    let connection = stage.connect(1).remove(0);
    let relay = &stage.hop().relay;
    relay.hold_still();
    stage.stop_clients();
    let lift = |()| stage.let_clients_pass();
    if stage.splices() {
        let settled = || stage.until_all_are_back();
        let passed_for = passes_for(&connection, Side::Client, || relay.go_on(), settled, lift);
        assert!(passed_for < WITHIN, "{passed_for:?}");
    } else {
        connection.client.write_number(1);
        relay.go_on();
        assert!(!connection.server.is_readable_within(REST));
        lift(());
        assert_eq!(connection.server.read_number(), 1);
    }
    connection.ends_in_order();
    stage.expect_ended(1, IN_ORDER);
}

with_each_engine!(it_is_stopped, impatient_routed);
with_each_engine!(it_is_stopped_at_once, impatient_routed);
with_each_engine!(a_peer_vanishes_meanwhile, impatient_routed);
with_each_engine!(a_rule_comes_meanwhile, routed);

fn its_group_is_frozen(engine: &str, family: Family) {
    RelayGroup::with(engine, family, |stage, group| {
        hasten(stage.lab());
        everything_goes_on(stage, &|| group.freeze(true), &|| group.freeze(false));
    });
}

#[test]
fn its_group_is_frozen_copy() {
    its_group_is_frozen("copy", Family::V4);
}

#[test]
fn its_group_is_frozen_auto() {
    its_group_is_frozen("auto", Family::V4);
}

#[test]
fn its_group_is_frozen_segment() {
    its_group_is_frozen("segment", Family::V6);
}
