use std::net::SocketAddr;

use netlab::{Namespace, Need, available};

use super::*;

fn ends(local: &str, peer: &str) -> Ends {
    let end = |text: &str| text.parse::<SocketAddr>().expect("an address");
    Ends {
        local: end(local),
        peer: end(peer),
        type_of_service: 0,
        is_transparent: false,
    }
}

/// What one policy does with a connection on device 7, in the words of `ip xfrm policy add`.
#[test]
fn a_policy_counts_for_the_segments_that_it_matches() {
    const ESP: &str = "tmpl proto esp mode transport";
    if !available(Need::Netns) {
        return;
    }
    let here = Namespace::new("ipsec").expect("a namespace");
    let xfrm = |command: &str| {
        let mut ip = here.command("ip");
        let done = ip
            .args(["xfrm", "policy"])
            .args(command.split(' '))
            .output();
        let done = done.expect("ip runs");
        done.status.success()
    };
    let opened = here.enter(|| Ok::<_, io::Error>((PolicyReader::new()?, PolicyChanges::new()?)));
    let (mut reader, mut changes) = opened.expect("entered").expect("netlink");
    let v4 = ends("10.0.0.1:80", "10.0.9.9:2000");
    let v6 = ends("[2001:db8::1]:80", "[2001:db8:9::9]:2000");
    let (blocked, required) = (Some(Protection::Blocked), Some(Protection::Required));
    for (ends, policy, expected) in [
        (
            v4,
            "src 10.0.0.0/24 dst 10.0.9.0/24 dir out action block",
            blocked,
        ),
        (
            v4,
            &format!("src 10.0.0.1/32 dst 10.0.9.9/32 dir out {ESP}"),
            required,
        ),
        (
            v4,
            &format!("src 10.0.9.9/32 dst 10.0.0.1/32 dir in {ESP}"),
            required,
        ),
        (
            v4,
            "src 0.0.0.0/0 dst 0.0.0.0/0 dir in action block",
            blocked,
        ),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 proto tcp sport 2000 dport 80 dir in action block",
            blocked,
        ),
        (
            v4,
            "src 10.0.0.1/32 dst 10.0.9.9/32 proto tcp sport 80 dir out action block",
            blocked,
        ),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 dev lo dir in action block",
            Some(Protection::Unclear),
        ),
        // Others
        (
            v4,
            "src 10.0.9.0/24 dst 10.0.0.0/24 dir out action block",
            None,
        ),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 proto tcp sport 2001 dir in action block",
            None,
        ),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 proto udp dir in action block",
            None,
        ),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 dir fwd action block",
            None,
        ),
        (v4, "src 10.0.9.9/32 dst 10.0.0.1/32 dir in", None),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 dir in action block mark 1",
            None,
        ),
        (
            v4,
            "src 10.0.9.9/32 dst 10.0.0.1/32 dir in action block if_id 3",
            None,
        ),
        (v6, "src 0.0.0.0/0 dst 0.0.0.0/0 dir in action block", None),
        (
            v6,
            "src 2001:db8::/32 dst 2001:db8::/32 dir out action block",
            blocked,
        ),
        (
            v6,
            "src 2001:db8::1/128 dst 2001:db8:9::8/125 dir out action block",
            blocked,
        ),
        (
            v6,
            "src 2001:db8::1/128 dst 2001:db8:9::/125 dir out action block",
            None,
        ),
    ] {
        let _ = changes.any();
        assert!(xfrm(&format!("add {policy}")), "{policy}");
        assert!(changes.any().expect("it hears"), "{policy}");
        let policies = reader.read().expect("read");
        let done = [
            policies.on_incoming(&ends, 7),
            policies.on_outgoing(&ends, 7),
        ];
        let done = done.map(|done| done.expect("read"));
        let expected = match policy.contains("dir in") {
            true => [expected, None],
            false => [None, expected],
        };
        assert_eq!(done, expected, "{policy}: {policies:?}");
        assert!(xfrm("flush"));
        assert_eq!(reader.read().expect("read"), Policies::default());
    }
    let of_two = [
        "add src 10.0.0.0/24 dst 10.0.9.0/24 dir out action block priority 20",
        "add src 10.0.0.1/32 dst 10.0.9.9/32 dir out priority 10",
    ];
    assert!(of_two.into_iter().all(xfrm));
    let read = |reader: &mut PolicyReader| reader.read().expect("read");
    let done = read(&mut reader).on_outgoing(&v4, 7);
    assert_eq!(done.expect("read"), None);
    assert!(xfrm("flush"));
    // Before Linux 5.15 there are none.
    if xfrm("setdefault in block") {
        let done = read(&mut reader).on_incoming(&v6, 7);
        assert_eq!(done.expect("read"), blocked);
    }
}

