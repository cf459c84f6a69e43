//! Programs of others that come while pairs are spliced past them: these go back to their sockets, whose segments the
//! programs see.

use std::os::fd::AsFd as _;

use netlab::{ControlGroup, present};
use splice_bpf::types::{SegmentFlow, SegmentSide, segment_mark as mark, segment_state as state};

use super::coexistence::{ForeignTc, NEXT, OK, index_of};
use super::return_scene::{Scene, wait_for_return};
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

/// Both devices of the relay, and both versions of IP.
const PLACES: [(&str, bool); 4] = [
    (Lab::TO_CLIENT, true),
    (Lab::TO_SERVER, false),
    (Lab::TO_CLIENT, false),
    (Lab::TO_SERVER, true),
];

/// A pair of this device goes back, for a reason with these words.
fn expect_return(joined: &Joined, words: &[&str]) {
    wait_for_return(joined);
    let why = joined.2.engine().1;
    for part in words {
        assert!(why.contains(part), "{why}");
    }
    ping(&joined.0, &joined.1);
    ping(&joined.1, &joined.0);
}

fn knowing() -> Options {
    Options {
        bypass_firewall: true,
        ..by_name()
    }
}

/// A pair is spliced, which bypasses the packet filters knowingly.
fn splice_knowingly(scene: &Scene, is_v4: bool) -> Joined {
    let joined = scene.connect(is_v4).join(&scene.splicer, &knowing());
    netlab::until("it is spliced", || scene.translated(&joined).is_some());
    joined
}

/// Waits until pairs are spliced again, which are refused with `why` before.
fn until_spliced_again(scene: &Scene, is_v4: bool, why: &str) {
    netlab::until("pairs are spliced again", || {
        let connected = scene.connect(is_v4);
        let (client, server, handle) = connected.join(&scene.splicer, &Options::default());
        ping(&client, &server);
        let is_spliced = || handle.engine().0 == EngineName::Segment;
        netlab::until("it is decided", || {
            is_spliced() || handle.engine().1.contains(why)
        });
        is_spliced()
    });
}

/// A pair goes back when a program of this name comes after the relay's on its device, and new pairs stay in the stack
/// while it is there.
fn is_obeyed<T>(scene: &Scene, name: &str, add: impl FnOnce() -> T, remove: impl FnOnce(T)) {
    let joined = scene.splice(true);
    let added = add();
    expect_return(&joined, &[Lab::TO_CLIENT, name, "behind the relay's"]);
    let (_client, _server, handle) = scene.connect(true).join(&scene.splicer, &by_name());
    let why = why_refused(&handle);
    assert!(why.contains(name), "{why}");
    remove(added);
    until_spliced_again(scene, true, name);
}

/// What comes after the relay's program on a device does not see what that translates.
#[test]
fn pairs_go_back_when_a_program_comes_after_on_their_device() {
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
    let tc = |command: &str| run(lab.relay(), "tc", command);
    tc(&format!("qdisc add dev {device} clsact"));
    is_obeyed(
        &scene,
        "a tc filter (bpf)",
        || tc(&add_filter(device, 7, "")),
        |()| tc(&format!("filter del dev {device} ingress prio 7")),
    );
}

/// What adds a filter that is a program of others, which lets segments go on until it is told otherwise.
fn add_filter(device: &str, priority: u32, handle: &str) -> String {
    format!(
        "filter add dev {device} ingress prio {priority} {handle}bpf direct-action object-file \
         {}/../splice-bpf/bpf/prebuilt/foreign_tc.bpf.o section tc",
        env!("CARGO_MANIFEST_DIR")
    )
}

/// It may keep segments from the relay's program, which then comes first itself. New pairs stay in the stack while the other
/// one is there, unless they bypass the packet filters knowingly.
#[test]
fn pairs_go_back_when_a_program_comes_before_on_their_device() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for (device, is_v4) in PLACES {
        let joined = [
            scene.splice(is_v4),
            scene.splice(!is_v4),
            splice_knowingly(&scene, is_v4),
        ];
        let program = ForeignTc::new(OK).standing_first(&scene.lab, device);
        for joined in &joined {
            let words = [device, "foreign_tc before the relay's", "came later"];
            expect_return(joined, &words);
        }
        let (_client, _server, handle) = scene.connect(is_v4).join(&scene.splicer, &by_name());
        let why = why_refused(&handle);
        assert!(why.contains("foreign_tc behind the relay's"), "{why}");
        let knowing = splice_knowingly(&scene, is_v4);
        ping(&knowing.0, &knowing.1);
        drop(program);
        until_spliced_again(&scene, is_v4, "behind the relay's");
        assert!(scene.translated(&knowing).is_some(), "{:?}", knowing.2);
    }
}

