//! Ways that close and open, or become others, under connections of every engine: routes, rules, addresses and devices.
//!
//! With `copy` the stack loses what has no way, and the sockets send it again. A spliced connection loses the same.

use std::time::Duration;

use netlab::Lab;
use splice_bpf::types::segment_reason;

use super::connection::{Connection, Side};
use super::hops::ip;
use super::path_mtu::{CONNECTIONS, goes_on};
use super::site::Site;
use super::stage::{BY_RESET, Family, Stage};
use super::untranslated::expect_return;
use crate::patience::until;

/// Longer than the pauses between the first retransmissions.
pub(super) const REST: Duration = Duration::from_millis(700);

/// One connection is idle while its way on each side closes, and the others are full of bytes. What the stack would lose
/// gets lost until the way is open again, and comes then. Those that are spliced stay so.
fn survive(stage: &Stage, close: &dyn Fn(&Site<'_>), open: &dyn Fn(&Site<'_>)) {
    goes_on(stage, |connections| {
        for side in Side::BOTH {
            let site = Site { stage, side };
            close(&site);
            expect_closed(&site, &connections[0]);
            open(&site);
            expect_open(&connections[0]);
            until("all are open", || stage.hop().closed() == 0);
        }
    });
    expect_spliced(stage);
}

fn expect_closed(site: &Site<'_>, idle: &Connection) {
    let stage = site.stage;
    let lost = || match stage.splices() {
        true => stage.hop().counted(segment_reason::NO_WAY),
        false => 0,
    };
    if stage.splices() {
        until("all are closed", || stage.hop().closed() == CONNECTIONS);
    }
    let before = lost();
    for from in Side::BOTH {
        idle.end(from).write_number(1);
    }
    if stage.splices() {
        until("segments get lost", || lost() > before);
    }
    // IPv6 sends from an address that is gone as long as there is a route. The answer is lost.
    if stage.family() == Family::V4 || site.has_address() {
        assert!(!idle.end(site.side).is_readable_within(REST));
    }
}

pub(super) fn expect_open(idle: &Connection) {
    for to in Side::BOTH {
        assert_eq!(idle.end(to).read_number(), 1);
    }
}

/// Those that were spliced have not gone back to their sockets.
pub(super) fn expect_spliced(stage: &Stage) {
    for entry in stage.hop().entries().iter().filter(|_| stage.splices()) {
        assert_eq!(entry["engine"], "segment", "{entry}");
    }
    assert_eq!(stage.hop().connections(), CONNECTIONS);
}

fn a_route_goes_and_comes(stage: &Stage) {
    let close = |site: &Site<'_>| site.ip(&format!("route del {}", site.network()));
    survive(stage, &close, &|site| site.restore_route());
}

/// A route of this type takes the place of the other one.
fn a_route_says_that_there_is_none(stage: &Stage, kind: &str) {
    let close = |site: &Site<'_>| {
        site.ip(&format!("route del {}", site.network()));
        site.ip(&format!("route add {kind} {}", site.network()));
    };
    let open = |site: &Site<'_>| {
        site.ip(&format!("route del {kind} {}", site.network()));
        site.restore_route();
    };
    survive(stage, &close, &open);
}

fn a_route_becomes_a_black_hole(stage: &Stage) {
    a_route_says_that_there_is_none(stage, "blackhole");
}

fn a_route_becomes_prohibited(stage: &Stage) {
    a_route_says_that_there_is_none(stage, "prohibit");
}

fn a_route_becomes_unreachable(stage: &Stage) {
    a_route_says_that_there_is_none(stage, "unreachable");
}

fn a_rule_comes_and_goes(stage: &Stage, rule: &str) {
    let change = |site: &Site<'_>, how: &str| {
        site.ip(&format!("rule {how} to {} pref 5 {rule}", site.network()));
    };
    survive(stage, &|site| change(site, "add"), &|site| {
        change(site, "del")
    });
}

/// The relay has looked at what has changed before this.
pub(super) fn until_looked_at(stage: &Stage) {
    let side = Side::Server;
    let site = Site { stage, side };
    if stage.splices() {
        let rule = format!("to {} pref 5 blackhole", site.network());
        site.ip(&format!("rule add {rule}"));
        until("all are closed", || stage.hop().closed() == CONNECTIONS);
        site.ip(&format!("rule del {rule}"));
        until("all are open", || stage.hop().closed() == 0);
    }
}

fn a_rule_leads_nowhere(stage: &Stage) {
    a_rule_comes_and_goes(stage, "blackhole");
}

