//! Policies of IPsec that come while connections of every engine are open: what they block or protect does not pass in
//! clear.

use netlab::Lab;
use splice_bpf::types::{segment_reason, segment_state};

use super::connection::Side;
use super::hops::ip;
use super::path_mtu::goes_on;
use super::routes::{REST, expect_open, expect_spliced, move_a_number, until_looked_at};
use super::stage::{Family, Stage};
use super::untranslated::expect_return;
use crate::patience::until;

/// Adds a policy for the connections on one side, and takes it away again when nothing passes any more.
fn apply(stage: &Stage, side: Side, direction: &str, action: &str, is_blocked: bool) {
    let relay = stage.lab().relay();
    let number = match side {
        Side::Client => 4,
        Side::Server => 5,
    };
    let (any, peers) = match stage.family() {
        Family::V4 => ("0.0.0.0/0", format!("198.18.{number}.0/24")),
        Family::V6 => ("::/0", format!("2001:2:0:{number}::/64")),
    };
    let [from, to] = match direction {
        "in" => [peers.as_str(), any],
        _ => [any, peers.as_str()],
    };
    let policy = format!("xfrm policy add src {from} dst {to} dir {direction} {action}");
    goes_on(stage, |connections| {
        let idle = &connections[0];
        ip(relay, &policy);
        if stage.splices() && is_blocked {
            let lost = || stage.hop().counted(segment_reason::NO_WAY);
            until("segments get lost", || lost() > 0);
        } else if stage.splices() {
            until("no segment is translated", || stage.hop().are_spliced(0));
        }
        let before = denied(stage);
        for from in Side::BOTH {
            idle.end(from).write_number(1);
        }
        if !is_blocked || !stage.splices() {
            until("the stack has obeyed", || denied(stage) > before);
        }
        ip(relay, "xfrm policy flush");
        expect_open(idle);
    });
    if is_blocked {
        expect_spliced(stage);
    } else {
        expect_return(stage, "is protected by a policy of IPsec");
    }
}

/// How many packets IPsec has stopped on the relay's host.
fn denied(stage: &Stage) -> u64 {
    let read = || std::fs::read_to_string("/proc/thread-self/net/xfrm_stat");
    let list = stage
        .lab()
        .relay()
        .enter(read)
        .expect("entered")
        .expect("a list");
    let counts = list
        .lines()
        .filter_map(|line| line.split_ascii_whitespace().nth(1));
    counts
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum()
}

fn a_policy_blocks_what_goes_out(stage: &Stage) {
    apply(stage, Side::Server, "out", "action block", true);
}

fn a_policy_blocks_what_comes_in(stage: &Stage) {
    apply(stage, Side::Client, "in", "action block", true);
}

fn a_policy_protects_what_goes_out(stage: &Stage) {
    let by = "tmpl proto esp mode transport";
    apply(stage, Side::Client, "out", by, false);
}

fn a_policy_protects_what_comes_in(stage: &Stage) {
    let by = "tmpl proto esp mode transport";
    apply(stage, Side::Server, "in", by, false);
}

fn other_policies_do_not_matter(stage: &Stage) {
    goes_on(stage, |connections| {
        for policy in [
            "src 192.0.2.0/24 dst 198.18.0.0/15 dir in action block",
            "src 0.0.0.0/0 dst 0.0.0.0/0 dir fwd action block",
            "src ::/0 dst ::/0 dir fwd action block",
            "src 2001:db8::/32 dst 2001:2::/32 dir in action block",
        ] {
            ip(stage.lab().relay(), &format!("xfrm policy add {policy}"));
        }
        until_looked_at(stage);
        move_a_number(&connections[0]);
    });
    expect_spliced(stage);
}

