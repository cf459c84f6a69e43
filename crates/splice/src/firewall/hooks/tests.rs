//! Which hooks appear for which filters, on this kernel.

use netlab::{Namespace, Need, available, present, program};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use splice_firewall::{Family, Hook, UnknownHook, classify};

use super::*;

/// The index of lo in every network namespace.
const LOOPBACK: u32 = 1;
const BOTH: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// A namespace of its own, and the hooks that are registered there.
struct Stage {
    namespace: Namespace,
    hooks: Arc<Hooks>,
}

impl Stage {
    fn new() -> Option<Self> {
        if !available(Need::Bpf) || !available(Need::Netns) {
            return None;
        }
        Some(Self {
            namespace: Namespace::new("hooks").expect("a namespace"),
            hooks: Hooks::load().expect("loaded"),
        })
    }

    fn with_nft() -> Option<Self> {
        available(Need::Nft).then(Self::new).flatten()
    }

    fn run(&self, program: &str, arguments: &[&str]) {
        let mut command = self.namespace.command(program);
        let done = command.args(arguments).output().expect(program);
        assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
    }

    fn nft(&self, commands: &[&str]) {
        for command in commands {
            self.run("nft", &[command]);
        }
    }

    fn registry_of(&self, device: u32) -> Registry {
        let list = || self.hooks.list(device).expect("listed");
        self.namespace.enter(list).expect("entered")
    }

    fn registry(&self) -> Registry {
        let registry = self.registry_of(LOOPBACK);
        assert_eq!(registry.counts, self.counts());
        registry
    }

    fn counts(&self) -> HookCounts {
        let count = || self.hooks.counts(LOOPBACK).expect("counted");
        self.namespace.enter(count).expect("entered")
    }

    /// The classification of all hooks, if nft has these numbers of chains and iptables-legacy
    /// these tables.
    fn classified(
        &self,
        family: Family,
        chains: &[(HookPlace, usize)],
        tables: &[&str],
    ) -> std::result::Result<(), UnknownHook> {
        let chains_at = |place| {
            let at = chains.iter().find(|(at, _)| *at == place);
            at.map_or(0, |(_, count)| *count)
        };
        let has_table = |table: &str| tables.contains(&table);
        classify(&self.registry(), family, &Hook::OWN, chains_at, has_table)
    }
}

fn at(registry: &Registry, place: HookPlace) -> Vec<(HookKind, i32)> {
    let there = registry.hooks.iter().filter(|hook| hook.place == place);
    there.map(|hook| (hook.kind, hook.priority)).collect()
}

#[test]
fn an_empty_namespace_has_no_hooks_but_those_of_security_modules() {
    let Some(stage) = Stage::new() else { return };
    for family in BOTH {
        assert_eq!(stage.classified(family, &[], &[]), Ok(()));
    }
    let kinds = stage.registry().hooks;
    assert!(
        kinds.iter().all(|hook| hook.kind == HookKind::Module),
        "{kinds:?}"
    );
}

/// The namespace is the caller's, and the device belongs to it.
#[test]
fn an_unknown_device_is_reported() {
    let Some(stage) = Stage::new() else { return };
    assert!(stage.counts().device_known);
    let registry = stage.registry_of(4_000_000);
    assert!(!registry.counts.device_known);
    let said = classify(&registry, Family::Ipv4, &Hook::OWN, |_| 0, |_| false);
    assert_eq!(said, Err(UnknownHook::NoDevice));
}

/// The kernel keeps devices in 256 lists, by index.
#[test]
fn hooks_of_devices_are_distinguished() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    let other = LOOPBACK + 256;
    stage.run(
        "ip",
        &[
            "link",
            "add",
            "other",
            "index",
            &other.to_string(),
            "type",
            "veth",
        ],
    );
    let before = [LOOPBACK, other].map(|device| stage.registry_of(device).counts);
    stage.nft(&[
        "add table netdev t",
        "add chain netdev t c { type filter hook ingress device other priority 6 ; }",
    ]);
    let after = [LOOPBACK, other].map(|device| stage.registry_of(device).counts);
    assert_eq!(before[0], after[0]);
    let ingress = HookPlace::Ingress.index();
    assert_eq!(before[1].count[ingress] + 1, after[1].count[ingress]);
}

/// The capabilities that the README names for the kernel engines.
#[test]
fn three_capabilities_are_enough() {
    let Some(stage) = Stage::new() else { return };
    let rights = CapabilitySet::BPF | CapabilitySet::NET_ADMIN | CapabilitySet::PERFMON;
    let sets = CapabilitySets {
        effective: rights,
        permitted: rights,
        inheritable: CapabilitySet::empty(),
    };
    let listed = stage.namespace.enter(|| {
        // Capabilities belong to the thread.
        set_capabilities(None, sets).expect("fewer capabilities");
        Hooks::new()?.list(LOOPBACK)
    });
    let listed = listed.expect("entered").expect("listed");
    assert_eq!(listed, stage.registry());
}

