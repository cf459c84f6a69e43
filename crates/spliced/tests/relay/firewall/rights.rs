//! The packet filters of a relay that has the documented capabilities and is not root, or may not watch them.

use std::process::Command;

use netlab::{Lab, Namespace, Scratch};

use super::host::{CLIENT_PORT, Host, IPV4, can_filter, iptables, load};
use crate::doctor::{NOBODY, for_anybody};
use crate::forbidden_call::ForbiddenCall;
use crate::patience::until;

/// A relay as user `nobody` on a prepared host.
fn host(scratch: &Scratch, prepare: impl FnOnce(&Lab)) -> Host {
    let capabilities = "-all,+bpf,+net_admin,+perfmon";
    let spliced = for_anybody(scratch);
    Host::by(
        IPV4,
        prepare,
        |namespace| {
            let mut command = namespace.command("setpriv");
            command
                .args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"])
                .arg(format!("--inh-caps={capabilities}"))
                .arg(format!("--ambient-caps={capabilities}"))
                .arg("--")
                .arg(&spliced);
            command
        },
        &["--engine", "segment"],
    )
}

#[test]
fn rules_of_nftables_apply_without_root() {
    if !can_filter() {
        return;
    }
    let scratch = Scratch::new("nobody").expect("a directory");
    let host = host(&scratch, |lab| {
        load(
            lab,
            "table ip t { chain c {
                type filter hook input priority 0; policy accept;
                tcp dport 22 drop
            }\n}",
        );
    });
    let pair = host.spliced(CLIENT_PORT, &[]);
    host.nft(&format!("add rule ip t c tcp sport {CLIENT_PORT} drop"));
    let handle = host.handle(&format!("sport {CLIENT_PORT} "));
    until("the pair has gone back", || host.hop.are_spliced(0));
    host.nft("flush chain ip t c");
    pair.round();
    pair.end();
    let why = host.logged(CLIENT_PORT, "why_engine");
    let rule = format!("packet filters: ip t c handle {handle} drops");
    assert!(why.contains(&rule), "{why}");
}

/// Only root can read the lists of their names.
#[test]
fn unlistable_tables_of_iptables_legacy_prevent_splicing() {
    if !can_filter() {
        return;
    }
    let scratch = Scratch::new("nobody").expect("a directory");
    let host = host(&scratch, |lab| {
        let rule = "-A INPUT -p tcp --dport 22 -j DROP";
        iptables(lab, "iptables-legacy", rule);
    });
    host.is_reset(CLIENT_PORT);
    let why = host.logged(CLIENT_PORT, "why_engine");
    for part in ["iptables-legacy", "filter", "Permission denied"] {
        assert!(why.contains(part), "no {part:?} in {why:?}");
    }
}

#[test]
fn rules_that_cannot_be_watched_prevent_splicing() {
    if !can_filter() {
        return;
    }
    let Some(spliced) = ForbiddenCall::NETFILTER.spliced(Command::new("perl")) else {
        return;
    };
    let forbidden = |namespace: &Namespace| {
        let mut command = namespace.command("perl");
        command.args(spliced.get_args()).env_remove("SPLICED_LOG");
        command
    };
    let host = Host::by(IPV4, |_| {}, forbidden, &["--engine", "segment"]);
    host.is_reset(CLIENT_PORT);
    let why = host.logged(CLIENT_PORT, "why_engine");
    for part in [
        "cannot subscribe to changes of the nftables rules",
        "not permitted",
    ] {
        assert!(why.contains(part), "no {part:?} in {why:?}");
    }
}
