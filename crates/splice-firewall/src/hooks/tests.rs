use super::*;

const INPUT: HookPlace = HookPlace::Input(Family::Ipv4);

fn hook(place: HookPlace, function: &str, kind: HookKind, priority: i32) -> RegisteredHook {
    RegisteredHook {
        place,
        function: function.into(),
        kind,
        priority,
    }
}

fn registry(hooks: Vec<RegisteredHook>) -> Registry {
    let mut counts = HookCounts {
        device_known: true,
        ..HookCounts::default()
    };
    for hook in &hooks {
        counts.count[hook.place.index()] += 1;
    }
    Registry { counts, hooks }
}

/// The result with one chain of nftables for IPv4 input, and the table filter.
fn said(hooks: Vec<RegisteredHook>) -> Result<(), String> {
    let registry = registry(hooks);
    let chains = |place| usize::from(place == INPUT);
    classify(&registry, Family::Ipv4, &Hook::OWN, chains, |table| {
        table == "filter"
    })
    .map_err(|unknown| unknown.to_string())
}

fn chain() -> RegisteredHook {
    hook(INPUT, "nft_do_chain_ipv4", HookKind::NfTables, 0)
}

fn with_chain(other: RegisteredHook) -> Result<(), String> {
    said(vec![chain(), other])
}

#[test]
fn every_place_has_the_index_of_its_count() {
    for (index, place) in HookPlace::ALL.into_iter().enumerate() {
        assert_eq!(place.index(), index, "{place}");
    }
}

#[test]
fn the_kernel_must_call_as_many_chains_as_the_rule_set_has() {
    assert_eq!(said(vec![chain()]), Ok(()));
    for (chains, called) in [(vec![], 0), (vec![chain(), chain()], 2)] {
        let words = format!(
            "nftables has {called} base chains at netfilter's IPv4 input hook, and 1 were listed"
        );
        assert_eq!(said(chains), Err(words));
    }
    let untold = hook(INPUT, "nft_do_chain_ipv4", HookKind::Untold, 0);
    assert_eq!(said(vec![untold]), Ok(()));
}

/// Debian and Fedora enable them by default.
#[test]
fn hooks_of_security_modules_are_harmless() {
    for function in ["apparmor_ip_postroute", "selinux_ip_postroute"] {
        let place = HookPlace::Postrouting(Family::Ipv4);
        let hook = hook(place, function, HookKind::Module, -225);
        assert_eq!(with_chain(hook), Ok(()));
    }
}

#[test]
fn a_module_name_or_compiler_suffix_does_not_hide_a_function() {
    for (function, known) in [
        ("nf_confirm [nf_conntrack]", true),
        ("nf_confirm.llvm.1234 [nf_conntrack]", true),
        ("ipv4_conntrack_in.cfi_jt", true),
        ("iptable_filter_hook [iptable_filter]", true),
        ("iptable_other_hook [iptable_other]", false),
        ("nf_confirmed", false),
        ("", false),
    ] {
        let hook = hook(INPUT, function, HookKind::Module, 0);
        assert_eq!(with_chain(hook).is_ok(), known, "{function}");
    }
}

/// The name of a BPF program proves nothing.
#[test]
fn an_unknown_hook_is_named() {
    for (kind, words) in [
        (
            HookKind::Bpf,
            "a BPF program is attached to netfilter's IPv4 input hook (priority 3)",
        ),
        (
            HookKind::Module,
            "the kernel function f [m] is registered at netfilter's IPv4 input hook (priority 3), \
             and what it does is not known",
        ),
    ] {
        let hook = hook(INPUT, "f [m]", kind, 3);
        assert_eq!(with_chain(hook), Err(words.into()));
    }
    for kind in [HookKind::Bpf, HookKind::Other(9)] {
        let hook = hook(INPUT, "nf_confirm", kind, 3);
        assert!(with_chain(hook).is_err(), "{kind:?}");
    }
}

#[test]
fn only_hooks_that_the_connection_passes_count() {
    for place in HookPlace::ALL {
        let met = match place {
            HookPlace::Forward(_) => false,
            _ => place.family() != Some(Family::Ipv6),
        };
        let hook = hook(place, "foreign", HookKind::Module, 0);
        assert_eq!(with_chain(hook).is_err(), met, "{place}");
    }
}

#[test]
fn a_table_that_was_not_listed_is_named() {
    for (priority, words) in [
        (0, None),
        (-150, Some("mangle")),
        (7, Some("of unknown name")),
    ] {
        let hook = hook(INPUT, "ipt_do_table", HookKind::Module, priority);
        let expected = words.map(|table| {
            format!(
                "iptables-legacy has a table at netfilter's IPv4 input hook that was not listed: \
                 {table}"
            )
        });
        assert_eq!(with_chain(hook).err(), expected);
    }
}

#[test]
fn a_truncated_list_is_reported() {
    let mut cut = registry(vec![chain()]);
    cut.counts.count[HookPlace::Egress.index()] = 100;
    let unknown = UnknownHook::TooMany {
        called: 101,
        listed: 1,
    };
    let said = classify(&cut, Family::Ipv4, &Hook::OWN, |_| 0, |_| true);
    assert_eq!(said, Err(unknown));
}