#[test]
fn nftables_chains_are_found_at_their_hooks() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    let before = stage.counts();
    stage.nft(&[
        "add table ip t",
        "add chain ip t c { type filter hook input priority -7 ; }",
        "add table ip6 t",
        "add chain ip6 t c { type route hook output priority 8 ; }",
        "add table inet t",
        "add chain inet t c { type filter hook prerouting priority 5 ; }",
        "add chain inet t i { type filter hook ingress device lo priority 7 ; }",
        "add table netdev t",
        "add chain netdev t c { type filter hook ingress device lo priority 6 ; }",
        "add chain netdev t e { type filter hook egress device lo priority 9 ; }",
        "add table arp t",
        "add chain arp t c { type filter hook input priority 1 ; }",
    ]);
    let registry = stage.registry();
    let chain = HookKind::NfTables;
    for (place, expected) in [
        (HookPlace::Input(Family::Ipv4), vec![(chain, -7)]),
        (HookPlace::Output(Family::Ipv6), vec![(chain, 8)]),
        (HookPlace::Prerouting(Family::Ipv4), vec![(chain, 5)]),
        (HookPlace::Prerouting(Family::Ipv6), vec![(chain, 5)]),
        (HookPlace::Ingress, vec![(chain, 6), (chain, 7)]),
        (HookPlace::Egress, vec![(chain, 9)]),
        (HookPlace::Input(Family::Ipv6), vec![]),
    ] {
        let found: Vec<_> = at(&registry, place)
            .into_iter()
            .filter(|(kind, _)| *kind == chain)
            .collect();
        assert_eq!(found, expected, "{place}");
    }
    let mut listed = [
        (HookPlace::Ingress, 2),
        (HookPlace::Egress, 1),
        (HookPlace::Prerouting(Family::Ipv4), 1),
        (HookPlace::Input(Family::Ipv4), 1),
    ];
    assert_eq!(stage.classified(Family::Ipv4, &listed, &[]), Ok(()));
    listed[0].1 = 1;
    let error = stage.classified(Family::Ipv4, &listed, &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nftables has 2 base chains at netfilter's device ingress hook, and 1 were listed"
    );
    // A dormant table has no hooks.
    stage.nft(&["add table inet t { flags dormant ; }"]);
    assert_eq!(at(&stage.registry(), HookPlace::Ingress), vec![(chain, 6)]);
    stage.nft(&["flush ruleset"]);
    assert_eq!(stage.counts(), before);
}

#[test]
fn connection_tracking_and_nat_are_known() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    stage.nft(&[
        "add table inet t",
        "add chain inet t c { type filter hook input priority 0 ; }",
        "add rule inet t c ct state established accept",
        "add chain inet t n { type nat hook postrouting priority 100 ; }",
        "add rule inet t n tcp dport 81 masquerade",
    ]);
    // With br_netfilter, the first bridge brings its hooks.
    let mut bridge = stage.namespace.command("ip");
    let _ = bridge
        .args(["link", "add", "br0", "type", "bridge"])
        .output();
    for family in BOTH {
        // A chain of type nat has no hook of its own.
        let chains = [(HookPlace::of(family, Hook::Input), 1)];
        assert_eq!(stage.classified(family, &chains, &[]), Ok(()));
        let there = at(&stage.registry(), HookPlace::of(family, Hook::Prerouting));
        assert!(there.len() >= 3, "{there:?}");
    }
}

/// synproxy changes sequence numbers.
#[test]
fn synproxy_is_unknown() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    stage.nft(&[
        "add table ip t",
        "add chain ip t c { type filter hook input priority 0 ; }",
        "add rule ip t c tcp dport 81 synproxy mss 1460",
    ]);
    let chains = [(HookPlace::Input(Family::Ipv4), 1)];
    let error = stage.classified(Family::Ipv4, &chains, &[]).unwrap_err();
    let error = error.to_string();
    assert!(
        error.contains("synproxy") && error.contains("IPv4 input"),
        "{error}"
    );
    assert_eq!(stage.classified(Family::Ipv6, &[], &[]), Ok(()));
}

fn has_legacy() -> bool {
    let missing = program("iptables-legacy")
        .is_none()
        .then(|| "no iptables-legacy (apt install iptables)".into());
    present("iptables-legacy", missing)
}

/// A table stays registered without a rule, so it shows which tables to read.
#[test]
fn tables_of_iptables_legacy_are_known_by_their_priority() {
    let Some(stage) = has_legacy().then(Stage::new).flatten() else {
        return;
    };
    for (family, program) in BOTH
        .into_iter()
        .zip(["iptables-legacy", "ip6tables-legacy"])
    {
        let mut tables = vec![];
        for table in ["nat", "filter", "mangle", "raw", "security"] {
            stage.run(program, &["-t", table, "-A", "OUTPUT", "-j", "ACCEPT"]);
            stage.run(program, &["-t", table, "-F"]);
            let said = stage.classified(family, &[], &tables);
            // Address translation calls the rules of nat.
            if table != "nat" {
                let error = said.unwrap_err().to_string();
                assert!(error.ends_with(&format!("listed: {table}")), "{error}");
            }
            tables.push(table);
            assert_eq!(stage.classified(family, &[], &tables), Ok(()), "{table}");
        }
    }
}

