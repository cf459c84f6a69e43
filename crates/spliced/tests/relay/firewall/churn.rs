//! Rules that change often, and so many at once that notifications are lost.

use std::fmt::Write as _;
use std::fs;
use std::thread;

use super::host::{CLIENT_PORT, Host, Pair, can_filter, run};
use crate::patience::{until, until_found};
use crate::peer::exchange;

const PAIRS: u16 = 50;
const BYTES: u64 = 1 << 20;
const CHANGES: u32 = 200;

/// A set that no client is affected by.
const UNRELATED: &str = "table ip t {
    set banned { type ipv4_addr; }
    chain c {
        type filter hook input priority 0; policy accept;
        ip saddr @banned drop
    }
}";

#[test]
fn irrelevant_changes_disturb_no_pair() {
    if !can_filter() {
        return;
    }
    let host = Host::under(UNRELATED, &["--engine", "segment"]);
    let pairs: Vec<_> = (CLIENT_PORT..CLIENT_PORT + PAIRS)
        .map(|port| host.connect(port))
        .collect();
    host.splice(&pairs.iter().collect::<Vec<_>>());
    let change = || {
        for number in 0..CHANGES {
            let change = match number % 4 {
                0 => "add element ip t banned { 192.0.2.1 }",
                1 => "add rule ip t c tcp dport 1 drop",
                2 => "delete element ip t banned { 192.0.2.1 }",
                _ => "flush chain ip t c; add rule ip t c ip saddr @banned drop",
            };
            run("nft", &["-f", "-"], change);
        }
    };
    let watching_ns = host.watching_ns();
    thread::scope(|scope| {
        let changing = scope.spawn(|| host.lab.relay().enter(change).expect("entered"));
        while !changing.is_finished() {
            pairs.iter().for_each(Pair::round);
        }
    });
    let watching_ms = (host.watching_ns() - watching_ns) / 1_000_000;
    eprintln!("{CHANGES} changes have cost the watching thread {watching_ms} ms of CPU time");
    thread::scope(|scope| {
        for (number, pair) in (0..).zip(&pairs) {
            scope.spawn(move || exchange(&pair.near, &pair.far, number, BYTES, BYTES));
        }
    });
    drop(pairs);
    for port in CLIENT_PORT..CLIENT_PORT + PAIRS {
        assert_eq!(host.logged(port, "outcome"), "end of stream");
        assert_eq!(host.logged(port, "engine"), "segment");
    }
    assert_eq!(host.hop.relay.lines_logged("filters have changed"), 0);
}

/// After a base chain was added, the kernel calls more hooks than the relay has read so far. No client is
/// refused for that.
#[test]
fn clients_that_connect_while_base_chains_change_are_spliced() {
    const CHAINS: u32 = 60;
    if !can_filter() {
        return;
    }
    let host = Host::under(UNRELATED, &["--engine", "segment"]);
    let change = || {
        for number in 0..CHAINS {
            let change = match number % 2 {
                0 => "add chain ip t d { type filter hook input priority 1; policy accept; }",
                _ => "delete chain ip t d",
            };
            run("nft", &["-f", "-"], change);
        }
    };
    let mut clients = 0;
    thread::scope(|scope| {
        let changing = scope.spawn(|| host.lab.relay().enter(change).expect("entered"));
        while !changing.is_finished() {
            let pair = host.connect(CLIENT_PORT + clients);
            // The first turn has judged the pair by then.
            pair.round();
            pair.end();
            clients += 1;
        }
    });
    // Where changes take long, there are thousands.
    let entries = until_found("every client is in the access log", || {
        let entries = host.hop.entries();
        (entries.len() >= usize::from(clients)).then_some(entries)
    });
    assert_eq!(entries.len(), usize::from(clients));
    for entry in entries {
        assert_eq!(entry["outcome"], "end of stream", "{entry}");
    }
    assert_eq!(host.hop.relay.lines_logged("refused"), 0);
}

/// The number of notifications that the nftables sockets in the relay's namespace have lost.
fn missed(host: &Host) -> u64 {
    // NETLINK_NETFILTER
    const PROTOCOL: &str = "12";
    let read = || fs::read_to_string("/proc/thread-self/net/netlink").expect("a list");
    let list = host.lab.relay().enter(read).expect("entered");
    // sk, Eth, Pid, Groups, Rmem, Wmem, Dump, Locks, Drops, Inode
    list.lines()
        .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.len() > 8 && fields[1] == PROTOCOL)
        .filter_map(|fields| fields[8].parse::<u64>().ok())
        .sum()
}

#[test]
fn missed_notifications_do_not_hide_a_change() {
    const ELEMENTS: u32 = 5_000;
    if !can_filter() {
        return;
    }
    let host = Host::under(UNRELATED, &["--engine", "segment"]);
    let _banned = host.spliced(CLIENT_PORT, &[]);
    let other = host.spliced(CLIENT_PORT + 1, &[&_banned]);
    host.hop.relay.hold_still();
    let mut batch = 0;
    until("a change is missed", || {
        batch += 1;
        let mut elements = String::new();
        for number in 0..ELEMENTS {
            let [high, low] = (number as u16).to_be_bytes();
            let _ = write!(elements, "10.{batch}.{high}.{low}, ");
        }
        host.nft(&format!("add element ip t banned {{ {elements} }}"));
        missed(&host) > 0
    });
    host.nft(&format!("add rule ip t c tcp sport {CLIENT_PORT} drop"));
    let handle = host.handle(&format!("sport {CLIENT_PORT} "));
    host.hop.relay.go_on();
    until("the banned one has gone back", || host.hop.are_spliced(1));
    let rule = format!("ip t c handle {handle} drops");
    host.hop.relay.wait_logged(&rule);
    host.splice(&[&other]);
    other.end();
    assert_eq!(host.logged(CLIENT_PORT + 1, "outcome"), "end of stream");
}
