//! Bounds that a reload lowers.

use netlab::{Process, Scratch};

use super::{ask, client, configuration, servers};
use crate::log::Log;
use crate::patience::until;
use crate::proxy::Proxy;
use crate::relay::BINARY;

const CLIENTS: usize = 20;

/// `after` takes the place of no limit, and leaves `left` sessions of one client.
fn lower(after: &str, left: usize) {
    let scratch = Scratch::new("lowered").expect("a directory");
    let log = Log::below(&scratch);
    let access_log = format!("access_log = {:?}", log.path);
    let [only] = servers();
    let text = |more: &str| {
        let listener = format!("{access_log}\n{more}");
        format!("threads = 4\n{}", configuration(&[&only], &listener, ""))
    };
    let proxy = Proxy::run(&text(""));
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(&proxy)).collect();
    let before: Vec<_> = clients.iter().map(|one| ask(one, &[&only])).collect();
    assert_eq!(proxy.of("listeners", "l")["connections"], CLIENTS);
    assert!(proxy.reload(&text(after)).status.success());
    until("as many are left as may be", || {
        proxy.of("listeners", "l")["connections"] == left
    });
    let entries = log.entries();
    assert_eq!(entries.len(), CLIENTS - left);
    let outcome = "displaced by a lower limit";
    assert!(entries.iter().all(|entry| entry["outcome"] == outcome));
    // Those that are left go on.
    let is_left = |one: &std::net::UdpSocket| {
        let own = one.local_addr().expect("its address").to_string();
        entries.iter().all(|entry| entry["client"] != own)
    };
    let found = clients.iter().zip(&before).filter(|(one, _)| is_left(one));
    let mut count = 0;
    for (one, before) in found {
        assert_eq!(ask(one, &[&only]), *before);
        count += 1;
    }
    assert_eq!(count, left);
}

#[test]
fn a_lowered_bound_ends_what_is_beyond_it() {
    lower("max_sessions = 6", 6);
}

#[test]
fn a_lowered_bound_of_clients_ends_what_is_beyond_it() {
    lower("max_sessions_per_client = 3", 3);
}

#[test]
fn at_a_lowered_bound_of_clients_a_new_session_loses_nothing() {
    let [only] = servers();
    let text = |most: u32| {
        let listener = format!("max_sessions_per_client = {most}");
        format!("threads = 1\n{}", configuration(&[&only], &listener, ""))
    };
    let proxy = Proxy::run(&text(9));
    let clients: Vec<_> = (0..9).map(|_| client(&proxy)).collect();
    clients.iter().for_each(|one| {
        ask(one, &[&only]);
    });
    assert!(proxy.reload(&text(2)).status.success());
    for _ in 0..4 {
        ask(&client(&proxy), &[&only]);
    }
    assert_eq!(proxy.of("listeners", "l")["connections"], 2);
    assert_eq!(proxy.relay.lines_logged("datagram was dropped"), 0);
}

/// Sessions leave descriptors to a reload, which may be what lowers their bound.
#[test]
fn a_reload_lowers_a_bound_that_the_descriptors_did_not_reach() {
    const LIMIT: usize = 80;
    let [only] = servers();
    let text = |more: &str| format!("threads = 1\n{}", configuration(&[&only], more, ""));
    let mut command = Process::command("prlimit");
    command.arg(format!("--nofile={LIMIT}:{LIMIT}")).arg(BINARY);
    let proxy = Proxy::start(&text(""), command.env_remove("SPLICED_LOG"));
    let clients: Vec<_> = (0..2 * LIMIT).map(|_| client(&proxy)).collect();
    for client in &clients {
        ask(client, &[&only]);
    }
    proxy.relay.wait_logged("a new client displaces");
    let reloaded = proxy.reload(&text("max_sessions = 3"));
    assert!(reloaded.status.success(), "{reloaded:?}");
    until("as many are left as may be", || {
        proxy.of("listeners", "l")["connections"] == 3
    });
}
