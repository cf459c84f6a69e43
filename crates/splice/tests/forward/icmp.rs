//! ICMP errors about segments that were translated.

use std::io::ErrorKind;
use std::net::IpAddr;

use netlab::{Lab, Namespace, Need, available, until};
use splice::ForwardEnd;

use crate::forgery::{Forger, too_big};
use crate::hops::{Hops, ip};
use crate::stage::{Stage, payload, ping, pour_around};

/// Above the least that IPv6 allows (1280).
const SMALL_MTU: u32 = 1300;

const BYTES: usize = 8 << 20;

/// Both ends of a cable: a veth drops what is longer than its own MTU when it comes in (`is_skb_forwardable`).
fn narrow(ends: [(&Namespace, &str); 2]) {
    for (namespace, device) in ends {
        ip(namespace, &format!("link set {device} mtu {SMALL_MTU}"));
    }
}

/// Whether a host has learnt a smaller path MTU.
fn has_learnt(namespace: &Namespace, towards: IpAddr) -> bool {
    ip(namespace, &format!("route get {towards}")).contains(&format!("mtu {SMALL_MTU}"))
}

/// The path of one direction becomes narrower while bytes go along it.
fn through_a_path_that_narrows(stage: &Stage, is_up: bool, ends: [(&Namespace, &str); 2]) {
    let (client, server) = stage.connect();
    let (from, mut to) = if is_up {
        (client, server)
    } else {
        (server, client)
    };
    let sender = if is_up {
        stage.client_side()
    } else {
        stage.server_side()
    };
    let towards = from.peer_addr().expect("an address").ip();
    assert!(!has_learnt(sender, towards));
    pour_around(from, &mut to, &payload(BYTES, 3), || narrow(ends));
    assert!(has_learnt(sender, towards));
    assert!(stage.is_unknown_to_the_socket());
}

#[test]
fn a_router_beyond_the_relay_lowers_its_mtu() {
    if !available(Need::Root) {
        return;
    }
    for is_v6 in [false, true] {
        for is_up in [true, false] {
            let stage = Stage::routed(is_v6);
            let router = if is_up {
                stage.lab.server()
            } else {
                stage.lab.client()
            };
            let host = if is_up {
                stage.server_side()
            } else {
                stage.client_side()
            };
            let ends = [(router, Hops::OUTWARD), (host, Hops::INWARD)];
            through_a_path_that_narrows(&stage, is_up, ends);
        }
    }
}

#[test]
fn the_relays_own_device_gets_a_lower_mtu() {
    if !available(Need::Root) {
        return;
    }
    for is_v6 in [false, true] {
        for is_up in [true, false] {
            let stage = if is_v6 { Stage::v6() } else { Stage::new() };
            let relay = stage.lab.relay();
            let ends = if is_up {
                [(relay, Lab::TO_SERVER), (stage.lab.server(), Lab::TO_RELAY)]
            } else {
                [(relay, Lab::TO_CLIENT), (stage.lab.client(), Lab::TO_RELAY)]
            };
            through_a_path_that_narrows(&stage, is_up, ends);
        }
    }
}

/// A server that routers say they cannot reach.
fn refused_by_a_router(is_v6: bool, kind: &str) -> ErrorKind {
    let stage = Stage::routed(is_v6);
    let network = if is_v6 {
        format!("-6 route add {kind} {}", Hops::FAR_V6)
    } else {
        format!("-4 route add {kind} {}", Hops::FAR_V4)
    };
    ip(stage.lab.server(), &network);
    let error = stage.try_client().expect_err("no way leads there");
    assert_eq!(stage.next_ended().end, ForwardEnd::Refused);
    error.kind()
}

#[test]
fn a_router_that_knows_no_way_is_heard_by_the_client() {
    if !available(Need::Root) {
        return;
    }
    assert_eq!(
        refused_by_a_router(false, "unreachable"),
        ErrorKind::HostUnreachable
    );
    // Linux says "no route to destination" (`ip6_pkt_discard`).
    assert_eq!(
        refused_by_a_router(true, "unreachable"),
        ErrorKind::NetworkUnreachable
    );
}

#[test]
fn a_server_that_refuses_by_icmp_is_heard_by_the_client() {
    if !(available(Need::Root) && available(Need::Nft)) {
        return;
    }
    for stage in [Stage::routed(false), Stage::routed(true)] {
        let port = stage.server.local_addr().expect("an address").port();
        let rules = format!(
            "add table inet t; add chain inet t c {{ type filter hook input priority 0; }}; \
             add rule inet t c tcp dport {port} reject with icmpx type port-unreachable"
        );
        let done = stage
            .server_side()
            .command("nft")
            .arg(rules)
            .output()
            .expect("nft runs");
        assert!(done.status.success(), "{done:?}");
        let error = stage.try_client().expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        assert_eq!(stage.next_ended().end, ForwardEnd::Refused);
    }
}

/// Only an error about a segment that may be on its way is passed on.
#[test]
fn a_forged_error_tells_nobody_anything() {
    if !available(Need::Root) {
        return;
    }
    let stage = Stage::new();
    let forger = Forger::beside(&stage);
    let (client, server) = stage.connect();
    let [from, to] = [server.peer_addr(), server.local_addr()].map(|end| end.expect("an address"));
    let next = forger.numbers(&client, || ping(&client, &server)).client;
    let has_learnt = || has_learnt(stage.client_side(), stage.listens_at.ip());
    for beside in [2, 1 << 16, 1 << 30, 1 << 31, u32::MAX] {
        let error = too_big(from, to, next.wrapping_add(beside), SMALL_MTU as u16);
        forger.send_as_server(&error);
    }
    // What comes later has not overtaken them.
    ping(&client, &server);
    assert!(!has_learnt());
    let next = forger.numbers(&client, || ping(&client, &server)).client;
    forger.send_as_server(&too_big(from, to, next, SMALL_MTU as u16));
    until("a likely one is believed", has_learnt);
}
