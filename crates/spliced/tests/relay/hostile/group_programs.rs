//! Programs of the relay's control group that come while connections of every engine are open, and stop nothing of them.

use splice_bpf::{load, objects};

use super::connection::Side;
use super::path_mtu::goes_on;
use super::relay_group::RelayGroup;
use super::routes::{expect_spliced, move_a_number};
use super::stage::{Family, Stage};
use super::untranslated::expect_return;

/// A program that only looks at packets has to see them all.
fn a_program_looks_at_packets(stage: &Stage, group: &RelayGroup, program: &'static str) {
    let filter = objects::CGROUP_FILTER;
    let object = load("cgroup_filter", filter, |_| Ok(())).expect("loaded");
    let mut link = None;
    goes_on(stage, |connections| {
        link = Some(
            object
                .attach_to_cgroup(program, group.own())
                .expect("attached"),
        );
        stage.until_all_are_back();
        move_a_number(&connections[0]);
    });
    drop(link);
    expect_return(stage, "is filtered by a BPF program of its control group");
}

/// The kernel tells one of type `sock_ops` of what happens to a connection if the program has asked for that when it was
/// connected. So one that comes later hears nothing, with `copy` as well.
fn a_program_is_told_of_connections(stage: &Stage, group: &RelayGroup) {
    let filter = objects::CGROUP_FILTER;
    let object = load("cgroup_filter", filter, |_| Ok(())).expect("loaded");
    let counts = object.map("told").expect("a map");
    let told = || counts.read::<u32, u64>(&0).expect("a count");
    let mut link = None;
    goes_on(stage, |connections| {
        let attached = object.attach_to_cgroup("told_of_connections", group.own());
        link = Some(attached.expect("attached"));
        move_a_number(&connections[0]);
        assert_eq!(told(), 0);
    });
    expect_spliced(stage);
    let connection = stage.connect(1).remove(0);
    assert!(told() > 0);
    connection.moves_a_byte(Side::Client);
    drop(link);
}

/// Copied and spliced, over both versions of IP.
macro_rules! in_a_group {
    ($($name:ident = $case:expr;)*) => {
        $(mod $name {
            use super::*;

            #[test]
            fn copy_v4() {
                RelayGroup::with("copy", Family::V4, $case);
            }

            #[test]
            fn copy_v6() {
                RelayGroup::with("copy", Family::V6, $case);
            }

            #[test]
            fn auto_v4() {
                RelayGroup::with("auto", Family::V4, $case);
            }

            #[test]
            fn auto_v6() {
                RelayGroup::with("auto", Family::V6, $case);
            }

            #[test]
            fn segment_v4() {
                RelayGroup::with("segment", Family::V4, $case);
            }

            #[test]
            fn segment_v6() {
                RelayGroup::with("segment", Family::V6, $case);
            }
        })*
    };
}

in_a_group! {
    a_program_looks_at_what_comes_in = |stage, group| {
        a_program_looks_at_packets(stage, group, "filter_ingress");
    };
    a_program_looks_at_what_leaves = |stage, group| {
        a_program_looks_at_packets(stage, group, "filter_egress");
    };
    a_program_hears_of_new_connections = a_program_is_told_of_connections;
}