/// The kernel takes the older one, and does not tell which that is.
#[test]
fn policies_of_one_priority_have_to_agree() {
    if !available(Need::Netns) {
        return;
    }
    let v4 = ends("10.0.0.1:80", "10.0.9.9:2000");
    const BLOCKS: &str = "src 10.0.0.0/24 dst 10.0.9.0/24 dir out action block";
    const ALLOWS: &str = "src 10.0.0.1/32 dst 10.0.9.9/32 dir out";
    const BLOCKS_TOO: &str = "src 10.0.0.1/32 dst 10.0.9.0/24 dir out action block";
    for (policies, expected) in [
        ([ALLOWS, BLOCKS], Protection::Unclear),
        ([BLOCKS, ALLOWS], Protection::Unclear),
        ([BLOCKS, BLOCKS_TOO], Protection::Blocked),
    ] {
        let here = Namespace::new("ipsec").expect("a namespace");
        for policy in policies {
            add(&here, policy);
        }
        let policies = read(&here);
        let done = policies.on_outgoing(&v4, 7).expect("read");
        assert_eq!(done, Some(expected), "{policies:?}");
    }
}

fn add(namespace: &Namespace, policy: &str) {
    let mut ip = namespace.command("ip");
    let done = ip
        .args(["xfrm", "policy", "add"])
        .args(policy.split(' '))
        .output();
    assert!(done.expect("ip runs").status.success(), "{policy}");
}

fn read(namespace: &Namespace) -> Policies {
    let read = namespace.enter(|| PolicyReader::new()?.read());
    read.expect("entered").expect("read")
}

/// On a device, and on all.
#[test]
fn settings_switch_policies_off() {
    if !available(Need::Netns) {
        return;
    }
    let here = Namespace::new("ipsec").expect("a namespace");
    let v4 = ends("10.0.0.1:80", "10.0.9.9:2000");
    let v6 = ends("[2001:db8::1]:80", "[2001:db8:9::9]:2000");
    for any in ["0.0.0.0/0", "::/0"] {
        for direction in ["in", "out"] {
            add(
                &here,
                &format!("src {any} dst {any} dir {direction} action block"),
            );
        }
    }
    let all = read(&here);
    let blocked = Some(Protection::Blocked);
    let set = |family, name, device, value| {
        let setting = format!("net.{family}.conf.{device}.{name}");
        here.set_sysctl(&setting, value).expect("set");
    };
    // Of the kernel's own accord they are off on IPv4's loopback device.
    let done = |ends| {
        let done = here.enter(|| {
            [
                all.on_incoming(ends, LOOPBACK),
                all.on_outgoing(ends, LOOPBACK),
            ]
        });
        done.expect("entered").map(|done| done.expect("read"))
    };
    assert_eq!(done(&v4), [None; 2]);
    assert_eq!(done(&v6), [blocked; 2]);
    set("ipv4", "disable_policy", "lo", "0");
    set("ipv4", "disable_xfrm", "lo", "0");
    assert_eq!(done(&v4), [blocked; 2]);
    set("ipv4", "disable_policy", "all", "1");
    assert_eq!(done(&v4), [None, blocked]);
    set("ipv4", "disable_xfrm", "all", "1");
    assert_eq!(done(&v4), [None; 2]);
    set("ipv6", "disable_policy", "lo", "1");
    assert_eq!(done(&v6), [Some(Protection::Unclear), blocked]);
    set("ipv6", "disable_policy", "all", "1");
    assert_eq!(done(&v6), [Some(Protection::Unclear), blocked]);
    // What no policy matches is blocked all the same, where it leaves by another device.
    let default = Policies {
        policies: Vec::new(),
        blocks: [true; 2],
    };
    for (device, expected) in [(LOOPBACK, None), (7, blocked)] {
        for ends in [&v4, &v6] {
            let done = here.enter(|| default.on_outgoing(ends, device));
            assert_eq!(done.expect("entered").expect("read"), expected);
        }
    }
}
