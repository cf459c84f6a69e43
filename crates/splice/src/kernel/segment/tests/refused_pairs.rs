//! Pairs that the engine refuses, and the reasons that it gives.

use std::os::fd::AsFd as _;

use netlab::{ControlGroup, present};
use rustix::net::sockopt;
use socket2::SockRef;

use super::*;
use splice_bpf::types::segment_socket_flag as has;

/// DSCP EF (RFC 3246), in its place.
const EXPEDITED: u32 = 0xb8;

/// That of interactive traffic (`TC_PRIO_INTERACTIVE`).
const PRIORITY: u32 = 6;

/// A rule of address translation.
fn nft(namespace: &Namespace, hook: &str, rule: &str) {
    run(namespace, "nft", "add table ip t");
    let chain = format!("add chain ip t c {{ type nat hook {hook} ; }}");
    run(namespace, "nft", &chain);
    run(namespace, "nft", &format!("add rule ip t c {rule}"));
}

#[test]
fn a_translated_address_is_found_and_refused() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let [relay, server] = [lab.relay(), lab.server()];
    // The server sees an address of the relay that is not the one of the relay's socket.
    run(relay, "ip", "addr add 198.18.2.77/32 dev lo");
    run(server, "ip", "route add 198.18.2.77/32 via 198.18.2.1");
    nft(
        relay,
        "postrouting priority 100",
        "ip daddr 198.18.2.2 snat to 198.18.2.77",
    );
    let splicer = splicer_in(relay);
    // Connection tracking knows only the other address, so the filters would refuse the pair first.
    let options = Options {
        bypass_firewall: true,
        ..by_name()
    };
    let (_client, _server, handle) = Connected::across(&lab).join(&splicer, &options);
    let why = why_refused(&handle);
    assert!(why.contains("NAT"), "{why}");
}

#[test]
fn a_redirected_port_is_found_and_refused() {
    if !available(Need::Root) || !available(Need::Nft) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let (front, front_address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let (back, back_address) = listen_in(lab.server(), (Lab::SERVER_V4, 0));
    let rule = format!("tcp dport 81 redirect to :{}", front_address.port());
    nft(lab.relay(), "prerouting priority -100", &rule);
    let client = connect_in(lab.client(), (Lab::RELAY_V4, 81));
    let a = front.accept().expect("accept").0;
    let b = connect_in(lab.relay(), back_address);
    let server = back.accept().expect("accept").0;
    let connected = Connected::new(client, [a, b], server);
    // Without a name the pair goes on with another engine, and no byte is lost.
    let options = Options {
        promote_after_bytes: 1,
        bypass_firewall: true,
        ..Options::default()
    };
    let (client, server, handle) = connected.join(&splicer, &options);
    ping(&client, &server);
    let deadline = Instant::now() + PATIENCE;
    while !handle.engine().1.contains("NAT") && handle.engine().0 != EngineName::Sockmap {
        assert!(Instant::now() < deadline, "{:?}", handle.engine());
        ping(&client, &server);
    }
    assert_ne!(handle.engine().0, EngineName::Segment);
    ping(&client, &server);
}

/// The program takes traffic class and priority off what it translates, so a socket that has one keeps its packets.
#[test]
fn a_socket_with_a_traffic_class_or_a_priority_is_refused() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    for (is_v4, is_priority) in [(true, false), (false, false), (true, true), (false, true)] {
        let [relay, server]: [IpAddr; 2] = if is_v4 {
            [Lab::RELAY_V4, Lab::SERVER_V4].map(Into::into)
        } else {
            [Lab::RELAY_V6, Lab::SERVER_V6].map(Into::into)
        };
        let (front, front_address) = listen_in(lab.relay(), (relay, 0));
        let (back, back_address) = listen_in(lab.server(), (server, 0));
        let client = connect_in(lab.client(), front_address);
        let a = front.accept().expect("accept").0;
        let b = connect_in(lab.relay(), back_address);
        let server = back.accept().expect("accept").0;
        let socket = SockRef::from(&b);
        let set = match (is_priority, is_v4) {
            (true, _) => socket.set_priority(PRIORITY),
            (false, true) => socket.set_tos_v4(EXPEDITED),
            (false, false) => socket.set_tclass_v6(EXPEDITED),
        };
        set.expect("a traffic class, or a priority");
        let connected = Connected::new(client, [a, b], server);
        let (_client, _server, handle) = connected.join(&splicer, &by_name());
        let why = why_refused(&handle);
        let words = "B gives its packets a traffic class or priority";
        assert!(why.contains(words), "{why}");
    }
}