fn a_rule_by_ports_leads_nowhere(stage: &Stage) {
    a_rule_comes_and_goes(stage, "ipproto tcp dport 1-65534 prohibit");
}

fn an_address_goes_and_comes(stage: &Stage) {
    let close = |site: &Site<'_>| {
        let (address, device) = (site.address(), site.device());
        site.ip(&format!("addr del {address} dev {device}"));
    };
    let open = |site: &Site<'_>| {
        site.restore_address();
        site.restore_route();
    };
    survive(stage, &close, &open);
}

fn a_device_goes_down_and_up(stage: &Stage) {
    let set = |site: &Site<'_>, state| {
        let command = format!("link set {} {state}", site.device());
        ip(stage.lab().relay(), &command);
    };
    let open = |site: &Site<'_>| {
        set(site, "up");
        site.restore_address();
        site.restore_route();
    };
    survive(stage, &|site| set(site, "down"), &open);
}

/// Nothing comes in from the peers on one side any more, whatever leaves.
fn nothing_comes_in(stage: &Stage, close: &dyn Fn(&Site<'_>), open: &dyn Fn(&Site<'_>)) {
    goes_on(stage, |connections| {
        for side in Side::BOTH {
            let site = Site { stage, side };
            close(&site);
            if stage.splices() {
                until("all are closed", || stage.hop().closed() == CONNECTIONS);
            }
            let (from, to) = (connections[0].end(side), connections[0].end(side.other()));
            from.write_number(1);
            assert!(!to.is_readable_within(REST));
            open(&site);
            assert_eq!(to.read_number(), 1);
            until("all are open", || stage.hop().closed() == 0);
        }
    });
    expect_spliced(stage);
}

fn a_rule_lets_nothing_come_in(stage: &Stage) {
    // Otherwise the table of the host's own addresses comes first.
    let site = Site {
        stage,
        side: Side::Client,
    };
    site.ip("rule add pref 100 lookup local");
    site.ip("rule del pref 0");
    let change = |site: &Site<'_>, how: &str| {
        site.ip(&format!(
            "rule {how} iif {} pref 5 blackhole",
            site.device()
        ));
    };
    nothing_comes_in(stage, &|site| change(site, "add"), &|site| {
        change(site, "del")
    });
}

/// With IPv4, where it checks sources. IPv6 has no such setting.
fn a_host_checks_sources(stage: &Stage) {
    for device in ["all", Lab::TO_CLIENT, Lab::TO_SERVER] {
        let name = format!("net.ipv4.conf.{device}.rp_filter");
        stage.lab().relay().set_sysctl(&name, "1").expect("set");
    }
    let close = |site: &Site<'_>| site.ip(&format!("route del {}", site.network()));
    let open = |site: &Site<'_>| site.restore_route();
    if stage.family() == Family::V4 {
        return nothing_comes_in(stage, &close, &open);
    }
    goes_on(stage, |connections| {
        for side in Side::BOTH {
            let site = Site { stage, side };
            close(&site);
            if stage.splices() {
                until("all are closed", || stage.hop().closed() == CONNECTIONS);
            }
            connections[0].end(side).write_number(1);
            assert_eq!(connections[0].end(side.other()).read_number(), 1);
            open(&site);
            until("all are open", || stage.hop().closed() == 0);
        }
    });
    expect_spliced(stage);
}

with_each_engine!(a_rule_lets_nothing_come_in, routed);
with_each_engine!(a_host_checks_sources, routed);
with_each_engine!(a_route_goes_and_comes, routed);
with_each_engine!(a_route_becomes_a_black_hole, routed);
with_each_engine!(a_route_becomes_prohibited, routed);
with_each_engine!(a_route_becomes_unreachable, routed);
with_each_engine!(a_rule_leads_nowhere, routed);
with_each_engine!(a_rule_by_ports_leads_nowhere, routed);
with_each_engine!(an_address_goes_and_comes, routed);
with_each_engine!(a_device_goes_down_and_up, routed);

/// The server cannot hear of it before there is a way again.
fn a_reset_counts_while_the_other_peer_has_no_way(stage: &Stage) {
    let connection = stage.connect(1).remove(0);
    connection.moves_data();
    let site = Site {
        stage,
        side: Side::Server,
    };
    site.ip(&format!("route del {}", site.network()));
    if stage.splices() {
        until("it is closed", || stage.hop().closed() == 1);
    }
    connection.client.reset();
    stage.expect_ended(1, BY_RESET);
    site.restore_route();
    let _ = connection.server.try_write_number(1);
    until("the server is reset", || connection.server.was_reset());
}

