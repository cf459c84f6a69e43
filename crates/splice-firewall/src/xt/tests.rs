mod cases;
mod kernel;

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::action::Action;
use crate::known::Answer::{Maybe, No, Yes};
use crate::legacy::fixture::{actions, connection, holds, holds_at, rules};
use crate::rule::{Rule, Step};
use crate::segment::{Connection, Device, End, Family, Hook, Segment};
use crate::xt::{Match, target};
use cases::{BOTH, Case, IPV4, IPV6};

#[test]
fn matches_of_iptables_are_answered() {
    check(Family::Ipv4, BOTH);
    check(Family::Ipv4, IPV4);
}

#[test]
fn matches_of_ip6tables_are_answered() {
    check(Family::Ipv6, BOTH);
    check(Family::Ipv6, IPV6);
}

fn check(family: Family, cases: &[Case]) {
    let options: Vec<&str> = cases.iter().map(|(options, ..)| *options).collect();
    let Some(rules) = rules(family, "mangle", &options) else {
        return;
    };
    let connection = connection(family);
    let mut wrong = Vec::new();
    for (rule, (options, inbound, outbound)) in rules.iter().zip(cases) {
        let is = [Hook::Prerouting, Hook::Output].map(|hook| holds(rule, &connection, hook));
        if is != [*inbound, *outbound] || !actions(rule).is_empty() {
            wrong.push((options, is, actions(rule)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn an_unknown_property_of_a_connection_makes_a_match_maybe() {
    let cases: &[Case] = &[
        ("-p tcp --dport 80", Maybe, Maybe),
        ("-p tcp --sport 0:65535", Yes, Yes),
        ("-p tcp -m multiport --dports 80", Maybe, Maybe),
        ("-m iprange --src-range 192.0.2.1-192.0.2.9", Maybe, Maybe),
        ("-m iprange --src-range 0.0.0.0-255.255.255.255", Yes, Yes),
        ("-m addrtype --dst-type LOCAL", Yes, Maybe),
        ("-m addrtype --dst-type LOCAL,UNICAST", Yes, Yes),
        ("-m addrtype --dst-type MULTICAST", No, No),
        ("-m rpfilter", Maybe, Maybe),
        ("-s 192.0.2.1", Maybe, Maybe),
        ("-s 0.0.0.0/0", Yes, Yes),
        ("-i eth0", Maybe, No),
        ("! -i eth0", Maybe, Yes),
        ("-o eth+", No, Maybe),
    ];
    let options: Vec<&str> = cases.iter().map(|(options, ..)| *options).collect();
    let Some(rules) = rules(Family::Ipv4, "mangle", &options) else {
        return;
    };
    let nothing = Connection {
        family: Family::Ipv4,
        local: End::default(),
        peer: End::default(),
        device: None,
        accepted: true,
        tracked: true,
        opening: false,
    };
    for (rule, (options, inbound, outbound)) in rules.iter().zip(cases) {
        let is = [Hook::Prerouting, Hook::Output].map(|hook| holds(rule, &nothing, hook));
        assert_eq!(is, [*inbound, *outbound], "{options}");
    }
}

#[test]
fn on_loopback_both_ends_are_local() {
    for family in [Family::Ipv4, Family::Ipv6] {
        let options = ["--src-type LOCAL", "--dst-type LOCAL"];
        let options = options.map(|types| format!("-m addrtype {types}"));
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let Some(rules) = rules(family, "mangle", &options) else {
            return;
        };
        let mut connection = connection(family);
        connection.device = Some(Device {
            index: 1,
            name: "lo".into(),
            hardware_type: Device::LOOPBACK,
        });
        for rule in &rules {
            for hook in [Hook::Prerouting, Hook::Output] {
                assert_eq!(holds(rule, &connection, hook), Yes);
            }
        }
    }
}

#[test]
fn the_original_direction_is_that_of_the_opener() {
    let Some(rules) = rules(Family::Ipv4, "mangle", &["-m conntrack --ctdir ORIGINAL"]) else {
        return;
    };
    let mut connection = connection(Family::Ipv4);
    connection.accepted = false;
    assert_eq!(holds(&rules[0], &connection, Hook::Input), No);
    assert_eq!(holds(&rules[0], &connection, Hook::Output), Yes);
}

#[test]
fn before_connection_tracking_the_state_is_unknown() {
    let option = ["-m conntrack --ctstate ESTABLISHED"];
    let Some(raw) = rules(Family::Ipv4, "raw", &option) else {
        return;
    };
    let Some(mangle) = rules(Family::Ipv4, "mangle", &option) else {
        return;
    };
    let connection = connection(Family::Ipv4);
    let at = |rule: &Rule, hook, priority| {
        let segment = Segment::at(&connection, hook, priority, false);
        holds_at(rule, &segment)
    };
    assert_eq!(at(&raw[0], Hook::Prerouting, -300), Maybe);
    assert_eq!(at(&mangle[0], Hook::Prerouting, -150), Yes);
    assert_eq!(at(&mangle[0], Hook::Ingress, 0), Maybe);
    let mut unknown = connection.clone();
    unknown.tracked = false;
    assert_eq!(holds(&mangle[0], &unknown, Hook::Prerouting), Maybe);
}

#[test]
fn a_match_with_a_side_effect_is_an_effect() {
    let cases = [
        ("-m limit --limit 1/s", "counts against a limit"),
        (
            "-m hashlimit --hashlimit-above 1/s --hashlimit-name of-a-test",
            "counts against a limit",
        ),
        ("-m quota --quota 1", "counts against a quota"),
        (
            "-p tcp -m connlimit --connlimit-above 1",
            "counts connections",
        ),
        (
            "-m statistic --mode nth --every 2 --packet 0",
            "counts packets",
        ),
        (
            "-m recent --set --name seen",
            "changes a list of recent addresses",
        ),
        (
            "-m recent --update --name seen",
            "changes a list of recent addresses",
        ),
        ("-m connlabel --label 1 --set", "sets a label"),
        ("-m socket --restore-skmark", "sets a mark"),
    ];
    let options = cases.map(|(options, _)| options);
    for family in [Family::Ipv4, Family::Ipv6] {
        let Some(rules) = rules(family, "mangle", &options) else {
            return;
        };
        let connection = connection(family);
        for (rule, (options, effect)) in rules.iter().zip(cases) {
            assert_eq!(actions(rule), [&Action::Effect(effect.into())], "{options}");
            assert_eq!(holds(rule, &connection, Hook::Input), Maybe, "{options}");
        }
    }
}

#[test]
fn every_target_has_its_action() {
    let stop = |what: &str| Action::Stop(what.into());
    let effect = |what: &str| Action::Effect(what.into());
    let both = [
        ("filter", "-j REJECT", stop("rejects")),
        ("filter", "-j NFQUEUE", stop("queues to user space")),
        ("filter", "-j LOG", effect("logs")),
        ("filter", "-j NFLOG", effect("logs")),
        ("filter", "-j AUDIT --type accept", effect("logs")),
        ("raw", "-j TRACE", effect("logs")),
        ("mangle", "-j MARK --set-mark 1", effect("sets a mark")),
        (
            "mangle",
            "-j CONNMARK --restore-mark",
            effect("sets a mark"),
        ),
        ("mangle", "-j CONNSECMARK --save", effect("sets a mark")),
        (
            "mangle",
            "-j CLASSIFY --set-class 1:1",
            effect("sets a priority"),
        ),
        (
            "raw",
            "-j CT --notrack",
            effect("tells connection tracking what to do"),
        ),
        (
            "mangle",
            "-p tcp -j TPROXY --on-port 1",
            stop("diverts to a proxy"),
        ),
        (
            "mangle",
            "-j DSCP --set-dscp 1",
            effect("changes the IP header"),
        ),
        (
            "mangle",
            "-j TOS --set-tos 16",
            effect("changes the IP header"),
        ),
        (
            "mangle",
            "-p tcp --syn -j TCPMSS --clamp-mss-to-pmtu",
            effect("changes the maximum segment size"),
        ),
        (
            "mangle",
            "-p tcp -j TCPOPTSTRIP --strip-options timestamp",
            effect("changes the TCP header"),
        ),
        (
            "mangle",
            "-p tcp -j CHECKSUM --checksum-fill",
            effect("fills in checksums"),
        ),
        (
            "mangle",
            "-j IDLETIMER --timeout 1 --label TEST",
            effect("restarts a timer"),
        ),
    ];
    let ipv4 = [
        (
            "mangle",
            "-j TTL --ttl-inc 1",
            effect("changes the IP header"),
        ),
        (
            "mangle",
            "-p tcp -j ECN --ecn-tcp-remove",
            effect("changes the TCP header"),
        ),
        (
            "mangle",
            "-j TEE --gateway 192.0.2.2",
            effect("sends a copy to another host"),
        ),
    ];
    let ipv6 = [(
        "mangle",
        "-j HL --hl-inc 1",
        effect("changes the IP header"),
    )];
    for (family, more) in [(Family::Ipv4, &ipv4[..]), (Family::Ipv6, &ipv6)] {
        for table in ["filter", "raw", "mangle"] {
            let cases: Vec<_> = both
                .iter()
                .chain(more)
                .filter(|(its_table, ..)| *its_table == table)
                .collect();
            let options: Vec<&str> = cases.iter().map(|(_, options, _)| *options).collect();
            let Some(rules) = rules(family, table, &options) else {
                return;
            };
            for (rule, (_, options, action)) in rules.iter().zip(cases) {
                assert_eq!(actions(rule), [action], "{options}");
            }
        }
    }
}

#[test]
fn an_unknown_match_or_target_is_opaque() {
    let opaque = |what| Action::Opaque(format!("is of a kind that is not understood ({what})"));
    assert_eq!(target("NOVELTY"), opaque("xt target NOVELTY"));
    assert_eq!(target("DNAT"), opaque("xt target DNAT"));
    assert_eq!(
        Step::of_match(Match::decode(Family::Ipv4, "novelty", 0, &[0; 64])),
        [Step::Act(opaque("xt match novelty"))]
    );
    // A BPF program may do more than match.
    assert!(matches!(
        Match::decode(Family::Ipv4, "bpf", 1, &[1; 1024]),
        Match::Foreign(_)
    ));
    // An extension header is none of IPv4.
    assert!(matches!(
        Match::decode(Family::Ipv4, "rt", 0, &[0; 1024]),
        Match::Foreign(_)
    ));
}

/// No current program loads older revisions.
#[test]
fn older_revisions_are_decoded() {
    let connection = connection(Family::Ipv4);
    let ask = |name: &str, revision, info: &[u8], hook| {
        Match::decode(Family::Ipv4, name, revision, info).holds(&Segment::at(
            &connection,
            hook,
            0,
            false,
        ))
    };
    let state = |mask: u32| ask("state", 0, &mask.to_ne_bytes(), Hook::Input);
    assert_eq!(state(1 << 1), Yes);
    assert_eq!(state(1 << 3), No);
    assert_eq!(state(1 << 6), No);

    let mut conntrack = [0; 164];
    conntrack[146..148].copy_from_slice(&1_u16.to_ne_bytes());
    conntrack[150] = 1 << 1;
    assert_eq!(ask("conntrack", 1, &conntrack, Hook::Input), Yes);
    conntrack[150] = 1 << 3;
    assert_eq!(ask("conntrack", 1, &conntrack, Hook::Input), No);

    let mut types = [0; 12];
    types[2..4].copy_from_slice(&(1_u16 << 2).to_ne_bytes());
    assert_eq!(ask("addrtype", 0, &types, Hook::Input), Yes);
    assert_eq!(ask("addrtype", 0, &types, Hook::Output), No);
    types[8] = 1;
    assert_eq!(ask("addrtype", 0, &types, Hook::Input), No);
}

/// The program ipset, which makes the sets that such a rule needs, may be missing.
#[test]
fn a_set_match_has_an_effect_only_if_it_tests_counters() {
    let mut info = [0; 48];
    let decode = |revision, info: &[u8; 48]| {
        Step::of_match(Match::decode(Family::Ipv4, "set", revision, info))
    };
    for revision in 1..=4 {
        assert_eq!(decode(revision, &info).len(), 1, "{revision}");
    }
    // `packets.op`
    info[16] = 1;
    assert_eq!(decode(4, &info).len(), 2);
}

#[test]
fn names_without_side_effects_are_listed_once() {
    let names: BTreeSet<_> = super::ONLY_MATCH.into_iter().collect();
    assert_eq!(names.len(), super::ONLY_MATCH.len());
}

const NAMES: [&str; 20] = [
    "conntrack",
    "state",
    "tcp",
    "multiport",
    "iprange",
    "addrtype",
    "rpfilter",
    "mark",
    "policy",
    "tcpmss",
    "ipv6header",
    "comment",
    "udp",
    "rt",
    "recent",
    "connlabel",
    "socket",
    "set",
    "bpf",
    "novelty",
];

proptest! {
    #[test]
    fn any_data_is_decoded(
        name in proptest::sample::select(&NAMES[..]),
        revision in 0..6_u8,
        info in proptest::collection::vec(any::<u8>(), 0..400),
        accepted: bool,
    ) {
        for family in [Family::Ipv4, Family::Ipv6] {
            let connection = Connection { accepted, ..connection(family) };
            let decoded = Match::decode(family, name, revision, &info);
            for hook in Hook::OWN {
                decoded.holds(&Segment::at(&connection, hook, 0, false));
            }
            prop_assert!(!Step::of_match(decoded).is_empty());
        }
    }
}