/// Whoever reads /proc/PID/fdinfo has them for a moment, and the kernel attaches no program twice.
#[test]
fn the_program_comes_first_while_somebody_has_its_links() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let (device, is_v4) = PLACES[0];
    let joined = scene.splice(is_v4);
    let links = scene.datapath.links_of(index_of(scene.lab.relay(), device));
    let _program = ForeignTc::new(OK).standing_first(&scene.lab, device);
    expect_return(&joined, &[device, "foreign_tc before the relay's"]);
    let (_client, _server, handle) = scene.connect(is_v4).join(&scene.splicer, &by_name());
    let why = why_refused(&handle);
    assert!(why.contains("foreign_tc behind the relay's"), "{why}");
    drop(links);
}

/// Once that one is gone, the program takes its place after those that were there first.
#[test]
fn the_program_comes_after_earlier_ones_again() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    let (device, is_v4) = PLACES[0];
    let earlier = ForeignTc::new(NEXT).standing(&scene.lab, device, &[Traffic::In]);
    let joined = scene.splice(is_v4);
    let later = ForeignTc::new(OK).standing_first(&scene.lab, device);
    expect_return(&joined, &[device, "foreign_tc before the relay's"]);
    drop(later);
    until_spliced_again(&scene, is_v4, "behind the relay's");
    drop(earlier);
}

/// A connection whose SYN the program has seen before may be spliced later.
#[test]
fn what_was_seen_before_a_program_came_proves_nothing() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for (device, is_v4) in PLACES {
        drop(scene.splice(is_v4));
        let connected = scene.connect(is_v4);
        netlab::until("no pair is left", || scene.datapath.entries() == 0);
        let program = ForeignTc::new(OK).standing_first(&scene.lab, device);
        look(&scene);
        let (_client, _server, handle) = connected.join(&scene.splicer, &by_name());
        let why = why_refused(&handle);
        assert!(why.contains("another tc program is in between"), "{why}");
        drop(program);
    }
}

/// It counts each time.
#[test]
fn a_program_before_may_come_again() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    for _ in 0..3 {
        let joined = scene.splice(true);
        let program = ForeignTc::new(NEXT).standing_first(&scene.lab, Lab::TO_CLIENT);
        expect_return(&joined, &[Lab::TO_CLIENT, "foreign_tc before the relay's"]);
        drop(program);
        until_spliced_again(&scene, true, "behind the relay's");
    }
}

/// Where programs are filters, the same is true of filters.
#[test]
fn pairs_go_back_when_a_filter_comes_before_on_their_device() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    scene.datapath.attach_by_clsact();
    let tc = |command: &str| run(scene.lab.relay(), "tc", command);
    for (device, is_v4) in PLACES {
        let joined = scene.splice(is_v4);
        tc(&add_filter(device, 7, ""));
        expect_return(&joined, &[device, "a tc filter (bpf) before the relay's"]);
        let joined = scene.splice(is_v4);
        let replace = add_filter(device, 7, "handle 1 ").replace("filter add", "filter replace");
        tc(&replace);
        expect_return(&joined, &[device, "a tc filter (bpf) before the relay's"]);
        tc(&format!("filter del dev {device} ingress prio 7"));
        until_spliced_again(&scene, is_v4, "another tc program is in between");
    }
}

/// One that is where a relay would attach its own counts as well.
#[test]
fn a_filter_in_the_place_of_a_relays_counts() {
    if !available(Need::Root) {
        return;
    }
    let device = Lab::TO_CLIENT;
    let scene = Scene::new();
    let tc = |command: &str| run(scene.lab.relay(), "tc", command);
    tc(&format!("qdisc add dev {device} clsact"));
    is_obeyed(
        &scene,
        "a tc filter (bpf)",
        || tc(&add_filter(device, 50_000, "handle 0x73706c63 ")),
        |()| tc(&format!("filter del dev {device} ingress prio 50000")),
    );
}