/// A pair whose client sends with a TTL of 1, as single-hop BGP does.
fn connect_next_door(lab: &Lab, relay: IpAddr, server: IpAddr) -> Connected {
    let (front, front_address) = listen_in(lab.relay(), (relay, 0));
    let (back, back_address) = listen_in(lab.server(), (server, 0));
    let client = lab.client().enter(|| {
        let domain = socket2::Domain::for_address(front_address);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
        let set = if front_address.is_ipv4() {
            socket.set_ttl_v4(1)
        } else {
            socket.set_unicast_hops_v6(1)
        };
        set.expect("a TTL");
        socket.connect(&front_address.into()).expect("connect");
        TcpStream::from(socket)
    });
    let client = client.expect("entered");
    let a = front.accept().expect("accept").0;
    let b = connect_in(lab.relay(), back_address);
    let server = back.accept().expect("accept").0;
    Connected::new(client, [a, b], server)
}

/// Segments with a TTL of 1 reach the relay, but translated ones would go no further. The program knows from
/// the handshake, or from the answer to a probe.
#[test]
fn segments_on_their_last_hop_are_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let by_version: [[IpAddr; 2]; 2] = [
        [Lab::RELAY_V4, Lab::SERVER_V4].map(Into::into),
        [Lab::RELAY_V6, Lab::SERVER_V6].map(Into::into),
    ];
    for [relay, server] in by_version {
        let lab = Lab::new().expect("a lab");
        let splicer = splicer_in(lab.relay());
        for sees_handshake in [false, true] {
            let (client, server, handle) =
                connect_next_door(&lab, relay, server).join(&splicer, &by_volume(10));
            for stream in [&client, &server] {
                stream.set_read_timeout(Some(PATIENCE)).expect("a limit");
            }
            ping(&client, &server);
            netlab::until("it is refused", || {
                ping(&client, &server);
                handle.engine().1.contains("TTL")
            });
            assert_ne!(handle.engine().0, EngineName::Segment, "{sees_handshake}");
            ping(&client, &server);
        }
    }
}

/// A server beyond a tunnel, to which the route encapsulates packets. A translated segment would leave
/// without that, and nobody would know its connection.
#[test]
fn a_pair_whose_route_encapsulates_stays_with_its_sockets() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let [near, far] = [Lab::RELAY_FAR_V4, Lab::SERVER_V4];
    let encapsulated = format!("encap ip id 7 dst {far} src {near}");
    for (namespace, how, number, route) in [
        (lab.relay(), "external", 1, encapsulated.as_str()),
        (
            lab.server(),
            &format!("id 7 local {far} remote {near}"),
            2,
            "scope link",
        ),
    ] {
        let peer = 3 - number;
        for what in [
            format!("link add vx type vxlan dstport 4789 {how}"),
            format!("link set vx address 02:00:00:00:00:0{number} up"),
            format!("addr add 198.18.3.{number}/32 dev vx"),
            format!("neigh add 198.18.3.{peer} lladdr 02:00:00:00:00:0{peer} dev vx"),
            format!("route add 198.18.3.{peer} {route} dev vx"),
        ] {
            run(namespace, "ip", &what);
        }
    }
    let (front, front_address) = listen_in(lab.relay(), (Lab::RELAY_V4, 0));
    let (back, back_address) = listen_in(lab.server(), ("198.18.3.2", 0));
    let client = connect_in(lab.client(), front_address);
    let a = front.accept().expect("accept").0;
    let b = connect_in(lab.relay(), back_address);
    let server = back.accept().expect("accept").0;
    ping(&b, &server);
    let splicer = splicer_in(lab.relay());
    let (client, server, handle) =
        Connected::new(client, [a, b], server).join(&splicer, &by_name());
    ping(&client, &server);
    expect_kept(&handle, "encapsulate");
}

/// Translated segments are routed by their addresses.
#[test]
fn a_pair_that_a_rule_may_route_by_ports_stays_with_its_sockets() {
    if !available(Need::Root) {
        return;
    }
    for (ip, connect) in [
        ("-4", Connected::across as fn(&Lab) -> Connected),
        ("-6", Connected::across_v6),
    ] {
        let lab = Lab::new().expect("a lab");
        // A rule on addresses is no obstacle. TCP is given as 6, since its name needs /etc/protocols.
        for (rule, is_kept) in [("from all", false), ("ipproto 6 dport 9", true)] {
            run(
                lab.relay(),
                "ip",
                &format!("{ip} rule add {rule} lookup main"),
            );
            let splicer = splicer_in(lab.relay());
            let (client, server, handle) = connect(&lab).join(&splicer, &by_name());
            ping(&client, &server);
            if is_kept {
                expect_kept(&handle, "ip rule");
            } else {
                netlab::until("it is taken", || handle.is_taken());
            }
        }
    }
}

/// What a sockmap's programs do with a socket's bytes cannot be done with segments.
#[test]
fn a_socket_in_a_sockmap_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let redirect = splice_bpf::objects::REDIRECT;
    let object = load("redirect", redirect, |_| Ok(())).expect("loaded");
    let map = object.map("targets").expect("a map");
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let connected = Connected::across(&lab);
    let cookie = sockopt::socket_cookie(&connected.b).expect("a cookie");
    map.insert_socket(&cookie, connected.b.as_fd())
        .expect("inserted");
    let (_client, _server, handle) = connected.join(&splicer, &by_name());
    let why = why_refused(&handle);
    assert!(why.contains("layer"), "{why}");
}

