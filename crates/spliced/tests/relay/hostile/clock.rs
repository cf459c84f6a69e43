//! A relay in a time namespace, whose clocks are days ahead of those that the kernel's programs read: everything that
//! takes its time takes as long as elsewhere.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use netlab::{Lab, Need, available, present};

use super::connection::Side;
use super::hops::ip;
use super::stage::{Family, IN_ORDER, Stage};
use super::stamps::{WITHIN, passes_for};
use crate::patience::until;

/// CLOCK_MONOTONIC is a day ahead, and CLOCK_BOOTTIME two days: nothing that takes one for the other goes unnoticed.
const AHEAD: [&str; 6] = [
    "unshare",
    "--time",
    "--monotonic",
    "86400",
    "--boottime",
    "172800",
];

/// Longer than a peer that has vanished is waited for, by `vanish::SETTINGS`.
const SILENCE: Duration = Duration::from_secs(8);
/// By those: for an acknowledgement, and what a relay may add.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(3000);
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(6);

fn expect_another_namespace(stage: &Stage) {
    let of =
        |process: &str| fs::read_link(format!("/proc/{process}/ns/time")).expect("a namespace");
    let relay = stage.hop().relay.id().to_string();
    assert_ne!(of(&relay), of("self"));
}

fn who_is_silent_stays_and_who_is_gone_is_given_up(stage: &Stage) {
    expect_another_namespace(stage);
    let connections = stage.connect(2);
    let [silent, gone] = &connections[..] else {
        unreachable!("two were asked for");
    };
    silent.moves_data();
    thread::sleep(SILENCE);
    silent.moves_data();
    silent.ends_in_order();
    gone.moves_data();
    ip(
        stage.lab().server(),
        &format!("link set {} down", Lab::TO_RELAY),
    );
    let since = Instant::now();
    gone.client.write_number(1);
    until("the client is reset", || gone.client.was_reset());
    let took = since.elapsed();
    eprintln!("given up after {took:?}");
    assert!(GIVEN_UP_AFTER < took && took < GIVEN_UP_WITHIN, "{took:?}");
}

fn a_rule_is_obeyed(stage: &Stage) {
    expect_another_namespace(stage);
    if !available(Need::Nft) {
        return;
    }
    let connection = stage.connect(1).remove(0);
    let settled = || stage.until_all_are_back();
    let change = || stage.stop_clients();
    let lift = |()| stage.let_clients_pass();
    let passed_for = passes_for(&connection, Side::Client, change, settled, lift);
    assert!(passed_for < WITHIN, "{passed_for:?}");
    connection.ends_in_order();
    stage.expect_ended(1, IN_ORDER);
}

/// Runs a case on a relay with such clocks.
fn ahead(engine: &str, family: Family, case: impl FnOnce(&Stage)) {
    let known = fs::exists("/proc/self/ns/time").expect("/proc");
    let missing = (!known).then(|| "the kernel has no time namespaces (CONFIG_TIME_NS)".into());
    if present("time", missing) {
        Stage::impatient_routed_by(&AHEAD, engine, family, case);
    }
}

/// Copied and spliced, over both versions of IP.
macro_rules! in_such_a_namespace {
    ($($case:ident),*) => {
        $(mod $case {
            use super::{Family, ahead};

            #[test]
            fn copy_v4() {
                ahead("copy", Family::V4, super::$case);
            }

            #[test]
            fn auto_v4() {
                ahead("auto", Family::V4, super::$case);
            }

            #[test]
            fn auto_v6() {
                ahead("auto", Family::V6, super::$case);
            }
        })*
    };
}

in_such_a_namespace!(
    who_is_silent_stays_and_who_is_gone_is_given_up,
    a_rule_is_obeyed
);
