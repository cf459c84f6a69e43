//! Policies that come while connections of every engine are open, each of which stops what comes from the client: it is
//! obeyed within a second, and nothing is lost once it is lifted.
//!
//! With `copy` the stack obeys at once.

use std::path::Path;

use netlab::{Lab, Need, available, present};
use splice_bpf::{AttachMode, DeviceLink, Traffic, load, objects};

use super::connection::Side;
use super::hops::ip;
use super::relay_group::RelayGroup;
use super::site::Site;
use super::stage::{Family, IN_ORDER, Stage};
use super::stamps::{WITHIN, passes_for};
use crate::patience::until;

/// What becomes of a spliced connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// It goes back to its sockets.
    GoesBack,
    /// It loses its segments.
    Closes,
    /// It stays as it is: what it bypasses comes later.
    Stays,
}

fn obeyed<T>(stage: &Stage, then: Then, apply: impl FnOnce() -> T, lift: impl FnOnce(T)) {
    let connection = stage.connect(1).remove(0);
    let settled = || match then {
        _ if !stage.splices() => {}
        Then::GoesBack => stage.until_all_are_back(),
        Then::Closes => until("it is closed", || stage.hop().closed() == 1),
        Then::Stays => assert!(stage.hop().are_spliced(1)),
    };
    let passed_for = passes_for(&connection, Side::Client, apply, settled, lift);
    eprintln!("something has passed for {passed_for:?}");
    assert!(passed_for < WITHIN, "{passed_for:?}");
    connection.ends_in_order();
    stage.expect_ended(1, IN_ORDER);
}

/// The program of the relay's host, with these arguments.
fn run(stage: &Stage, program: &str, arguments: &[&str]) {
    let done = stage
        .lab()
        .relay()
        .command(program)
        .args(arguments)
        .output();
    let done = done.expect("it runs");
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
}

fn words(stage: &Stage, program: &str, arguments: &str) {
    run(stage, program, &arguments.split(' ').collect::<Vec<_>>());
}

/// The port that clients connect to.
fn port(stage: &Stage) -> &str {
    stage.hop().relay.port()
}

fn a_rule_of_nftables(stage: &Stage) {
    if !available(Need::Nft) {
        return;
    }
    let lift = |()| stage.let_clients_pass();
    obeyed(stage, Then::GoesBack, || stage.stop_clients(), lift);
}

/// The kernel tells nobody of it.
fn a_rule_of_iptables_legacy(stage: &Stage) {
    if !available(Need::Iptables) {
        return;
    }
    let program = match stage.family() {
        Family::V4 => "iptables-legacy",
        Family::V6 => "ip6tables-legacy",
    };
    let rule = format!("INPUT -p tcp --dport {} -j DROP", port(stage));
    let change = |how: &str| words(stage, program, &format!("{how} {rule}"));
    obeyed(stage, Then::GoesBack, || change("-A"), |()| change("-D"));
}

/// A BPF program at a hook of netfilter.
fn a_program_of_netfilter(stage: &Stage) {
    let object = load("netfilter_link", objects::NETFILTER_LINK, |_| Ok(()));
    let missing = object.as_ref().err().map(ToString::to_string);
    if !present("netfilter-link", missing) {
        return;
    }
    let object = object.expect("loaded");
    let hook = libbpf_rs::NF_INET_LOCAL_IN;
    let attach = || object.attach_to_netfilter("netfilter_drop", hook, -77);
    let apply = || stage.lab().relay().enter(attach).expect("entered");
    obeyed(stage, Then::GoesBack, apply, drop);
}

/// The object with programs of others that drop everything.
fn dropping() -> String {
    let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../splice-bpf/bpf/prebuilt");
    let object = objects.join("foreign_drop.bpf.o");
    object.to_str().expect("ASCII").to_owned()
}

fn a_tc_filter(stage: &Stage, device: &str, traffic: &str, then: Then) {
    let change = |how: &str, what: &str| {
        let filter = format!("filter {how} dev {device} {traffic} prio 7{what}");
        words(stage, "tc", &filter);
    };
    let what = format!(
        " protocol all bpf direct-action object-file {} section tc",
        dropping()
    );
    words(stage, "tc", &format!("qdisc add dev {device} clsact"));
    obeyed(stage, then, || change("add", &what), |()| change("del", ""));
}

fn a_tc_filter_for_what_comes_in(stage: &Stage) {
    a_tc_filter(stage, Lab::TO_CLIENT, "ingress", Then::GoesBack);
}

fn a_tc_filter_for_what_leaves(stage: &Stage) {
    a_tc_filter(stage, Lab::TO_SERVER, "egress", Then::Stays);
}

/// A program that drops everything, attached by `attach` to the device on this side.
fn a_tc_program(
    stage: &Stage,
    side: Side,
    then: Then,
    attach: impl FnOnce(&splice_bpf::Program, u32) -> DeviceLink + Send,
) {
    let object = load("foreign_drop", objects::FOREIGN_DROP, |_| Ok(())).expect("loaded");
    let program = object.program("foreign_drop").expect("a program");
    let index = Site { stage, side }.device_index();
    let relay = stage.lab().relay();
    let apply = || relay.enter(|| attach(&program, index)).expect("entered");
    obeyed(stage, then, apply, drop);
}

fn a_tc_program_behind_the_relays(stage: &Stage) {
    a_tc_program(stage, Side::Client, Then::GoesBack, |program, device| {
        let link = program.attach(device, Traffic::In, AttachMode::Tcx);
        link.expect("attached")
    });
}

fn a_tc_program_before_the_relays(stage: &Stage) {
    a_tc_program(stage, Side::Client, Then::GoesBack, |program, device| {
        program.attach_first(device).expect("attached")
    });
}

