//! Namespaces and devices of the relay's host that are deleted while connections of every engine are open.

use super::connection::Side;
use super::path_mtu::goes_on;
use super::routes::{REST, expect_open, expect_spliced, move_a_number};
use super::site::Site;
use super::stage::Stage;

/// The namespace lives on, since the relay is in it. New connections are as those before.
fn the_namespace_loses_its_name(stage: &Stage) {
    goes_on(stage, |connections| {
        stage.lab().relay().unname();
        move_a_number(&connections[0]);
    });
    expect_spliced(stage);
    let connection = stage.connect(1).remove(0);
    connection.moves_data();
    connection.ends_in_order();
}

/// One side's cable is gone, with the devices at both ends, and another one is laid with the same addresses.
fn a_cable_is_renewed(stage: &Stage, side: Side) {
    goes_on(stage, |connections| {
        let idle = &connections[0];
        let site = Site { stage, side };
        site.remove_cable(side == Side::Server);
        for from in Side::BOTH {
            idle.end(from).write_number(1);
        }
        for to in Side::BOTH {
            assert!(!idle.end(to).is_readable_within(REST), "{to:?}");
        }
        site.renew_cable();
        expect_open(idle);
        stage.until_all_are_back();
    });
}

fn a_device_is_deleted(stage: &Stage) {
    a_cable_is_renewed(stage, Side::Client);
}

fn the_other_end_of_a_device_is_deleted(stage: &Stage) {
    a_cable_is_renewed(stage, Side::Server);
}

with_each_engine!(the_namespace_loses_its_name, routed);
with_each_engine!(a_device_is_deleted, routed);
with_each_engine!(the_other_end_of_a_device_is_deleted, routed);
