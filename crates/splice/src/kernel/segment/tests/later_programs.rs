//! Programs of others that come while pairs are spliced past them: these go back to their sockets, whose segments the
//! programs see.

use std::os::fd::AsFd as _;

use netlab::{ControlGroup, present};

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