fn a_tc_program_for_what_leaves(stage: &Stage) {
    a_tc_program(stage, Side::Server, Then::Stays, |program, device| {
        let link = program.attach(device, Traffic::Out, AttachMode::Tcx);
        link.expect("attached")
    });
}

fn an_xdp_program(stage: &Stage) {
    let device = Lab::TO_CLIENT;
    let set = |what: &str| {
        words(
            stage,
            "ip",
            &format!("link set dev {device} xdpgeneric {what}"),
        )
    };
    let what = format!("object {} section xdp", dropping());
    obeyed(stage, Then::Stays, || set(&what), |()| set("off"));
}

fn at(stage: &Stage, side: Side) -> Site<'_> {
    Site { stage, side }
}

fn a_route(stage: &Stage) {
    let site = at(stage, Side::Server);
    let apply = || site.ip(&format!("route replace blackhole {}", site.network()));
    obeyed(stage, Then::Closes, apply, |()| site.restore_route());
}

fn a_rule(stage: &Stage) {
    let site = at(stage, Side::Server);
    let change = |how: &str| {
        let rule = format!("to {} pref 5 blackhole", site.network());
        site.ip(&format!("rule {how} {rule}"));
    };
    obeyed(stage, Then::Closes, || change("add"), |()| change("del"));
}

fn an_address(stage: &Stage) {
    let site = at(stage, Side::Server);
    let apply = || {
        let (address, device) = (site.address(), site.device());
        site.ip(&format!("addr del {address} dev {device}"));
    };
    let lift = |()| {
        site.restore_address();
        site.restore_route();
    };
    obeyed(stage, Then::Closes, apply, lift);
}

fn a_device(stage: &Stage) {
    let site = at(stage, Side::Server);
    let set = |state: &str| {
        let command = format!("link set {} {state}", site.device());
        ip(stage.lab().relay(), &command);
    };
    let lift = |()| {
        set("up");
        site.restore_address();
        site.restore_route();
    };
    obeyed(stage, Then::Closes, || set("down"), lift);
}

fn a_policy_of_ipsec(stage: &Stage) {
    let site = at(stage, Side::Server);
    obeyed(
        stage,
        Then::Closes,
        || site.block("add"),
        |()| site.block("del"),
    );
}

/// Of the relay's control group, or of the one that it is in.
fn a_program_of_a_group(engine: &str, program: &'static str, is_above: bool) {
    RelayGroup::with(engine, Family::V4, |stage, group| {
        let filter = objects::CGROUP_FILTER;
        let object = load("cgroup_filter", filter, |_| Ok(())).expect("loaded");
        let of = if is_above { group.above() } else { group.own() };
        let attach = || object.attach_to_cgroup(program, of).expect("attached");
        obeyed(stage, Then::GoesBack, attach, drop);
    });
}

fn a_group_drops_what_it_receives(engine: &str) {
    a_program_of_a_group(engine, "drop_ingress", false);
}

fn a_group_drops_what_it_sends(engine: &str) {
    a_program_of_a_group(engine, "drop_egress", false);
}

fn a_group_above_drops_what_it_receives(engine: &str) {
    a_program_of_a_group(engine, "drop_ingress", true);
}

fn a_group_above_drops_what_it_sends(engine: &str) {
    a_program_of_a_group(engine, "drop_egress", true);
}

/// Tests of a policy, copied and spliced: for both versions of IP if it is one for each.
macro_rules! copied_and_spliced {
    ($policy:ident) => {
        mod $policy {
            use super::super::stage::{Family, Stage};

            #[test]
            fn copy() {
                Stage::routed("copy", Family::V4, super::$policy);
            }

            #[test]
            fn auto() {
                Stage::routed("auto", Family::V4, super::$policy);
            }
        }
    };
    ($policy:ident, each_family) => {
        mod $policy {
            use super::super::stage::{Family, Stage};

            #[test]
            fn copy_v4() {
                Stage::routed("copy", Family::V4, super::$policy);
            }

            #[test]
            fn copy_v6() {
                Stage::routed("copy", Family::V6, super::$policy);
            }

            #[test]
            fn auto_v4() {
                Stage::routed("auto", Family::V4, super::$policy);
            }

            #[test]
            fn auto_v6() {
                Stage::routed("auto", Family::V6, super::$policy);
            }
        }
    };
    ($policy:ident, by_group) => {
        mod $policy {
            #[test]
            fn copy() {
                super::$policy("copy");
            }

            #[test]
            fn auto() {
                super::$policy("auto");
            }
        }
    };
}

copied_and_spliced!(a_rule_of_nftables, each_family);
copied_and_spliced!(a_rule_of_iptables_legacy, each_family);
copied_and_spliced!(a_route, each_family);
copied_and_spliced!(a_rule, each_family);
copied_and_spliced!(an_address, each_family);
copied_and_spliced!(a_policy_of_ipsec, each_family);
copied_and_spliced!(a_device);
copied_and_spliced!(a_program_of_netfilter);
copied_and_spliced!(a_tc_filter_for_what_comes_in);
copied_and_spliced!(a_tc_filter_for_what_leaves);
copied_and_spliced!(a_tc_program_behind_the_relays);
copied_and_spliced!(a_tc_program_before_the_relays);
copied_and_spliced!(a_tc_program_for_what_leaves);
copied_and_spliced!(an_xdp_program);
copied_and_spliced!(a_group_drops_what_it_receives, by_group);
copied_and_spliced!(a_group_drops_what_it_sends, by_group);
copied_and_spliced!(a_group_above_drops_what_it_receives, by_group);
copied_and_spliced!(a_group_above_drops_what_it_sends, by_group);