/// Where the host's settings switch them off.
fn policies_that_are_off_do_not_matter(stage: &Stage) {
    let relay = stage.lab().relay();
    // IPv6 has no setting for what leaves.
    let (settings, directions): (&[_], &[_]) = match stage.family() {
        Family::V4 => (&["disable_policy", "disable_xfrm"], &["in", "out"]),
        Family::V6 => (&["disable_policy"], &["in"]),
    };
    let (family, devices, any): (_, &[_], _) = match stage.family() {
        Family::V4 => ("ipv4", &[Lab::TO_CLIENT, Lab::TO_SERVER], "0.0.0.0/0"),
        Family::V6 => ("ipv6", &["all"], "::/0"),
    };
    goes_on(stage, |connections| {
        for device in devices {
            for setting in settings {
                let name = format!("net.{family}.conf.{device}.{setting}");
                relay.set_sysctl(&name, "1").expect("set");
            }
        }
        // The stack asks when it makes a route, and routes are cached.
        ip(relay, "route flush cache");
        for direction in directions {
            ip(
                relay,
                &format!("xfrm policy add src {any} dst {any} dir {direction} action block"),
            );
        }
        match stage.family() {
            Family::V4 => until_looked_at(stage),
            Family::V6 if stage.splices() => {
                until("all have gone back", || stage.hop().are_spliced(0));
            }
            Family::V6 => {}
        }
        move_a_number(&connections[0]);
    });
    match stage.family() {
        Family::V4 => expect_spliced(stage),
        // Each of the host's addresses has the setting from when it was set.
        Family::V6 => expect_return(stage, "may be subject to a policy of IPsec"),
    }
}

/// Packets to this host never come by the device, as policies see it. The stack has to tell.
fn a_policy_depends_on_a_device(stage: &Stage) {
    let relay = stage.lab().relay();
    let any = match stage.family() {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    };
    let device = Lab::TO_CLIENT;
    goes_on(stage, |connections| {
        ip(
            relay,
            &format!("xfrm policy add src {any} dst {any} dev {device} dir in action block"),
        );
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    expect_return(stage, "may be subject to a policy of IPsec");
}

/// The pair has to go back, and cannot as long as the policy stands: nothing passes, and nothing ends.
fn a_policy_blocks_by_device_what_goes_out(stage: &Stage) {
    let relay = stage.lab().relay();
    let any = match stage.family() {
        Family::V4 => "0.0.0.0/0",
        Family::V6 => "::/0",
    };
    let device = Lab::TO_SERVER;
    goes_on(stage, |connections| {
        ip(
            relay,
            &format!("xfrm policy add src {any} dst {any} dev {device} dir out action block"),
        );
        // With IPv6 the stack does not compare the device of a socket that is bound to none.
        if stage.family() == Family::V4 {
            if stage.splices() {
                let states = || stage.hop().states();
                until("none is translated", || {
                    !states().contains(&segment_state::SPLICED)
                });
            }
            connections[0].client.write_number(1);
            assert!(!connections[0].server.is_readable_within(REST));
            ip(relay, "xfrm policy flush");
            assert_eq!(connections[0].server.read_number(), 1);
        }
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    expect_return(stage, "may be subject to a policy of IPsec");
}

/// The older one counts, which the stack has to tell.
fn two_policies_contradict_each_other(stage: &Stage) {
    let relay = stage.lab().relay();
    let (any, all) = match stage.family() {
        Family::V4 => ("0.0.0.0/0", "198.18.0.0/15"),
        Family::V6 => ("::/0", "2001:2::/48"),
    };
    goes_on(stage, |connections| {
        for policy in [
            format!("src {any} dst {all} dir in"),
            format!("src {all} dst {any} dir in action block"),
        ] {
            ip(relay, &format!("xfrm policy add {policy}"));
        }
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    expect_return(stage, "may be subject to a policy of IPsec");
}

with_each_engine!(a_policy_blocks_by_device_what_goes_out, routed);
with_each_engine!(two_policies_contradict_each_other, routed);
with_each_engine!(policies_that_are_off_do_not_matter, routed);
with_each_engine!(a_policy_depends_on_a_device, routed);
with_each_engine!(a_policy_blocks_what_goes_out, routed);
with_each_engine!(a_policy_blocks_what_comes_in, routed);
with_each_engine!(a_policy_protects_what_goes_out, routed);
with_each_engine!(a_policy_protects_what_comes_in, routed);
with_each_engine!(other_policies_do_not_matter, routed);