/// A program of the control group sees what the socket receives and sends, and may drop it.
#[test]
fn a_program_of_the_control_group_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let group = match ControlGroup::new("filtered") {
        Ok(group) => group,
        Err(error) => {
            present("cgroup", Some(format!("{error:#}")));
            return;
        }
    };
    let filter = splice_bpf::objects::CGROUP_FILTER;
    let object = load("cgroup_filter", filter, |_| Ok(())).expect("loaded");
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let connect = || {
        let connected = group.enter(|| Connected::across(&lab));
        connected.expect("entered")
    };
    for program in ["filter_ingress", "filter_egress"] {
        let connected = connect();
        let link = object.attach_to_cgroup(program, group.as_fd());
        let ends = [&connected.a, &connected.b];
        for socket in sockets_across(&lab, ends) {
            assert_ne!(socket.flags & has::FILTERED, 0, "{program}");
        }
        let (_client, _server, handle) = connected.join(&splicer, &by_name());
        let why = why_refused(&handle);
        assert!(why.contains("control group"), "{why}");
        // The program of another group does not matter.
        spliced_across(&lab, &splicer);
        drop(link);
        let connected = connect();
        // A process that another test is just starting has the link's descriptor until it runs its program.
        netlab::until("the program is gone", || {
            sockets_across(&lab, [&connected.a, &connected.b])
                .iter()
                .all(|socket| socket.flags & has::FILTERED == 0)
        });
        spliced(&lab, &splicer, connected);
    }
}

/// It sees all that comes to the socket's control group, by the options of each segment.
#[test]
fn a_program_that_reads_tcp_options_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let group = match ControlGroup::new("options") {
        Ok(group) => group,
        Err(error) => {
            present("cgroup", Some(format!("{error:#}")));
            return;
        }
    };
    let filter = splice_bpf::objects::CGROUP_FILTER;
    let object = load("cgroup_filter", filter, |_| Ok(())).expect("loaded");
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    let connect = || {
        let connected = group.enter(|| Connected::across(&lab));
        connected.expect("entered")
    };
    // A program that wants nothing to do with options is no obstacle.
    let link = object.attach_to_cgroup("told_of_connections", group.as_fd());
    spliced(&lab, &splicer, connect());
    drop(link);
    let link = object.attach_to_cgroup("reads_options", group.as_fd());
    let connected = connect();
    drop(link);
    let (_client, _server, handle) = connected.join(&splicer, &by_name());
    let why = why_refused(&handle);
    assert!(why.contains("sock_ops"), "{why}");
}

/// A BPF program at a netfilter hook may do anything with the packets.
#[test]
fn a_bpf_program_at_a_hook_of_netfilter_is_refused_with_the_reason() {
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let program = splice_bpf::objects::NETFILTER_LINK;
    let attach = || {
        let object = load("netfilter_link", program, |_| Ok(()))?;
        let hook = libbpf_rs::NF_INET_LOCAL_IN;
        Ok(object.attach_to_netfilter("netfilter_link", hook, -77))
    };
    let attached: crate::Result<_> = lab.relay().enter(attach).expect("entered");
    let missing = attached.as_ref().err().map(ToString::to_string);
    if !present("netfilter-link", missing) {
        return;
    }
    let splicer = splicer_in(lab.relay());
    let (_client, _server, handle) = Connected::across(&lab).join(&splicer, &by_name());
    let why = why_refused(&handle);
    let words = "a BPF program is attached to netfilter's IPv4 input hook (priority -77)";
    assert!(why.contains(words), "{why}");
    let bypassing = Options {
        bypass_firewall: true,
        ..by_name()
    };
    let (client, server, handle) = Connected::across(&lab).join(&splicer, &bypassing);
    ping(&client, &server);
    netlab::until("the engine has the pair", || {
        handle.engine().0 == EngineName::Segment
    });
    drop(attached);
}

/// As after the end of a path MTU that was learned.
#[test]
fn a_pair_whose_socket_has_to_look_for_its_route_is_taken_once_it_has_sent() {
    const PAIRS: usize = 8;
    if !available(Need::Root) {
        return;
    }
    let lab = Lab::new().expect("a lab");
    let splicer = splicer_in(lab.relay());
    for _ in 0..PAIRS {
        let connected = Connected::across(&lab);
        // Another mark may mean another route (`sk_dst_reset`).
        for mark in [1, 0] {
            let socket = SockRef::from(&connected.b);
            socket.set_mark(mark).expect("SO_MARK");
        }
        let (client, server, handle) = connected.join(&splicer, &by_name());
        ping(&client, &server);
        netlab::until("it is taken", || handle.is_taken());
    }
}
