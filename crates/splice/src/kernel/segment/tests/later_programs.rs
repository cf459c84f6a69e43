//! Programs of others that come while pairs are spliced past them: these go back to their sockets, whose segments the
//! programs see.

use std::os::fd::AsFd as _;

use netlab::{ControlGroup, present};

use super::coexistence::{ForeignTc, NEXT, OK};
use super::give_back::{Scene, wait_for_return};
use super::*;

/// It sees what the sockets of the group receive, or send.
#[test]
fn pairs_of_a_control_group_go_back_when_a_program_comes() {
    if !available(Need::Root) {
        return;
    }
    let group = match ControlGroup::new("later") {
        Ok(group) => group,
        Err(error) => {
            present("cgroup", Some(format!("{error:#}")));
            return;
        }
    };
    let filter = splice_bpf::objects::CGROUP_FILTER;
    let object = load("cgroup_filter", filter, |_| Ok(())).expect("loaded");
    let scene = Scene::new();
    for is_v4 in [true, false] {
        for program in ["filter_ingress", "filter_egress"] {
            let joined = group.enter(|| scene.splice(is_v4)).expect("entered");
            let other = scene.splice(is_v4);
            let connected = group.enter(|| scene.connect(is_v4)).expect("entered");
            let bypassing = Options {
                bypass_firewall: true,
                ..by_name()
            };
            let knowing = connected.join(&scene.splicer, &bypassing);
            netlab::until("it is spliced", || scene.translated(&knowing).is_some());
            let link = object.attach_to_cgroup(program, group.as_fd());
            let link = link.expect("attached");
            wait_for_return(&joined);
            let why = joined.2.engine().1;
            assert!(why.contains("BPF program of its control group"), "{why}");
            for joined in [&joined, &other, &knowing] {
                ping(&joined.0, &joined.1);
                ping(&joined.1, &joined.0);
            }
            for stays in [&other, &knowing] {
                assert!(scene.translated(stays).is_some(), "{:?}", stays.2);
            }
            drop(link);
        }
    }
}

/// A pair goes back when a program of this name comes, and new pairs stay in the stack while it is there.
fn is_obeyed<T>(scene: &Scene, name: &str, add: impl FnOnce() -> T, remove: impl FnOnce(T)) {
    let joined = scene.splice(true);
    let added = add();
    wait_for_return(&joined);
    let why = joined.2.engine().1;
    for part in [Lab::TO_CLIENT, name, "the relay's"] {
        assert!(why.contains(part), "{why}");
    }
    ping(&joined.0, &joined.1);
    let (_client, _server, handle) = scene.connect(true).join(&scene.splicer, &by_name());
    let why = why_refused(&handle);
    assert!(why.contains(name), "{why}");
    remove(added);
    netlab::until("pairs are spliced again", || {
        let connected = scene.connect(true);
        let (client, server, handle) = connected.join(&scene.splicer, &Options::default());
        ping(&client, &server);
        let is_spliced = || handle.engine().0 == EngineName::Segment;
        netlab::until("it is decided", || {
            is_spliced() || handle.engine().1.contains(name)
        });
        is_spliced()
    });
}

/// What comes behind the relay's program on a device does not see what that translates, and the relay's does not see what
/// one before it takes.
#[test]
fn pairs_go_back_when_a_program_comes_to_their_device() {
    if !available(Need::Root) {
        return;
    }
    let device = Lab::TO_CLIENT;
    let scene = Scene::new();
    let lab = &scene.lab;
    is_obeyed(
        &scene,
        "foreign_tc",
        || ForeignTc::new(NEXT).standing(lab, device, &[Traffic::In]),
        drop,
    );
    // One before it keeps segments from it.
    is_obeyed(
        &scene,
        "foreign_tc",
        || ForeignTc::new(OK).standing_first(lab, device),
        drop,
    );
    let tc = |command: &str| run(lab.relay(), "tc", command);
    tc(&format!("qdisc add dev {device} clsact"));
    let add = format!(
        "filter add dev {device} ingress prio 7 bpf direct-action object-file {}/../splice-bpf/bpf/prebuilt/foreign_tc.bpf.o section tc",
        env!("CARGO_MANIFEST_DIR")
    );
    is_obeyed(
        &scene,
        "a tc filter (bpf)",
        || tc(&add),
        |()| tc(&format!("filter del dev {device} ingress prio 7")),
    );
}