/// What the client has sent gets no further: its connection ends when the relay's socket would give the server up.
fn a_way_that_stays_closed_ends_a_connection(stage: &Stage) {
    let connection = stage.connect(1).remove(0);
    connection.moves_data();
    let site = Site {
        stage,
        side: Side::Server,
    };
    site.ip(&format!("route del {}", site.network()));
    if stage.splices() {
        until("it is closed", || stage.hop().closed() == 1);
    }
    connection.client.write_number(1);
    until("the client is reset", || connection.client.was_reset());
    until("it has ended", || stage.hop().connections() == 1);
}

with_each_engine!(a_reset_counts_while_the_other_peer_has_no_way, routed);
with_each_engine!(a_way_that_stays_closed_ends_a_connection, impatient_routed);

/// Of the router, which is not heard of at its first one any more. The program sends there as well.
fn another_address_of_a_router_is_used(stage: &Stage) {
    goes_on(stage, |connections| {
        for side in Side::BOTH {
            Site { stage, side }.use_second_router();
            move_a_number(&connections[0]);
        }
    });
    expect_spliced(stage);
}

/// A pair that is spliced goes back to its sockets.
fn another_device_is_used(stage: &Stage, side: Side) {
    goes_on(stage, |connections| {
        Site { stage, side }.use_second_cable();
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    expect_return(stage, "is reached over another device");
}

fn another_device_is_used_towards_the_client(stage: &Stage) {
    another_device_is_used(stage, Side::Client);
}

fn another_device_is_used_towards_the_server(stage: &Stage) {
    another_device_is_used(stage, Side::Server);
}

pub(super) fn move_a_number(connection: &Connection) {
    for from in Side::BOTH {
        connection.end(from).write_number(1);
    }
    expect_open(connection);
}

/// A rule that sockets without a device do not meet, and redirected segments do.
fn a_rule_stops_redirected_segments(stage: &Stage, side: Side) {
    let site = Site { stage, side };
    goes_on(stage, |connections| {
        site.ip(&format!(
            "rule add oif {} pref 5 unreachable",
            site.device()
        ));
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    expect_return(stage, "by a route that translated segments do not take");
}

fn a_rule_stops_redirected_segments_to_the_client(stage: &Stage) {
    a_rule_stops_redirected_segments(stage, Side::Client);
}

fn a_rule_stops_redirected_segments_to_the_server(stage: &Stage) {
    a_rule_stops_redirected_segments(stage, Side::Server);
}

/// A bridge takes what comes in, and is the device that it came in on then.
fn a_device_becomes_a_port(stage: &Stage, side: Side) {
    let site = Site { stage, side };
    let device = site.device();
    let relay = stage.lab().relay();
    goes_on(stage, |connections| {
        ip(relay, "link add bridge type bridge");
        ip(relay, "link set bridge up");
        ip(relay, &format!("link set {device} master bridge"));
        if stage.splices() {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    expect_return(stage, "is reached over a port of another device");
}

fn a_device_towards_the_client_becomes_a_port(stage: &Stage) {
    a_device_becomes_a_port(stage, Side::Client);
}

fn a_device_towards_the_server_becomes_a_port(stage: &Stage) {
    a_device_becomes_a_port(stage, Side::Server);
}

with_each_engine!(a_device_towards_the_client_becomes_a_port, routed);
with_each_engine!(a_device_towards_the_server_becomes_a_port, routed);
with_each_engine!(a_rule_stops_redirected_segments_to_the_client, routed);
with_each_engine!(a_rule_stops_redirected_segments_to_the_server, routed);
/// Those of one connection go by one of them, and the program's by another one: none gets through on a device where its
/// next hop is not. With IPv4 the device decides.
fn several_devices_are_used(stage: &Stage, side: Side) {
    let is_spread = stage.family() == Family::V6;
    goes_on(stage, |connections| {
        Site { stage, side }.use_both_cables();
        if stage.splices() && is_spread {
            until("all have gone back", || stage.hop().are_spliced(0));
        }
        move_a_number(&connections[0]);
    });
    if is_spread {
        expect_return(stage, "is reached over several devices");
    }
}

fn several_devices_are_used_towards_the_client(stage: &Stage) {
    several_devices_are_used(stage, Side::Client);
}

fn several_devices_are_used_towards_the_server(stage: &Stage) {
    several_devices_are_used(stage, Side::Server);
}

with_each_engine!(several_devices_are_used_towards_the_client, routed);
with_each_engine!(several_devices_are_used_towards_the_server, routed);
with_each_engine!(another_address_of_a_router_is_used, routed);
with_each_engine!(another_device_is_used_towards_the_client, routed);
with_each_engine!(another_device_is_used_towards_the_server, routed);
