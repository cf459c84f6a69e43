//! What a process with listeners of datagrams says of itself.

use netlab::Process;

use super::{ask, client, configuration, servers};
use crate::proxy::Proxy;
use crate::relay::BINARY;

#[test]
fn the_sums_of_each_listener_are_logged_at_the_end() {
    let [only] = servers();
    let mut proxy = Proxy::run(&configuration(&[&only], "", ""));
    ask(&client(&proxy), &[&only]);
    ask(&client(&proxy), &[&only]);
    proxy.relay.terminate();
    proxy.relay.wait_logged(
        "listener l: 2 sessions, 0 of them displaced; to the target 2 datagrams, dropped 0",
    );
}

#[test]
fn the_status_counts_sessions_as_copied() {
    let [only] = servers();
    let proxy = Proxy::run(&configuration(&[&only], "", ""));
    let clients = [client(&proxy), client(&proxy)];
    for client in &clients {
        ask(client, &[&only]);
    }
    assert_eq!(proxy.status()["engines"]["copy"], 2);
}

#[test]
fn too_few_descriptors_for_the_sessions_are_told() {
    let [only] = servers();
    let mut command = Process::command("prlimit");
    command
        .args(["--nofile=200:200", BINARY])
        .env_remove("SPLICED_LOG");
    let text = configuration(&[&only], "max_sessions = 101", "");
    let proxy = Proxy::start_apart(&text, &mut command);
    proxy
        .relay
        .wait_logged("max_sessions needs 201 descriptors and RLIMIT_NOFILE allows 200");
}