/// Somebody detaches the program: the pairs go back, and the program is attached again.
#[test]
fn pairs_go_back_when_the_program_is_detached() {
    if !available(Need::Root) {
        return;
    }
    for mode in [AttachMode::Tcx, AttachMode::Clsact] {
        let scene = Scene::new();
        if mode == AttachMode::Clsact {
            scene.datapath.attach_by_clsact();
        }
        for (device, is_v4) in PLACES {
            for traffic in [Traffic::In, Traffic::Out] {
                let joined = [
                    scene.splice(is_v4),
                    scene.splice(!is_v4),
                    splice_knowingly(&scene, is_v4),
                ];
                match mode {
                    AttachMode::Tcx => {
                        let index = index_of(scene.lab.relay(), device);
                        scene.datapath.detach_by_force(index, traffic);
                    }
                    AttachMode::Clsact => run(
                        scene.lab.relay(),
                        "tc",
                        &format!("qdisc del dev {device} clsact"),
                    ),
                }
                for joined in &joined {
                    expect_return(joined, &["the relay's program was detached from", device]);
                }
            }
        }
        // By now it is attached again.
        let (client, server, _handle) = scene.splice(true);
        ping(&client, &server);
    }
}

/// A pair that is watched, of whose peers the program has noted a segment each, and whose loop stands still.
fn watch(scene: &Scene, is_v4: bool) -> (Joined, Halt) {
    let connected = scene.connect(is_v4);
    let halt = Halt::at(&scene.splicer, ["watching"]);
    let joined = connected.join(&scene.splicer, &by_name());
    halt.wait();
    for mut stream in [&joined.0, &joined.1] {
        stream.write_all(b"noted").expect("write");
    }
    netlab::until("they are noted", || {
        let is_watched = |flow: &&SegmentFlow| flow.state.load(Relaxed) == state::WATCH;
        let flows = (0..64).map(|slot| scene.datapath.flow(slot));
        let is_noted = |side: &SegmentSide| side.marks() & mark::NOTED != 0;
        let mut watched = flows.filter(is_watched);
        watched.any(|flow| flow.side.iter().all(is_noted))
    });
    (joined, halt)
}

fn look(scene: &Scene) {
    let look = || scene.datapath.look_at_attachments();
    scene.lab.relay().enter(look).expect("entered");
}

/// A pair that is still watched waits for what the program sees once it is attached again.
#[test]
fn a_watched_pair_is_spliced_once_the_program_is_attached_again() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    drop(scene.splice(true));
    for (device, is_v4) in PLACES {
        let (joined, halt) = watch(&scene, is_v4);
        let index = index_of(scene.lab.relay(), device);
        scene.datapath.detach_by_force(index, Traffic::In);
        look(&scene);
        halt.go_on();
        netlab::until("it is spliced", || scene.translated(&joined).is_some());
        for mut stream in [&joined.0, &joined.1] {
            stream.read_exact(&mut [0; 5]).expect("read");
        }
        ping(&joined.0, &joined.1);
        ping(&joined.1, &joined.0);
    }
}

/// What the program has noted before something came that keeps segments from it proves nothing, either.
#[test]
fn a_watched_pair_is_refused_once_a_filter_keeps_segments_to_itself() {
    if !available(Need::Root) {
        return;
    }
    let scene = Scene::new();
    scene.datapath.attach_by_clsact();
    drop(scene.splice(true));
    let tc = |command: &str| run(scene.lab.relay(), "tc", command);
    for (device, is_v4) in PLACES {
        let (joined, halt) = watch(&scene, is_v4);
        // It takes every packet, and lets no later filter see it.
        let take = format!("filter add dev {device} ingress prio 7 protocol all bpf bytecode");
        let take = [take.split(' ').collect(), vec!["1,6 0 0 4294967295"]].concat();
        let taken = scene.lab.relay().command("tc").args(take).status();
        assert!(taken.expect("tc runs").success());
        look(&scene);
        halt.go_on();
        let why = why_refused(&joined.2);
        assert!(why.contains("another tc program is in between"), "{why}");
        tc(&format!("filter del dev {device} ingress prio 7"));
        until_spliced_again(&scene, is_v4, "another tc program is in between");
    }
}