/// A foreign program at a hook for IPv4, attached while the link lives; `None` if the kernel has no
/// such programs (before 6.4, or without CONFIG_NETFILTER_BPF_LINK).
fn foreign(namespace: &Namespace, hook: i32) -> Option<libbpf_rs::Link> {
    let bytes = objects::NETFILTER_LINK;
    let attach = || {
        let object = load("netfilter_link", bytes, |_| Ok(()))?;
        Ok(object.attach_to_netfilter("netfilter_link", hook, -77))
    };
    let attached: Result<_> = namespace.enter(attach).expect("entered");
    let missing = attached.as_ref().err().map(ToString::to_string);
    present("netfilter-link", missing).then_some(attached)?.ok()
}

#[test]
fn a_bpf_program_at_a_hook_is_reported() {
    let Some(stage) = Stage::new() else { return };
    let before = stage.counts();
    let Some(program) = foreign(&stage.namespace, libbpf_rs::NF_INET_PRE_ROUTING) else {
        return;
    };
    assert_ne!(stage.counts(), before);
    let error = stage.classified(Family::Ipv4, &[], &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a BPF program is attached to netfilter's IPv4 prerouting hook (priority -77)"
    );
    assert_eq!(stage.classified(Family::Ipv6, &[], &[]), Ok(()));
    drop(program);
    // A process that another test is starting holds the link's descriptor until its exec.
    netlab::until("the program is gone", || stage.counts() == before);
    // Forwarded packets belong to no connection of this host.
    let _program = foreign(&stage.namespace, libbpf_rs::NF_INET_FORWARD);
    assert_eq!(stage.classified(Family::Ipv4, &[], &[]), Ok(()));
}

/// The number of hooks alone would not show it.
#[test]
fn a_program_in_place_of_a_chain_is_noticed() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    stage.nft(&[
        "add table ip t",
        "add chain ip t c { type filter hook prerouting priority 0 ; }",
    ]);
    let before = stage.counts();
    stage.nft(&["flush ruleset"]);
    let Some(_program) = foreign(&stage.namespace, libbpf_rs::NF_INET_PRE_ROUTING) else {
        return;
    };
    let after = stage.counts();
    assert_eq!(before.count, after.count);
    assert_ne!(before, after);
}

#[test]
fn many_hooks_take_several_answers() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    const EACH: usize = 20;
    let before = stage.registry().hooks.len();
    let mut chains = vec![];
    for (family, name) in BOTH.into_iter().zip(["ip", "ip6"]) {
        stage.nft(&[&format!("add table {name} t")]);
        for hook in ["prerouting", "input", "output", "postrouting"] {
            for priority in 0..EACH {
                let base = format!("{{ type filter hook {hook} priority {priority} ; }}");
                stage.nft(&[&format!("add chain {name} t {hook}{priority} {base}")]);
            }
        }
        for hook in [
            Hook::Prerouting,
            Hook::Input,
            Hook::Output,
            Hook::Postrouting,
        ] {
            chains.push((HookPlace::of(family, hook), EACH));
        }
    }
    assert_eq!(stage.registry().hooks.len(), before + 2 * 4 * EACH);
    for family in BOTH {
        assert_eq!(stage.classified(family, &chains, &[]), Ok(()));
    }
}

/// What each pair pays for it.
#[test]
#[ignore = "it measures; run it by name, in a release build"]
fn the_cost_of_an_answer() {
    let Some(stage) = Stage::with_nft() else {
        return;
    };
    const ROUNDS: u32 = 20_000;
    let cost = |what: &str| {
        let [counts, list] = stage
            .namespace
            .enter(|| {
                [true, false].map(|counts| {
                    let begin = std::time::Instant::now();
                    for _ in 0..ROUNDS {
                        if counts {
                            stage.hooks.counts(LOOPBACK).expect("counted");
                        } else {
                            stage.hooks.list(LOOPBACK).expect("listed");
                        }
                    }
                    begin.elapsed() / ROUNDS
                })
            })
            .expect("entered");
        let hooks = stage.registry().hooks.len();
        eprintln!("{what}, {hooks} hooks: counts {counts:?}, list {list:?}");
    };
    cost("empty");
    stage.nft(&[
        "add table inet t",
        "add chain inet t i { type filter hook input priority 0 ; }",
        "add rule inet t i ct state established accept",
        "add chain inet t o { type filter hook output priority 0 ; }",
        "add chain inet t n { type nat hook postrouting priority 0 ; }",
    ]);
    cost("a filter, connection tracking and translation");
}
